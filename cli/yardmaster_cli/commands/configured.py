"""`yard cell`, `yard pools`, `yard projects`, `yard departments`: list, show, create, set, delete.

The last three groups differ only in their `ConfiguredKind`; `group` builds the commands of one.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import click
from pydantic import TypeAdapter, ValidationError

from yardmaster_cli.errors import BadUsage, first_error
from yardmaster_cli.key_values import CELL, DEPARTMENT, POOL, PROJECT, Key, listed, overlay
from yardmaster_cli.output.columns import POOLS, department_columns, project_columns
from yardmaster_cli.output.formats import Column
from yardmaster_cli.policy_spec import policy_problem
from yardmaster_cli.server.remote import Refused, Remote, creating, plain, rows
from yardmaster_cli.session import FIELDS, NounGroup, Session, YardCommand, if_match_option
from yardmaster_schemas.api import CellConfig, DepartmentConfig, PoolConfig, ProjectConfig

#: The most objects that one request lists; a cell has fewer.
_PAGE: Final = 1000


@dataclass(frozen=True, slots=True)
class ConfiguredKind:
    """A kind of object that has a configuration of KEY=VALUE pairs.

    Attributes:
        noun: the name of one object, as in the client's `put_NOUN`; the command group is NOUNs.
        config: parses a configuration.
        new: the configuration that `create` starts from.
        keys: the keys that `create` and `set` accept.
        columns: the columns of the list, with the numbers of one pool; None: of all pools together.
        lists: the help of `ls`.
        unused: when an object may be deleted, for the help of `delete`.
        by_pool: `ls --pool` shows the numbers of one pool.
        by_department: `ls --department` shows the objects of one department.
    """

    noun: str
    config: TypeAdapter[Any]
    new: Mapping[str, Any]
    keys: Mapping[str, Key]
    columns: Callable[[str | None], Sequence[Column]]
    lists: str
    unused: str
    by_pool: bool = False
    by_department: bool = False

    def parse(self, body: Mapping[str, Any], pairs: Sequence[str]) -> Any:
        """Return `body` with `pairs` applied, as the client sends it.

        Raises:
            BadUsage: an unknown key, or a value that its key does not accept.
        """
        return parsed(self.config, self.keys, body, pairs)


def parsed(
    config: TypeAdapter[Any], keys: Mapping[str, Key], body: Mapping[str, Any], pairs: Sequence[str]
) -> Any:
    """Return `body` with `pairs` applied, as a configuration.

    Raises:
        BadUsage: an unknown key, or a value that its key does not accept.
    """
    try:
        return config.validate_json(json.dumps(overlay(body, pairs, keys)))
    except ValidationError as error:
        raise BadUsage(first_error(error)) from None


class _KeysCommand(YardCommand):
    """A command with KEY=VALUE arguments; its help lists the keys before the options."""

    keys: Mapping[str, Key]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Print the keys, then the options."""
        with formatter.section("Keys"):
            formatter.write_dl(
                [(f"{name}={key.value}", key.about) for name, key in listed(self.keys).items()]
            )
        super().format_options(ctx, formatter)


def group(kind: ConfiguredKind) -> click.Group:
    """Build `yard NOUNs` with its five commands."""
    noun = kind.noun
    with_keys = type("_KeysCommand", (_KeysCommand,), {"keys": kind.keys})
    nouns = f"{noun}s"
    found = NounGroup(nouns, help=f"List {nouns}; show, create, set, delete.")
    name = click.argument("name")
    if_match = if_match_option("Change", noun)

    def ls(session: Session, **filters: str | None) -> None:
        pool = filters.pop("pool", None)
        page = getattr(session.remote.client, nouns)(limit=_PAGE, **filters)
        columns = kind.columns(pool)
        session.out.items(rows(page.items), columns, name="name", document=plain(page))

    if kind.by_department:
        ls = click.option("--department", metavar="NAME", help=f"List {nouns} of this department.")(
            ls
        )
    if kind.by_pool:
        ls = click.option("--pool", metavar="NAME", help="Show the numbers of this pool.")(ls)
    found.command("ls", help=kind.lists)(ls)

    @found.command("show", help=f"Show a {noun}.\n\n{FIELDS}")
    @name
    def show(session: Session, name: str) -> None:
        session.out.whole(plain(getattr(session.remote.client, noun)(name)), "name")

    @found.command("create", cls=with_keys, help=f"Create a {noun}.")
    @name
    @click.argument("pairs", nargs=-1, metavar="[KEY=VALUE]...")
    def create(session: Session, name: str, pairs: tuple[str, ...]) -> None:
        remote = session.remote
        config = kind.parse(kind.new, pairs)
        with creating(noun, name):
            accepted = getattr(remote.client, f"put_{noun}")(name, config, create=True)
        with naming_the_option(config):
            remote.await_verdict(accepted, name, session.out)
        session.out.say(name)

    @found.command(
        "set", cls=with_keys, help=f"Change keys of a {noun}; the others keep their values."
    )
    @name
    @click.argument("pairs", nargs=-1, required=True, metavar="KEY=VALUE...")
    @if_match
    def change(session: Session, name: str, pairs: tuple[str, ...], if_match: str | None) -> None:
        remote = session.remote
        # The ETag is read before the configuration: the server then refuses this write if another
        # change came in between.
        tag = if_match or remote.client.etag(f"/v1/{nouns}/{name}")
        body = plain(getattr(remote.client, noun)(name))["config"]
        config = kind.parse(body, pairs)
        accepted = getattr(remote.client, f"put_{noun}")(name, config, if_match=tag)
        with naming_the_option(config):
            remote.await_verdict(accepted, name, session.out)
        session.out.say(name)

    @found.command("delete", help=f"Delete a {noun} {kind.unused}.")
    @name
    @if_match_option("Delete", noun)
    def delete(session: Session, name: str, if_match: str | None) -> None:
        remote = session.remote
        accepted = getattr(remote.client, f"delete_{noun}")(name, if_match=if_match)
        remote.await_verdict(accepted, name, session.out)
        session.out.say(name)

    return found


