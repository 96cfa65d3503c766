"""`catchment user`: users and their roles. A password is never an argument and never printed."""

import sys
from enum import StrEnum
from typing import Annotated

import typer

from catchment.cli.context import AsJson, Home, command
from catchment.cli.output import Output
from catchment.errors import InputError
from catchment.server.access.users import PASSWORD_BYTES_MAX, ServerUser
from catchment.server.values import Role
from catchment.tenants.model import TenantId

group = typer.Typer(help="Manage the users of the server and their roles.", no_args_is_help=True)


class RoleName(StrEnum):
    """Roles as written on the command line."""

    READER = "reader"
    WRITER = "writer"
    ADMIN = "admin"


Name = Annotated[str, typer.Argument(help="Name of the user.")]
FromStdin = Annotated[
    bool, typer.Option("--password-stdin", help="Read the password from stdin, one line, instead of asking for it.")
]
_NO_TENANT = "none"
_ROLES = "A reader reads; a writer also writes and changes tables; an admin also manages the queue and the server."


@group.command()
def add(
    name: Name,
    *,
    role: Annotated[RoleName, typer.Option(help=_ROLES)],
    tenant: Annotated[str | None, typer.Option(help="Tenant such as `t7`: the user sees only its tables.")] = None,
    password_stdin: FromStdin = False,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Add a user, who can log in at once; a running server need not be restarted."""
    with command(home, as_json) as run:
        users = run.catchment.users
        first = not users.all()
        belongs = None if tenant is None else TenantId.parse(tenant)
        user = users.add(name, Role[role.name], _password(run.out, from_stdin=password_stdin), tenant=belongs)
        run.out.value(_facts(user), [f"Added {user.name}, {role}{_of_tenant(user)}."])
        if first and run.catchment.settings.server_auth is None:
            run.out.say("This is the first user: from now on, every client must log in.")


@group.command(name="list")
def list_users(home: Home = None, as_json: AsJson = False) -> None:
    """List the users, their roles and tenants."""
    with command(home, as_json) as run:
        users = run.catchment.users
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
    """Remove a user, who cannot log in any more; open sessions of the user end."""
    with command(home, as_json) as run:
        user = run.catchment.users.remove(name)
        run.out.value(_facts(user), [f"Removed {user.name}."])


@group.command()
def password(name: Name, password_stdin: FromStdin = False, home: Home = None, as_json: AsJson = False) -> None:
    """Change a user's password; open sessions of the user end."""
    with command(home, as_json) as run:
        users = run.catchment.users
        # Checked before asking for a password twice.
        if users.find(name) is None:
            raise InputError(f"There is no user {name}.", hint="`catchment user list` shows them.")
        user = users.set_password(name, _password(run.out, from_stdin=password_stdin))
        run.out.value(_facts(user), [f"{user.name} has a new password."])


@group.command()
def role(
    name: Name,
    role: Annotated[RoleName, typer.Argument(help=_ROLES)],
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Change a user's role; open sessions of the user end."""
    with command(home, as_json) as run:
        user = run.catchment.users.set_role(name, Role[role.name])
        run.out.value(_facts(user), [f"{user.name} is {role} now."])


@group.command()
def tenant(
    name: Name,
    tenant: Annotated[
        str,
        typer.Argument(help="Tenant such as `t7`: the user sees only its tables; or `none`.", metavar="TENANT|none"),
    ],
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Assign a user to a tenant, or to none; open sessions of the user end."""
    with command(home, as_json) as run:
        user = run.catchment.users.set_tenant(name, None if tenant == _NO_TENANT else TenantId.parse(tenant))
        run.out.value(_facts(user), [f"{user.name} is {_role(user)}{_of_tenant(user) or ' of no tenant'} now."])


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
        # More than is allowed, so that a longer one is refused and not cut.
        line = sys.stdin.buffer.readline(PASSWORD_BYTES_MAX + 3)
        try:
            return line.decode().removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError:
            raise InputError("The password is not UTF-8.") from None
    first = out.ask_hidden("Password: ")
    if first is None:
        raise InputError("There is no terminal to ask for a password on.", hint="Pipe it in with --password-stdin.")
    if out.ask_hidden("Repeat the password: ") != first:
        raise InputError("The two passwords differ; nothing was changed.")
    return first
