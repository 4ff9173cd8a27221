"""The layout of the views in Redis: names of keys, and members that sort like rows.

All keys of a cell share its name in braces, so that a Redis cluster stores them on one node:

```
yard:{main}:current            the current generation; none means 1
yard:{main}:last               the last generation that was begun
yard:{main}:ticks              stream: positions that were reached, newest last
yard:{main}:g1:head            layout, position, counts of changes and of writes
yard:{main}:g1:notes           hash: the writer's notes by name
yard:{main}:g1:changes         stream: change sets, for watches
yard:{main}:g1:row:task        hash: rows by key
yard:{main}:g1:idx:task        hash: facets and member of each row
yard:{main}:g1:all:task        sorted set: all rows in order
yard:{main}:g1:by:task:5.phase=pending    sorted set: the rows that have a facet, in order
yard:{main}:g1:key:task        sorted set: all rows by key, for kinds with a different order
yard:{main}:g1:shared:facts    hash: values that the rows of a job share; also shared:run
```

Members of the sorted sets have score 0, so Redis sorts them by their bytes. A member is the order
and key of a row, encoded so that the bytes sort like (order, key).
"""

from functools import lru_cache
from hashlib import sha256
from typing import Final

from yardmaster_projections.rows import Facet, Order, Row

#: The most characters of a facet's value in a key. A longer value, or one that is not printable
#: ASCII, is replaced by its digest.
MAX_FACET: Final = 200
MAX_CACHED_FACETS: Final = 65_536
_DIGEST: Final = "sha256:"
_SHIFT: Final = 1 << 63
#: The space whose keys do not contain the name of a space.
VIEWS: Final = "views"
#: Sorts after every character of UTF-8.
END: Final = b"\xff"


class Keys:
    """Names of the Redis keys of one generation of a cell's views."""

    __slots__ = ("changes", "generation", "head", "notes", "prefix")

    def __init__(self, cell: str, generation: int) -> None:
        self.generation = generation
        self.prefix = f"{root(cell)}g{generation}:"
        self.head = f"{self.prefix}head"
        self.notes = f"{self.prefix}notes"
        self.changes = f"{self.prefix}changes"

    def rows(self, kind: type[Row]) -> str:
        """The name of the hash of all rows: key of the row -> the encoded row."""
        return f"{self.prefix}row:{kind.KIND}"

    def shared(self, name: str) -> str:
        """The name of the hash of the values that rows of a job share: job id -> encoded values."""
        return f"{self.prefix}shared:{name}"

    def index(self, kind: type[Row]) -> str:
        """The name of the hash of index entries: key of the row -> its facets and its member."""
        return f"{self.prefix}idx:{kind.KIND}"

    def all(self, kind: type[Row]) -> str:
        """The name of the sorted set of all rows, sorted by the order of their kind."""
        return f"{self.prefix}all:{kind.KIND}"

    def by_key(self, kind: type[Row]) -> str:
        """The name of the sorted set of all rows, sorted by row key."""
        return f"{self.prefix}key:{kind.KIND}"

    def having(self, kind: type[Row], facet: str) -> str:
        """The name of the sorted set of the rows that have a facet, sorted like `all`.

        `facet` is a result of `facet_name`.
        """
        return f"{self.prefix}by:{kind.KIND}:{facet}"


def namespace(cell: str, space: str) -> str:
    """The namespace of a cell's keys in one space (`VIEWS`: the cell itself, else `cell/space`)."""
    return cell if space == VIEWS else f"{cell}/{space}"


def cell_of(namespace: str) -> str:
    """The cell in a namespace: `main` of `main/usage`."""
    return namespace.partition("/")[0]


def root(namespace: str) -> str:
    """The prefix of the names of all keys of a namespace."""
    cell, _, space = namespace.partition("/")
    return f"yard:{{{cell}}}:{space}:" if space else f"yard:{{{cell}}}:"


def current(cell: str) -> str:
    """The name of the key that has the number of the current generation."""
    return f"{root(cell)}current"


def last(cell: str) -> str:
    """The name of the key that has the number of the newest generation."""
    return f"{root(cell)}last"


def ticks(cell: str) -> str:
    """The name of the stream of positions, which callers that wait for a position read."""
    return f"{root(cell)}ticks"


@lru_cache(MAX_CACHED_FACETS)
def facet_name(facet: Facet) -> str:
    """A facet as part of a key: printable, of bounded length, unique."""
    name, value = facet
    plain = len(value) <= MAX_FACET and value.isascii() and value.isprintable()
    if not plain or value.startswith(_DIGEST):
        value = _DIGEST + sha256(value.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{len(name)}.{name}={value}"


def order_bytes(order: Order) -> bytes:
    """An order as bytes; the bytes of several orders sort like the orders."""
    number, name, index = order
    return b"%016x%b\0%016x" % (number + _SHIFT, text_bytes(name), index + _SHIFT)


def text_bytes(text: str) -> bytes:
    """A name within a member, escaped so that its terminator does not occur in it."""
    return text.encode("utf-8", "surrogatepass").replace(b"\0", b"\0\xff")


def number_bytes(number: int) -> bytes:
    """The lowest bytes of an order with this number."""
    return b"%016x" % (number + _SHIFT)


def member_of(row: Row) -> bytes:
    """The member of a row in sorted sets."""
    return order_bytes(row.order) + row.key.encode("utf-8", "surrogatepass")


def key_of(member: bytes) -> str:
    """The key of the row of a member."""
    at = 16
    while True:
        at = member.index(b"\0", at) + 1
        if member[at : at + 1] != END:
            return member[at + 16 :].decode("utf-8", "surrogatepass")


def ordered_by_key(kind: type[Row]) -> bool:
    """Whether lists of a kind are sorted by key."""
    return kind.order is Row.order


def plain(kind: type[Row]) -> bool:
    """Whether rows of a kind are sorted by key and have no facets."""
    return ordered_by_key(kind) and kind.facets is Row.facets


def by_key(key: str, member: bytes) -> bytes:
    """The member of a row in the set that is sorted by key."""
    return b"%b\0%b" % (key.encode("utf-8", "surrogatepass"), member)


def member_by_key(found: bytes) -> bytes:
    """The member in the other sets, given the member in the set that is sorted by key."""
    return found.partition(b"\0")[2]
