"""Read YAML as plain values, each with its origin: a line of a file, or a flag.

A file is read with line numbers, then flags and `--set` are applied, so that an error in the result
names its origin. PyYAML provides the position of each node. ruamel.yaml was measured as a
replacement: it costs 45 ms more processor time per command, quotes strings of `-o yaml`
differently, and shortens this module by about 20 lines.
"""

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from yardmaster.errors import InputError

Path = tuple[str | int, ...]

#: The deepest allowed nesting of mappings and lists.
MAX_DEPTH: Final = 16
#: The most nodes of a file, each alias counted as a copy: aliases must not multiply without limit.
MAX_NODES: Final = 100_000
#: YAML 1.1 reads `1e-3` as text; users mean the number.
_FLOAT: Final = re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$")
#: The prefix of top-level keys that only hold anchors, as in a compose file; they are ignored.
ANCHORS: Final = "x-"
_MERGE: Final = "tag:yaml.org,2002:merge"


class NotAMapping(InputError):
    """The document is not a mapping; it may be another kind of file."""


@dataclass(slots=True)
class Tree:
    """Plain values, and the origin of each (`places`, by path)."""

    source: str
    values: dict[str, Any] = field(default_factory=dict)
    places: dict[Path, str] = field(default_factory=dict)

    def place(self, path: Iterable[str | int]) -> str:
        """`job.yaml:12` or `--gpus`: the origin of the value at `path`, or of its parent."""
        parts = tuple(path)
        while parts:
            found = self.places.get(parts)
            if found is not None:
                return found
            parts = parts[:-1]
        return self.source

    def put(self, path: Path, value: Any, place: str) -> None:
        """Set the value at `path`; create missing mappings, and drop the values below `path`."""
        inner: dict[str, Any] = self.values
        for depth, part in enumerate(path[:-1]):
            below = inner.get(str(part))
            if not isinstance(below, dict):
                below = {}
                inner[str(part)] = below
                self.places[path[: depth + 1]] = place
            inner = below
        inner[str(path[-1])] = value
        for known in [known for known in self.places if known[: len(path)] == path]:
            del self.places[known]
        self.places[path] = place

    def error(self, path: Iterable[str | int], what: str, hint: str | None = None) -> InputError:
        """An error about the value at `path`."""
        parts = tuple(path)
        name = ".".join(str(part) for part in parts)
        return InputError(f"{self.place(parts)}: {name + ': ' if name else ''}{what}", hint=hint)


def read(text: str, source: str) -> Tree:
    """Parse a YAML document; an empty document is an empty tree.

    Merge keys (`<<: *all`) are resolved. Top-level keys with the prefix `x-` hold only anchors.

    Raises:
        InputError: the document is not YAML or not a mapping, or it repeats a key, contains itself
            or is nested too deep.
    """
    tree = Tree(source)
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        what = getattr(error, "problem", None) or "not YAML"
        place = f"{source}:{mark.line + 1}" if mark is not None else source
        raise InputError(f"{place}: {what}") from None
    except RecursionError:
        raise InputError(f"{source}: the document is nested too deep or too large") from None
    if root is None:
        return tree
    if not isinstance(root, yaml.MappingNode):
        raise NotAMapping(f"{source}: expected a mapping of keys to values")
    values = _Reader(tree).convert(root, ())
    tree.values = {key: value for key, value in values.items() if not key.startswith(ANCHORS)}
    return tree


