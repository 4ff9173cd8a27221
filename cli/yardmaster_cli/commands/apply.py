"""`yard apply` and `yard diff`: the cell, pools, departments and projects in one file.

Departments are applied after their parents, in whatever order the file has them.

An object in the file gets exactly the configuration that the file contains: a key that the file
omits has the value that `create` gives it. Objects that the file does not name are not changed.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, TypeVar

import click
from pydantic import TypeAdapter

from yardmaster import yaml_tree
from yardmaster.errors import ApiError
from yardmaster.yaml_tree import Tree
from yardmaster_cli.commands.configured import KINDS, everything, naming_the_option, parsed
from yardmaster_cli.errors import BadUsage, Exit
from yardmaster_cli.input_file import text_of
from yardmaster_cli.key_values import CELL, Key, canonical, overlay, quota_texts, texts_of
from yardmaster_cli.output.formats import Column
from yardmaster_cli.server.remote import Remote, api_error, creating
from yardmaster_cli.session import Session, command
from yardmaster_schemas.api import CellConfig
from yardmaster_schemas.events.requests import Quota

T = TypeVar("T")
_CELL: Final = "cell"
#: The parser of each kind's configuration. An object is applied after the objects that it names:
#: pools come before the cell, which names pools.
_CONFIGS: Final[Mapping[str, TypeAdapter[Any]]] = {
    "pools": KINDS["pools"].config,
    _CELL: TypeAdapter(CellConfig),
    **{nouns: kind.config for nouns, kind in KINDS.items() if nouns != "pools"},
}
_COLUMNS: Final = (
    Column("KIND", lambda row: row["kind"]),
    Column("NAME", lambda row: row["name"]),
    Column("FIELD", lambda row: row["field"]),
    Column("NOW", lambda row: row["now"]),
    Column("FILE", lambda row: f"{row['file']} (default)" if row["default"] else row["file"]),
)


@dataclass(frozen=True, slots=True)
class _Entry:
    """An object of the file: its configuration, and the keys that the file names."""

    config: Any
    named: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Object:
    """An object of the file, and the same object on the server; a new one has no `revision`."""

    nouns: str
    name: str
    config: Any
    named: frozenset[str]
    found: Any = None
    revision: int | None = None

    @property
    def noun(self) -> str:
        return self.nouns.removesuffix("s")

    @property
    def differs(self) -> bool:
        return bool(self.config != self.found)

    @property
    def takes_quota(self) -> bool:
        """Whether the object is an existing pool whose policy changes to `quota`."""
        if self.nouns != "pools" or self.revision is None:
            return False
        return bool(self.found.policy.name != "quota" == self.config.policy.name)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield a row for each key that differs; a new object has one more row.

        The rows show values as the file writes them. A key that the file does not name has a row
        only if the server's value is not the default.
        """
        if self.revision is None:
            yield self._row(None, None, "new")
        now = {} if self.revision is None else self._texts(self.found)
        then = self._texts(self.config)
        unset = {
            f"quota.{pool}.{key}": text
            for pool in {**_quotas(self.found), **_quotas(self.config)}
            for key, text in quota_texts(asdict(Quota())).items()
        }
        for key in sorted(now.keys() | then.keys()):
            before, after = now.get(key), then.get(key)
            if before == after:
                continue
            named = key in self.named
            # If only the file or only the server has a quota, its other keys are defaults.
            if named or (before is not None and before != unset.get(key)):
                yield self._row(key, before, after, default=not named and after is not None)

    def _texts(self, config: Any) -> dict[str, str]:
        keys = CELL if self.nouns == _CELL else KINDS[self.nouns].keys
        return texts_of(_CONFIGS[self.nouns].dump_python(config, mode="json"), keys)

    def _row(
        self, key: str | None, now: str | None, then: str | None, *, default: bool = False
    ) -> dict[str, Any]:
        where = {"kind": self.noun, "name": self.name, "field": key}
        return where | {"now": now, "file": then, "default": default}

    def put(self, remote: Remote) -> Any:
        """Send the configuration; the server refuses it if the object has changed meanwhile."""
        client = remote.client
        tag = None if self.revision is None else f'"{self.revision}"'
        if self.nouns == _CELL:
            return client.put_cell(self.config, if_match=tag)
        send = getattr(client, f"put_{self.noun}")
        if tag is not None:
            return send(self.name, self.config, if_match=tag)
        with creating(self.noun, self.name):
            return send(self.name, self.config, create=True)


def _quotas(config: Any) -> Mapping[str, Any]:
    found: Mapping[str, Any] = getattr(config, "quotas", {})
    return found


def _file_option(change: Callable[..., T]) -> Callable[..., T]:
    return click.option(
        "-f",
        "--file",
        required=True,
        metavar="FILE",
        help="YAML file with the keys cell, pools, departments and projects; -: stdin.",
    )(change)


@command("diff")
@_file_option
def diff(session: Session, file: str) -> int:
    """Show how the objects of a file differ from the cell's; exit with 1 if they do.

    Changes nothing. Objects that the file does not name are not compared.
    """
    differ = _show(session, _compared(session.remote, file))
    return int(Exit.CHECK_FAILED if differ else Exit.DONE)


