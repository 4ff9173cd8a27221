"""`yard users`: list, add, grant, revoke, rotate, remove."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, Final, TypeVar, cast

import click

from yardmaster.errors import ApiError
from yardmaster_cli.errors import BadUsage, CliError, Exit
from yardmaster_cli.output.cells import span
from yardmaster_cli.output.formats import Column, Row
from yardmaster_cli.server.remote import plain, rows
from yardmaster_cli.session import NounGroup, Session
from yardmaster_localcluster.data_lock import replace_token
from yardmaster_schemas.api import NewUser, RoleGiven, RolesChange, TokenIssued, TokenOrder
from yardmaster_schemas.durations import duration_s
from yardmaster_schemas.events.users import RoleName, Scope

#: The lifetime of a new token, and for how long the user's older tokens stay valid.
LIFETIME: Final = "90d"
OVERLAP: Final = "1m"
NEVER: Final = "never"

_Command = TypeVar("_Command", bound=Callable[..., Any])

users = NounGroup("users", help="List users; add, grant, revoke, rotate, remove.")


@dataclass(frozen=True, slots=True)
class _Roles:
    """The options that name one role in one or several scopes."""

    role: str | None
    cell: bool
    departments: tuple[str, ...]
    projects: tuple[str, ...]

    @property
    def scoped(self) -> bool:
        """Whether a scope is named."""
        return bool(self.cell or self.departments or self.projects)

    def given(self, session: Session) -> list[RoleGiven]:
        """The role in each named scope.

        Raises:
            BadUsage: no scope is named.
        """
        if not self.scoped:
            raise BadUsage(
                "where does the role hold?", hint="add --project NAME, --department NAME or --cell"
            )
        scopes = [(Scope.PROJECT, name) for name in self.projects]
        scopes += [(Scope.DEPARTMENT, name) for name in self.departments]
        if self.cell:
            scopes.append((Scope.CELL, session.remote.client.version().cell))
        return [
            RoleGiven(role=RoleName(str(self.role)), scope=scope, name=name)
            for scope, name in scopes
        ]


def _role_options(required: bool) -> Callable[[_Command], _Command]:
    """Add the options of `_Roles`, which the command gets as `roles`."""

    def add(command: _Command) -> _Command:
        @wraps(command)
        def with_roles(
            *args: Any,
            role: str | None,
            cell: bool,
            departments: tuple[str, ...],
            projects: tuple[str, ...],
            **given: Any,
        ) -> Any:
            return command(*args, roles=_Roles(role, cell, departments, projects), **given)

        wrapped: Any = with_roles
        for option in (
            click.option("--cell", is_flag=True, help="The role holds in the whole cell."),
            click.option(
                *("--department", "departments"),
                multiple=True,
                metavar="NAME",
                help="The role holds in this department; may be repeated.",
            ),
            click.option(
                *("-p", "--project", "projects"),
                multiple=True,
                metavar="NAME",
                help="The role holds in this project; may be repeated.",
            ),
            click.option(
                "--role",
                required=required,
                type=click.Choice([role.value for role in RoleName]),
                metavar="ROLE",
                help=f"Role: {', '.join(role.value for role in RoleName)}.",
            ),
        ):
            wrapped = option(wrapped)
        return cast("_Command", wrapped)

    return add


def _lifetime_s(option: str, text: str) -> int | None:
    """The seconds of a duration; None for `never`.

    Raises:
        BadUsage.
    """
    if text == NEVER:
        return None
    return _seconds(option, text, least=1)


def _seconds(option: str, text: str, least: int = 0) -> int:
    try:
        found = duration_s(text)
    except ValueError as error:
        raise BadUsage(f"{option}: {error}") from None
    if found < least:
        raise BadUsage(f"{option}: {text} is too short", hint=f"write at least {least}s")
    return found


def _role_words(row: Row) -> str:
    return ", ".join(f"{r['role']} of {r['scope']} {r['name']}" for r in row["roles"])


def _token_words(row: Row) -> str:
    return ", ".join(
        f"{t['id']} until {t['expires_at'][:10]}" if t["expires_at"] else t["id"]
        for t in row["tokens"]
    )


_COLUMNS: Final = (
    Column("NAME", lambda row: row["name"]),
    Column("ROLES", lambda row: _role_words(row) or None),
    Column("TOKENS", lambda row: _token_words(row) or None),
)


@users.command("ls")
def ls(session: Session) -> None:
    """List users with their roles and valid tokens.

    A user that is no operator sees only itself.
    """
    page = session.remote.client.users(limit=1000)
    session.out.items(rows(page.items), _COLUMNS, name="name", document=plain(page))


@users.command("add")
@click.argument("name")
@_role_options(required=True)
@click.option(
    "--expires",
    default=LIFETIME,
    metavar="DURATION",
    help=f"Lifetime of the token, or {NEVER}; default: {LIFETIME}.",
)
def add(
    session: Session,
    name: str,
    roles: _Roles,
    expires: str,
) -> None:
    """Add a user with a role.

    It prints the token, which is not shown again. Give the token to the user in a safe way; the
    user saves it with yard login.
    """
    lifetime_s = _lifetime_s("--expires", expires)
    given = roles.given(session)
    remote = session.remote
    # The name is checked by the server, whose error says what is wrong with it.
    body = NewUser.model_construct(name=name, roles=given, lifetime_s=lifetime_s)
    try:
        issued = remote.client.add_user(body)
    except ApiError as error:
        if error.document["code"] != "already_exists":
            raise
        raise CliError(
            f"user {name} already exists",
            exit_code=Exit.CONFLICT,
            hint=f"yard users grant {name} adds a role, yard users rotate {name} makes a new token",
        ) from None
    remote.await_verdict(issued, name, session.out)
    _show(session, name, issued)
    ends = "does not expire" if lifetime_s is None else f"expires in {span(lifetime_s)}"
    session.out.note(f"{name}: token {issued.token_id} {ends}; it is not shown again")


def _show(session: Session, name: str, issued: TokenIssued) -> None:
    shown = {"name": name, "token_id": issued.token_id, "token": issued.token}
    session.out.one(shown, lambda: [issued.token], "token_id")


@users.command("grant")
@click.argument("name")
@_role_options(required=True)
def grant(
    session: Session,
    name: str,
    roles: _Roles,
) -> None:
    """Give a user one more role."""
    change = RolesChange(roles=roles.given(session))
    remote = session.remote
    remote.await_verdict(remote.client.grant_roles(name, change), name, session.out)
    session.out.say(name)


@users.command("revoke")
@click.argument("name")
@_role_options(required=False)
@click.option("--token", "token_id", metavar="ID", help="End this token, instead of a role.")
def revoke(
    session: Session,
    name: str,
    roles: _Roles,
    token_id: str | None,
) -> None:
    """Take a role from a user, or end one of its tokens."""
    remote = session.remote
    named = roles.role is not None
    if named == (token_id is not None) or (token_id is not None and roles.scoped):
        raise BadUsage(
            "name either a role or a token",
            hint="--role ROLE with --project, --department or --cell; or --token ID",
        )
    if named:
        change = RolesChange(roles=roles.given(session))
        accepted = remote.client.revoke_roles(name, change)
    else:
        accepted = remote.client.revoke_token(name, str(token_id))
    remote.await_verdict(accepted, name, session.out)
    session.out.say(name)


@users.command("rotate")
@click.argument("name", required=False)
@click.option(
    "--expires",
    metavar="DURATION",
    help=f"Lifetime of the new token, or {NEVER}; default: that of the token before.",
)
@click.option(
    "--overlap",
    default=OVERLAP,
    metavar="DURATION",
    help=f"The tokens before stay valid for so long; default: {OVERLAP}, 0s ends them at once.",
)
def rotate(session: Session, name: str | None, expires: str | None, overlap: str) -> None:
    """Replace the tokens of a user by a new one.

    Without NAME your own are replaced, which needs no role. The overlap lets programs switch. Your
    own new token cannot live longer than the longest that you have.
    """
    remote = session.remote
    overlap_s = _seconds("--overlap", overlap)
    order: dict[str, Any] = {"overlap_s": overlap_s}
    if expires is not None:
        order["lifetime_s"] = _lifetime_s("--expires", expires)
    me = remote.client.whoami().user
    name = name or me
    issued = remote.client.issue_token(name, TokenOrder(**order))
    try:
        remote.await_verdict(issued, name, session.out)
    except ApiError as error:
        # Only an accepted rotation can have ended the token that this command itself uses.
        if name != me or overlap_s > 0 or error.document["code"] != "unauthenticated":
            raise
    _show(session, name, issued)
    ends = f"end in {span(overlap_s)}" if overlap_s else "have ended"
    session.out.note(
        f"{name}: token {issued.token_id}; it is not shown again, and the tokens before {ends}"
    )
    dev = session.config.dev
    if name == me and dev is not None and session.config.token.value == dev.token:
        replace_token(dev.folder, issued.token)
        session.out.note(f"{dev.folder}: the new token is stored")


@users.command("remove")
@click.argument("name")
def remove(session: Session, name: str) -> None:
    """Remove a user: end all its tokens and open streams. Its jobs continue."""
    remote = session.remote
    remote.await_verdict(remote.client.remove_user(name), name, session.out)
    session.out.say(name)
