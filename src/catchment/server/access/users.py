"""The file of users: names, roles, tenants and password hashes.

A change holds a lock and replaces the whole file, so that concurrent changes do not lose each
other, and a server that reads it sees either the old file or the new one. A file that cannot be
parsed is an error: treated as an empty one, it would let a server run as if it had no users.
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
from catchment.flight_protocol.headers import SHARD
from catchment.foundation import files
from catchment.foundation.clock import Clock, SystemClock
from catchment.foundation.settings import Settings
from catchment.server.values import Role
from catchment.tenants.model import TenantId

ANONYMOUS = "anonymous"
# The name under which commands on this machine log in to a running server.
LOCAL = "local"
PASSWORD_CHARACTERS_MIN = 8
PASSWORD_BYTES_MAX = 1024
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_VERSION = 1
# A server that does not know tenants would give a tenant's user access to all tables: it must not
# read the file.
_VERSION_TENANTS = 2
_LOCK_S_MAX = 30.0
# OWASP's minimum. More would let password guessers use more of the server's memory and CPU.
_HASHER = PasswordHasher(time_cost=2, memory_cost=19 * 1024, parallelism=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerUser:
    """A user who may log in."""

    name: str
    role: Role
    created_at: datetime
    password_hash: str = field(repr=False)
    tenant: TenantId | None = None


class Users:
    """The users in one file. Thread-safe; the file is read again when it has changed."""

    def __init__(self, path: Path, *, clock: Clock | None = None) -> None:
        self.path = path
        self._clock = clock or SystemClock()
        self._lock = files.FileLock(path.with_name(f"{path.name}.lock"), clock=self._clock)
        self._mutex = threading.Lock()
        self._read: tuple[tuple[int, ...], dict[str, ServerUser]] | None = None

    @classmethod
    def from_settings(cls, settings: Settings, *, clock: Clock | None = None) -> "Users":
        """Open the file that the settings name."""
        return cls(settings.users_path, clock=clock)

    def all(self) -> tuple[ServerUser, ...]:
        """Return all users, ordered by name; none if there is no file."""
        return tuple(sorted(self._users().values(), key=lambda user: user.name))

    @property
    def exist(self) -> bool:
        """Whether there are any users."""
        return bool(self._users())

    def find(self, name: str) -> ServerUser | None:
        """Return the user with that name, or None."""
        return self._users().get(name)

    def add(self, name: str, role: Role, password: str, *, tenant: TenantId | None = None) -> ServerUser:
        """Add a user, with or without a tenant."""
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
                    f"The user {name} already exists.",
                    hint=f"`catchment user password {name}` and `catchment user role {name} ROLE` change a user.",
                )
            users[name] = user
        return user

    def remove(self, name: str) -> ServerUser:
        """Remove a user, and return it; open sessions of the user end."""
        with self._changing() as users:
            self._require(users, name)
            return users.pop(name)

    def set_password(self, name: str, password: str) -> ServerUser:
        """Change the password; open sessions of the user end."""
        _require_password(password)
        return self._replace(name, password_hash=hash_password(password))

    def set_role(self, name: str, role: Role) -> ServerUser:
        """Change the role; open sessions of the user end."""
        return self._replace(name, role=role)

    def set_tenant(self, name: str, tenant: TenantId | None) -> ServerUser:
        """Change the tenant, or remove it; open sessions of the user end."""
        return self._replace(name, tenant=tenant)

    def hash_again(self, known: ServerUser, password: str) -> ServerUser:
        """Hash a verified password again if the parameters changed, unless the user changed.

        Returns the user with its current hash.
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
        """Yield the users, to be changed in place; saved at the end unless there is an error."""
        with self._lock.held(timeout_s=_LOCK_S_MAX):
            users = dict(self._users())
            yield users
            files.replace_text(self.path, _text(users), private=True)

    def _users(self) -> dict[str, ServerUser]:
        with self._mutex:
            try:
                found = self.path.stat()
                # A new file has a new inode, so that two changes within one tick of the disk's
                # clock differ.
                version = (found.st_mtime_ns, found.st_ino, found.st_size)
                if self._read is None or self._read[0] != version:
                    self._read = (version, _parse(self.path))
            except FileNotFoundError:
                return {}
            except OSError as error:
                raise CorruptInputError(f"{self.path} cannot be read: {error.strerror}.", path=str(self.path)) from None
            return self._read[1]


def hash_password(password: str) -> str:
    """Return the hash that is stored in place of the password."""
    return _HASHER.hash(password)


def unmatchable_hash() -> str:
    """Return a hash that matches no password; verifying against it takes as long as any."""
    lengths = (_HASHER.salt_len, _HASHER.hash_len)
    salt, digest = (base64.b64encode(secrets.token_bytes(each)).decode().rstrip("=") for each in lengths)
    costs = f"m={_HASHER.memory_cost},t={_HASHER.time_cost},p={_HASHER.parallelism}"
    return f"$argon2id$v={ARGON2_VERSION}${costs}${salt}${digest}"


def is_password(password_hash: str, password: str) -> bool:
    """Whether the password matches the hash; takes as long for a wrong one."""
    try:
        return _HASHER.verify(password_hash, password)
    except (VerificationError, InvalidHashError):
        return False


def _require_name(name: str) -> None:
    if name in (ANONYMOUS, LOCAL, SHARD):
        raise InputError(f"{name} is a reserved name.", hint="Choose another name.")
    if not _NAME.fullmatch(name):
        raise InputError(
            f"{name!r} is not a valid user name.",
            hint="Use 1 to 64 characters of A-Z, a-z, 0-9, '.', '_', '@' and '-'; begin with a letter or a digit.",
        )


def _require_no_admin(user: ServerUser) -> None:
    if user.tenant is not None and user.role is Role.ADMIN:
        raise InputError(
            f"{user.name} belongs to {user.tenant}, and a tenant's user cannot be an admin.",
            hint="Make the user a reader or a writer, or remove its tenant.",
        )


def _require_password(password: str) -> None:
    if len(password) < PASSWORD_CHARACTERS_MIN:
        raise InputError("The password is too short.", hint=f"Use at least {PASSWORD_CHARACTERS_MIN} characters.")
    if not files.is_text(password) or len(password.encode()) > PASSWORD_BYTES_MAX:
        raise InputError(
            "The password is too long, or not text.", hint=f"Use at most {PASSWORD_BYTES_MAX} bytes of UTF-8."
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
            raise ValueError(f"its version is {content['version']!r}, but the newest known one is {_VERSION_TENANTS}")
        users = [_user(each) for each in content["users"]]
    except (KeyError, TypeError, AttributeError, ValueError, InputError) as error:
        raise CorruptInputError(
            f"{path} is not a valid file of users: {_why(error)}.",
            hint="Restore a copy of it, or move it away and add the users again with `catchment user add`.",
            path=str(path),
        ) from None
    return {user.name: user for user in users}


def _user(facts: dict[str, str]) -> ServerUser:
    if not all(isinstance(value, str) for value in facts.values()):
        raise ValueError("a user's fields must be strings")
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