@command("apply")
@_file_option
@click.option("--dry-run", is_flag=True, help="Show the changes and send nothing.")
def apply(session: Session, file: str, dry_run: bool) -> None:
    """Give the objects of a file the configuration in it, and show what changed.

    A key that the file omits gets its default. Objects that the file does not name keep theirs;
    nothing is deleted. After an error the command can be repeated: it applies what is left.
    """
    remote = session.remote
    compared = _compared(remote, file)
    changes = [each for each in compared if each.differs]
    if not dry_run:
        for each in changes:
            what = f"{each.noun} {each.name}"
            try:
                accepted = each.put(remote)
            except ApiError as error:
                shown = api_error(error)
                shown.message = f"{what}: {shown.message}"
                raise shown from None
            with naming_the_option(each.config):
                remote.await_verdict(accepted, what, session.out)
    _show(session, compared)
    created = sum(each.revision is None for each in changes)
    session.out.note(
        f"{'not sent: ' if dry_run else ''}{created} created, {len(changes) - created} changed, "
        f"{len(compared) - len(changes)} unchanged"
    )


def _show(session: Session, compared: list[_Object]) -> bool:
    rows = [row for each in compared for row in each.rows()]
    session.out.items(rows, _COLUMNS, name="name")
    return bool(rows)


def _compared(remote: Remote, file: str) -> list[_Object]:
    """Compare each object of the file with the server's, in an order that can be applied."""
    compared = []
    for nouns, wanted in _entries(file).items():
        found = {_CELL: remote.client.cell()} if nouns == _CELL else everything(remote, nouns)
        configs = {name: entry.config for name, entry in wanted.items()}
        names = _parents_first(configs, found) if nouns == "departments" else wanted
        for name in names:
            entry, has = wanted[name], found.get(name)
            known = () if has is None else (has.config, has.revision)
            compared.append(_Object(nouns, name, entry.config, entry.named, *known))
    # Pools that change to `quota` come last: without stored quotas the policy would stop tasks.
    return sorted(compared, key=lambda each: each.takes_quota)


def _parents_first(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[str]:
    """The names of departments, each after the department that becomes its parent.

    Raises:
        BadUsage: a department would be a part of itself.
    """
    parents = {name: each.config.parent for name, each in found.items()}
    parents |= {name: config.parent for name, config in wanted.items()}
    ordered: dict[str, None] = {}
    for name in wanted:
        path = [name]
        while (parent := parents.get(path[-1])) is not None:
            path.append(parent)
            if parent in path[:-1]:
                raise BadUsage(
                    f"departments.{name}: it would be a part of itself: {' in '.join(path)}",
                    hint="choose another parent",
                )
        ordered |= dict.fromkeys(each for each in reversed(path) if each in wanted)
    yield from ordered


def objects_of(file: str) -> dict[str, dict[str, Any]]:
    """The configurations in a file, by kind (`cell`, `pools`, ...) and name.

    Raises:
        InputError: the file does not have this form; the error names the line.
    """
    return {
        nouns: {name: entry.config for name, entry in entries.items()}
        for nouns, entries in _entries(file).items()
    }


def _entries(file: str) -> dict[str, dict[str, _Entry]]:
    """The objects in a file, by kind and name.

    Raises:
        InputError: the file does not have this form; the error names the line.
    """
    tree = yaml_tree.read(*text_of(file))
    for key in tree.values:
        if key not in _CONFIGS:
            raise yaml_tree.unknown_key(tree, (key,), _CONFIGS)
    objects: dict[str, dict[str, _Entry]] = {}
    for nouns in _CONFIGS:
        if nouns not in tree.values:
            continue
        section = _mapping(tree, (nouns,))
        if nouns == _CELL:
            objects[nouns] = {_CELL: _entry(tree, (nouns,), {}, CELL)}
            continue
        kind = KINDS[nouns]
        objects[nouns] = {
            name: _entry(tree, (nouns, name), kind.new, kind.keys) for name in section
        }
    return objects


def _entry(
    tree: Tree, path: tuple[str, ...], new: Mapping[str, Any], keys: Mapping[str, Key]
) -> _Entry:
    """Parse the object at `path`; the file may write the key `a.b` of `set` as nested mappings."""
    body = dict(new)
    pairs = list(_flat(_mapping(tree, path)))
    # The policy comes first: another policy has other options.
    for key, value in sorted(pairs, key=lambda pair: pair[0] != "policy"):
        try:
            body = overlay(body, [f"{key}={_text(value)}"], keys)
        except BadUsage as error:
            place = tree.place((*path, *key.split(".")))
            message = f"{place}: {'.'.join(path)}: {error.message}"
            raise BadUsage(message, hint=error.hint) from None
    try:
        config = parsed(_CONFIGS[path[0]], keys, body, ())
    except BadUsage as error:
        raise tree.error(path, error.message) from None
    return _Entry(config, frozenset(canonical(key, keys) for key, _ in pairs))


def _mapping(tree: Tree, path: tuple[str, ...]) -> dict[str, Any]:
    found: Any = tree.values
    for part in path:
        found = found[part]
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise tree.error(path, "expected a mapping of keys to values")
    return found


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value that is not a mapping, with its path joined by dots."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _text(value: Any) -> str:
    """A value of the file as the text of `KEY=VALUE`."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
