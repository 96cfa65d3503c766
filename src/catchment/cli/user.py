"""`catchment user`: who may log in to the server, and as what. A password is never an argument, and never printed."""

import sys
from enum import StrEnum
from typing import Annotated

import typer

from catchment.cli.context import AsJson, Home, Started, started
from catchment.cli.output import Output
from catchment.errors import InputError
from catchment.server.users import PASSWORD_BYTES_MAX, ServerUser, Users
from catchment.server.values import Role
from catchment.tenants.model import TenantId

group = typer.Typer(help="Who may log in to the server, and as what.", no_args_is_help=True)


class RoleName(StrEnum):
    """Roles, as they are written."""

    READER = "reader"
    WRITER = "writer"
    ADMIN = "admin"


Name = Annotated[str, typer.Argument(help="The user's name.")]
FromStdin = Annotated[
    bool, typer.Option("--password-stdin", help="Read the password from stdin, one line, instead of asking for it.")
]
_NO_TENANT = "none"
_ROLES = "A reader reads; a writer also writes and changes tables; an admin also looks after the queue and the server."


@group.command()
def add(
    name: Name,
    *,
    role: Annotated[RoleName, typer.Option(help=_ROLES)],
    tenant: Annotated[
        str | None, typer.Option(help="The tenant, `t7` say, whose tables are all that there is for the user.")
    ] = None,
    password_stdin: FromStdin = False,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Add a user, who can log in at once; a server that runs need not be started again."""
    with started(home, as_json) as run:
        users = _users(run)
        first = not users.all()
        belongs = None if tenant is None else TenantId.parse(tenant)
        user = users.add(name, Role[role.name], _password(run.out, from_stdin=password_stdin), tenant=belongs)
        run.out.value(_facts(user), [f"Added {user.name}, {role}{_of_tenant(user)}."])
        if first and run.settings.server_auth is None:
            run.out.say("This is the first user: from now on, everybody logs in.")


@group.command(name="list")
def list_users(home: Home = None, as_json: AsJson = False) -> None:
    """List the users, their roles and tenants."""
    with started(home, as_json) as run:
        users = _users(run)
        found = users.all()
        if found:
            rows = [
                (each.name, _role(each), _tenant(each) or "", f"{each.created_at:%Y-%m-%d %H:%M:%S}") for each in found
            ]
            run.out.table("Users", ["name", "role", "tenant", "created at (UTC)"], rows)
        shown = {"file": users.path, "users": [_facts(each) for each in found]}
        run.out.value(shown, [] if found else ["There are no users: `catchment user add NAME --role admin`."])


@group.command()
def remove(name: Name, home: Home = None, as_json: AsJson = False) -> None:
    """Remove a user, who cannot log in any more; sessions that are open go on until they end."""
    with started(home, as_json) as run:
        user = _users(run).remove(name)
        run.out.value(_facts(user), [f"Removed {user.name}."])


@group.command()
def password(name: Name, password_stdin: FromStdin = False, home: Home = None, as_json: AsJson = False) -> None:
    """Give a user another password."""
    with started(home, as_json) as run:
        users = _users(run)
        # Nobody shall type a password twice to learn that there is no such user.
        if users.find(name) is None:
            raise InputError(f"There is no user {name}.", hint="`catchment user list` shows them.")
        user = users.set_password(name, _password(run.out, from_stdin=password_stdin))
        run.out.value(_facts(user), [f"{user.name} has another password."])


@group.command()
def role(
    name: Name,
    role: Annotated[RoleName, typer.Argument(help=_ROLES)],
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Give a user another role; open sessions of the user end."""
    with started(home, as_json) as run:
        user = _users(run).set_role(name, Role[role.name])
        run.out.value(_facts(user), [f"{user.name} is {role} now."])


@group.command()
def tenant(
    name: Name,
    tenant: Annotated[str, typer.Argument(help="The tenant, `t7` say; or `none`.", metavar="TENANT|none")],
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Have a user belong to a tenant, or to none: there are no other tables for the user. Open sessions end."""
    with started(home, as_json) as run:
        user = _users(run).set_tenant(name, None if tenant == _NO_TENANT else TenantId.parse(tenant))
        run.out.value(_facts(user), [f"{user.name} is {_role(user)}{_of_tenant(user) or ' of no tenant'} now."])


def _users(run: Started) -> Users:
    return Users.from_settings(run.settings)


def _role(user: ServerUser) -> RoleName:
    return RoleName[user.role.name]


def _tenant(user: ServerUser) -> str | None:
    return None if user.tenant is None else str(user.tenant)


def _of_tenant(user: ServerUser) -> str:
    return "" if user.tenant is None else f" of {user.tenant}"


def _facts(user: ServerUser) -> dict[str, object]:
    return {"name": user.name, "role": _role(user), "tenant": _tenant(user), "created_at": user.created_at}


def _password(out: Output, *, from_stdin: bool) -> str:
    if from_stdin:
        # One more than is allowed, so that a longer one is refused and not cut; and the end of the line.
        line = sys.stdin.buffer.readline(PASSWORD_BYTES_MAX + 3)
        try:
            return line.decode().removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError:
            raise InputError("The password is not UTF-8.") from None
    first = out.ask_unseen("Password: ")
    if first is None:
        raise InputError("There is nobody to ask for a password.", hint="Pipe it in, with --password-stdin.")
    if out.ask_unseen("The same again: ") != first:
        raise InputError("The two passwords differ; nothing was changed.")
    return first