@contextmanager
def naming_the_option(config: Any) -> Iterator[None]:
    """Add a hint about the wrong policy to a refusal of `config` within this context.

    Raises:
        Refused: the server refused the configuration.
    """
    try:
        yield
    except Refused as refused:
        if isinstance(config, PoolConfig) and refused.code.startswith("policy_"):
            refused.hint = policy_problem(config)
        raise


_POOLS = ConfiguredKind(
    noun="pool",
    config=TypeAdapter(PoolConfig),
    new={"policy": {"name": "priority"}},
    keys=POOL,
    columns=lambda _: POOLS,
    lists="List pools with their policies.",
    unused="that no node, project or job refers to",
)
_PROJECTS = ConfiguredKind(
    noun="project",
    config=TypeAdapter(ProjectConfig),
    new={"department": "default"},
    keys=PROJECT,
    columns=project_columns,
    lists="List projects with their used and pending GPUs and their limits.",
    unused="whose jobs have all ended",
    by_pool=True,
    by_department=True,
)
_DEPARTMENTS = ConfiguredKind(
    noun="department",
    config=TypeAdapter(DepartmentConfig),
    new={},
    keys=DEPARTMENT,
    columns=department_columns,
    lists="List departments with their used and pending GPUs.",
    unused="that no project or department is in",
    by_pool=True,
)

#: The kinds by plural name. A kind comes after the kinds that its objects name.
KINDS: Final[Mapping[str, ConfiguredKind]] = {
    "pools": _POOLS,
    "departments": _DEPARTMENTS,
    "projects": _PROJECTS,
}
pools, departments, projects = (group(kind) for kind in KINDS.values())


def everything(remote: Remote, nouns: str) -> dict[str, Any]:
    """Read all pages of a kind and return its objects by name."""
    found: dict[str, Any] = {}
    cursor: str | None = None
    while True:
        page = getattr(remote.client, nouns)(limit=_PAGE, cursor=cursor)
        found |= {item.name: item for item in page.items}
        cursor = page.next_cursor
        if cursor is None:
            return found


cell = NounGroup("cell", help="Show or set what applies to the whole cell.")


@cell.command("show", help=f"Show the configuration of the cell.\n\n{FIELDS}")
def show_cell(session: Session) -> None:
    """Show the configuration of the cell."""
    session.out.whole(plain(session.remote.client.cell()), "name")


@cell.command(
    "set",
    cls=type("_KeysCommand", (_KeysCommand,), {"keys": CELL}),
    help="Change keys of the cell; the others keep their values.",
)
@click.argument("pairs", nargs=-1, required=True, metavar="KEY=VALUE...")
@if_match_option("Change", "cell")
def set_cell(session: Session, pairs: tuple[str, ...], if_match: str | None) -> None:
    """Change keys of the cell."""
    remote = session.remote
    tag = if_match or remote.client.etag("/v1/cell")
    found = plain(remote.client.cell())
    config = parsed(TypeAdapter(CellConfig), CELL, found["config"], pairs)
    remote.await_verdict(remote.client.put_cell(config, if_match=tag), "cell", session.out)
    session.out.say(found["name"])