def tree_of(values: Mapping[str, Any], source: str) -> Tree:
    """The tree of plain values; the origin of each is `source`."""
    tree = Tree(source)

    def convert(value: Any, path: Path) -> Any:
        if len(path) > MAX_DEPTH:
            raise InputError(f"{source}: the document is nested too deep or too large")
        tree.places[path] = source
        if isinstance(value, Mapping):
            return {key: convert(inner, (*path, str(key))) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [convert(inner, (*path, i)) for i, inner in enumerate(value)]
        return value

    tree.values = convert(values, ())
    return tree


class _Reader:
    """Converts the nodes of one document to values."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._scalars = yaml.SafeLoader("")
        self._nodes = 0
        #: The nodes that contain the node that is converted now.
        self._around: list[yaml.Node] = []

    def convert(self, node: yaml.Node, path: Path) -> Any:
        self._nodes += 1
        place = f"{self._tree.source}:{node.start_mark.line + 1}"
        if node in self._around:
            raise InputError(f"{place}: the value contains itself by an alias")
        # The depth is not the length of the path: a merged mapping is one level deeper than the
        # mapping into which it is merged, but has the same path.
        if len(self._around) > MAX_DEPTH or self._nodes > MAX_NODES:
            raise InputError(f"{place}: the document is nested too deep or too large")
        self._tree.places.setdefault(path, place)
        if isinstance(node, yaml.MappingNode | yaml.SequenceNode):
            self._around.append(node)
            found: Any
            if isinstance(node, yaml.MappingNode):
                found = self._mapping(node, path)
            else:
                found = [self.convert(inner, (*path, i)) for i, inner in enumerate(node.value)]
            self._around.pop()
            return found
        try:
            return number(self._scalars.construct_object(node))
        except yaml.YAMLError:
            raise InputError(f"{place}: the tag {node.tag} is not supported") from None
        except ValueError as error:
            # The text looks like a date or a number, but is not valid.
            problem = f"{place}: {node.value[:64]}: {error}"
            raise InputError(problem, hint="put a text in quotes") from None

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        values: dict[str, Any] = {}
        merged: list[yaml.Node] = []
        for key_node, value_node in node.value:
            place = f"{self._tree.source}:{key_node.start_mark.line + 1}"
            if not isinstance(key_node, yaml.ScalarNode):
                raise InputError(f"{place}: expected a plain word as a key")
            key = str(key_node.value)
            if key_node.tag == _MERGE:
                several = isinstance(value_node, yaml.SequenceNode)
                merged += value_node.value if several else [value_node]
                continue
            if key in values:
                raise InputError(f"{place}: the key {key} occurs twice")
            # If a key also occurs in a merged mapping, the first place is the place of its value.
            self._tree.places.setdefault((*path, key), place)
            values[key] = self.convert(value_node, (*path, key))
        # Keys of the mapping itself take precedence over keys of merged mappings, and earlier
        # merged mappings over later ones.
        for other in merged:
            if not isinstance(other, yaml.MappingNode):
                place = f"{self._tree.source}:{other.start_mark.line + 1}"
                raise InputError(f"{place}: << takes a mapping, or a list of mappings")
            values = {**self.convert(other, path), **values}
        return values


def number(value: Any) -> Any:
    """Return `value`, with texts like `1e-3` as numbers, also in lists."""
    if isinstance(value, list):
        return [number(item) for item in value]
    if isinstance(value, str) and _FLOAT.match(value):
        return float(value)
    return value


def scalar(text: str) -> Any:
    """Parse an argument as a YAML value: a number, true or false, a list, or text."""
    try:
        return number(yaml.safe_load(text))
    except (yaml.YAMLError, ValueError, RecursionError):
        return text


def overlay(tree: Tree, sets: Iterable[str]) -> None:
    """Apply `--set a.b=VALUE` to a tree.

    Raises:
        InputError: an argument has no `=`, or an empty key.
    """
    for item in sets:
        key, equals, text = item.partition("=")
        path = tuple(key.split("."))
        if not equals or not all(path):
            raise InputError(
                f"--set {item}: expected KEY=VALUE", hint="for example: --set resources.gpus=4"
            )
        tree.put(path, scalar(text), f"--set {key}")


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that is most similar to `word`; None if no known word is similar."""
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.75)
    return found[0] if found else None


def unknown_key(tree: Tree, path: Path, known: Mapping[str, Any] | Iterable[str]) -> InputError:
    """The error for an unknown key; its hint is the nearest known key."""
    names = sorted(known)
    like = nearest(str(path[-1]), names)
    return tree.error(
        path, "unknown key", f"did you mean {like}?" if like else f"known keys: {', '.join(names)}"
    )
