"""The users' file: who may log in, as what, and the hash of each one's password.

Whoever changes it holds a lock and puts a whole new file in the place of the old one, so that two who change it at once
lose nothing, and a server that reads it meanwhile sees the old file or the new one. A file that cannot be understood is
an error: taken for an empty one, it would let a server believe that it has no users.
"""

import base64
import json
import re
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError
from argon2.low_level import ARGON2_VERSION

from catchment.errors import CorruptInputError, InputError, StateError
from catchment.foundation import files
from catchment.foundation.clock import Clock, SystemClock
from catchment.foundation.settings import Settings
from catchment.server.values import Role
from catchment.tenants.model import TenantId

ANONYMOUS = "anonymous"
# The name under which commands on this machine talk to a running server.
LOCAL = "local"
# The name under which shards, and those who move tenants, talk to each other.
SHARD = "shard"
PASSWORD_LETTERS_MIN = 8
PASSWORD_BYTES_MAX = 1024
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_VERSION = 1
# A server that knows of no tenants would take a tenant's user for everybody's: it must not read the file.
_VERSION_TENANTS = 2
_LOCK_S_MAX = 30.0
# What OWASP asks for at least. More would let strangers who guess take more of the server's memory and CPU.
_HASHER = PasswordHasher(time_cost=2, memory_cost=19 * 1024, parallelism=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerUser:
    """One who may log in."""

    name: str
    role: Role
    created_at: datetime
    password_hash: str = field(repr=False)
    tenant: TenantId | None = None


class Users:
    """The users of one file. Any thread may ask; the file is read again when it is another one than before."""

    def __init__(self, path: Path, *, clock: Clock | None = None) -> None:
        self.path = path
        self._clock = clock or SystemClock()
        self._lock = files.FileLock(path.with_name(f"{path.name}.lock"), clock=self._clock)
        self._mutex = threading.Lock()
        self._read: tuple[tuple[int, ...], dict[str, ServerUser]] | None = None

    @classmethod
    def from_settings(cls, settings: Settings, *, clock: Clock | None = None) -> "Users":
        """The file that the settings name."""
        return cls(settings.users_path, clock=clock)

    def all(self) -> tuple[ServerUser, ...]:
        """All of them, by name; none where there is no file."""
        return tuple(sorted(self._users().values(), key=lambda user: user.name))

    @property
    def are_there(self) -> bool:
        """Whether there is any."""
        return bool(self._users())

    def find(self, name: str) -> ServerUser | None:
        """The user of that name."""
        return self._users().get(name)

    def add(self, name: str, role: Role, password: str, *, tenant: TenantId | None = None) -> ServerUser:
        """A new user, of a tenant or of none."""
        _require_name(name)
        _require_password(password)
        user = ServerUser(
            name=name,
            role=role,
            created_at=self._clock.now(),
            password_hash=hash_password(password),
            tenant=tenant,
        )
        _require_no_admin(user)
        with self._changing() as users:
            if name in users:
                raise StateError(
                    f"There is a user {name} already.",
                    hint=f"`catchment user password {name}` and `catchment user role {name} ROLE` change one.",
                )
            users[name] = user
        return user

    def remove(self, name: str) -> ServerUser:
        """The user may not log in any more; open sessions of the user end."""
        with self._changing() as users:
            self._require(users, name)
            return users.pop(name)

    def set_password(self, name: str, password: str) -> ServerUser:
        """The user logs in with that from now on; open sessions of the user end."""
        _require_password(password)
        return self._replace(name, password_hash=hash_password(password))

    def set_role(self, name: str, role: Role) -> ServerUser:
        """The user may do that from now on; open sessions of the user end."""
        return self._replace(name, role=role)

    def set_tenant(self, name: str, tenant: TenantId | None) -> ServerUser:
        """The user belongs to that tenant, or to none, from now on; open sessions of the user end."""
        return self._replace(name, tenant=tenant)

    def hash_again(self, known: ServerUser, password: str) -> ServerUser:
        """Bring the hash of a password that was just verified to today's parameters, unless somebody changed it.

        Returns the user with the hash that counts now for that password.
        """
        if _HASHER.check_needs_rehash(known.password_hash):
            with self._changing() as users:
                if users.get(known.name) == known:
                    known = users[known.name] = replace(known, password_hash=hash_password(password))
        return known

    def _replace(self, name: str, **values: Any) -> ServerUser:
        with self._changing() as users:
            users[name] = replace(self._require(users, name), **values)
            _require_no_admin(users[name])
            return users[name]

    def _require(self, users: dict[str, ServerUser], name: str) -> ServerUser:
        if name not in users:
            raise InputError(f"There is no user {name}.", hint="`catchment user list` shows them.")
        return users[name]

    @contextmanager
    def _changing(self) -> Iterator[dict[str, ServerUser]]:
        """The users, to be changed in place and then kept; nothing is kept after an error."""
        with self._lock.held(timeout_s=_LOCK_S_MAX):
            users = dict(self._users())
            yield users
            files.replace_text(self.path, _text(users), private=True)

    def _users(self) -> dict[str, ServerUser]:
        with self._mutex:
            try:
                found = self.path.stat()
                # A new file has a new inode, so that two changes within one tick of the disk's clock are two.
                version = (found.st_mtime_ns, found.st_ino, found.st_size)
                if self._read is None or self._read[0] != version:
                    self._read = (version, _parse(self.path))
            except FileNotFoundError:
                return {}
            except OSError as error:
                raise CorruptInputError(f"{self.path} cannot be read: {error.strerror}.", path=str(self.path)) from None
            return self._read[1]


def hash_password(password: str) -> str:
    """The hash that is kept in place of the password."""
    return _HASHER.hash(password)


def hash_of_nobody() -> str:
    """A hash that fits no password that anybody knows; to compare with it takes as long as with any."""
    lengths = (_HASHER.salt_len, _HASHER.hash_len)
    salt, digest = (base64.b64encode(secrets.token_bytes(each)).decode().rstrip("=") for each in lengths)
    costs = f"m={_HASHER.memory_cost},t={_HASHER.time_cost},p={_HASHER.parallelism}"
    return f"$argon2id$v={ARGON2_VERSION}${costs}${salt}${digest}"


def is_password(password_hash: str, password: str) -> bool:
    """Whether that is the password; takes as long for a wrong one."""
    try:
        return _HASHER.verify(password_hash, password)
    except (VerificationError, InvalidHashError):
        return False


def _require_name(name: str) -> None:
    if name in (ANONYMOUS, LOCAL, SHARD):
        raise InputError(f"{name} is a name that the server uses itself.", hint="Take another name.")
    if not _NAME.fullmatch(name):
        raise InputError(
            f"{name!r} cannot be a user's name.",
            hint="Take 1 to 64 of A-Z, a-z, 0-9, '.', '_', '@' and '-'; begin with a letter or a digit.",
        )


def _require_no_admin(user: ServerUser) -> None:
    if user.tenant is not None and user.role is Role.ADMIN:
        raise InputError(
            f"{user.name} is of {user.tenant}, and a tenant's user is no admin.",
            hint="Make the user a reader or a writer, or one of no tenant.",
        )


def _require_password(password: str) -> None:
    if len(password) < PASSWORD_LETTERS_MIN:
        raise InputError("The password is too short.", hint=f"Take {PASSWORD_LETTERS_MIN} letters or more.")
    if not files.is_text(password) or len(password.encode()) > PASSWORD_BYTES_MAX:
        raise InputError(
            "The password is too long, or no text.", hint=f"Take at most {PASSWORD_BYTES_MAX} bytes of UTF-8."
        )


def _text(users: dict[str, ServerUser]) -> str:
    listed = [
        {
            "name": user.name,
            "role": user.role.name.lower(),
            "created_at": user.created_at.isoformat(),
            "password_hash": user.password_hash,
            **({} if user.tenant is None else {"tenant": str(user.tenant)}),
        }
        for user in sorted(users.values(), key=lambda user: user.name)
    ]
    version = _VERSION if all(user.tenant is None for user in users.values()) else _VERSION_TENANTS
    return json.dumps({"version": version, "users": listed}, indent=2) + "\n"


def _parse(path: Path) -> dict[str, ServerUser]:
    text = path.read_bytes()
    try:
        content = json.loads(text)
        if content["version"] not in (_VERSION, _VERSION_TENANTS):
            raise ValueError(f"its version is {content['version']!r}, and {_VERSION_TENANTS} is known")
        users = [_user(each) for each in content["users"]]
    except (KeyError, TypeError, AttributeError, ValueError, InputError) as error:
        raise CorruptInputError(
            f"{path} is no file of users: {_why(error)}.",
            hint="Put a copy of it back; or move it away and add the users again with `catchment user add`.",
            path=str(path),
        ) from None
    return {user.name: user for user in users}


def _user(facts: dict[str, str]) -> ServerUser:
    if not all(isinstance(value, str) for value in facts.values()):
        raise ValueError("a user's facts are texts")
    user = ServerUser(
        name=facts["name"],
        role=Role[facts["role"].upper()],
        created_at=datetime.fromisoformat(facts["created_at"]),
        password_hash=facts["password_hash"],
        tenant=TenantId.parse(facts["tenant"]) if "tenant" in facts else None,
    )
    _require_no_admin(user)
    return user


def _why(error: Exception) -> str:
    if isinstance(error, InputError):
        return error.message.rstrip(".")
    return f"{error.args[0]!r} is missing or wrong" if isinstance(error, KeyError) else str(error)
