"""How the views are laid out in Redis: names of keys, and members that sort like rows.

All keys of a cell share its name in braces, so that a cluster of Redis keeps them together:

```
yard:{main}:current            the generation that is read and written; none means 1
yard:{main}:last               the last generation that was begun
yard:{main}:ticks              stream: a position was reached, newest last; what waiters listen to
yard:{main}:g1:head            position, changes counted so far, writes counted so far
yard:{main}:g1:notes           hash: the writer's notes by name
yard:{main}:g1:changes         stream: change sets, for watches
yard:{main}:g1:row:task        hash: rows by key
yard:{main}:g1:idx:task        hash: where a row stands in the sorted sets below, to take it out
yard:{main}:g1:all:task        sorted set: all rows in order
yard:{main}:g1:by:task:5.phase=pending    sorted set: the rows that have a facet, in order
yard:{main}:g1:key:task        sorted set: all rows by key, where that is another order
yard:{main}:g1:shared:facts    hash: what the rows of a job share, by job; likewise shared:run
```

Sorted sets hold members of score 0, which Redis sorts by their bytes. A member is a row's order and
key written so that bytes sort as (order, key) does.
"""

from functools import lru_cache
from hashlib import sha256
from typing import Final

from yardmaster_projections.rows import Facet, Order, Row

#: A facet's value longer than this, or of other than printable ASCII, is named by its digest.
MAX_FACET: Final = 200
MAX_CACHED_FACETS: Final = 65_536
_DIGEST: Final = "sha256:"
_SHIFT: Final = 1 << 63
#: The space whose keys need no name of their own.
VIEWS: Final = "views"
#: Sorts after every character of UTF-8.
END: Final = b"\xff"


class Keys:
    """Names of one generation's keys."""

    __slots__ = ("changes", "generation", "head", "notes", "prefix")

    def __init__(self, cell: str, generation: int) -> None:
        self.generation = generation
        self.prefix = f"{root(cell)}g{generation}:"
        self.head = f"{self.prefix}head"
        self.notes = f"{self.prefix}notes"
        self.changes = f"{self.prefix}changes"

    def rows(self, kind: type[Row]) -> str:
        """Rows by key."""
        return f"{self.prefix}row:{kind.KIND}"

    def shared(self, name: str) -> str:
        """What the rows of a job share, by job."""
        return f"{self.prefix}shared:{name}"

    def index(self, kind: type[Row]) -> str:
        """Where each row stands."""
        return f"{self.prefix}idx:{kind.KIND}"

    def all(self, kind: type[Row]) -> str:
        """All rows, in order."""
        return f"{self.prefix}all:{kind.KIND}"

    def by_key(self, kind: type[Row]) -> str:
        """All rows, by key."""
        return f"{self.prefix}key:{kind.KIND}"

    def having(self, kind: type[Row], facet: str) -> str:
        """The rows that have a facet, in order; `facet` as `facet_name` writes it."""
        return f"{self.prefix}by:{kind.KIND}:{facet}"


def namespace(cell: str, space: str) -> str:
    """Names a cell's views, or what else is kept of the cell beside them (`space`)."""
    return cell if space == VIEWS else f"{cell}/{space}"


def cell_of(namespace: str) -> str:
    """The cell that a place is of."""
    return namespace.partition("/")[0]


def root(namespace: str) -> str:
    """What all keys of a place begin with."""
    cell, _, space = namespace.partition("/")
    return f"yard:{{{cell}}}:{space}:" if space else f"yard:{{{cell}}}:"


def current(cell: str) -> str:
    """Which generation counts."""
    return f"{root(cell)}current"


def last(cell: str) -> str:
    """The newest generation's number."""
    return f"{root(cell)}last"


def ticks(cell: str) -> str:
    """What waiters listen to."""
    return f"{root(cell)}ticks"


@lru_cache(MAX_CACHED_FACETS)
def facet_name(facet: Facet) -> str:
    """A facet as part of a key: printable, of bounded length, no two alike."""
    name, value = facet
    plain = len(value) <= MAX_FACET and value.isascii() and value.isprintable()
    if not plain or value.startswith(_DIGEST):
        value = _DIGEST + sha256(value.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{len(name)}.{name}={value}"


def order_bytes(order: Order) -> bytes:
    """An order whose bytes sort as it does, and before those of any key that follows."""
    number, name, index = order
    return b"%016x%b\0%016x" % (number + _SHIFT, text_bytes(name), index + _SHIFT)


def text_bytes(text: str) -> bytes:
    """A name within a member; what ends it does not occur in it."""
    return text.encode("utf-8", "surrogatepass").replace(b"\0", b"\0\xff")


def number_bytes(number: int) -> bytes:
    """The least bytes of an order with this number."""
    return b"%016x" % (number + _SHIFT)


def member_of(row: Row) -> bytes:
    """What stands for a row in sorted sets."""
    return order_bytes(row.order) + row.key.encode("utf-8", "surrogatepass")


def key_of(member: bytes) -> str:
    """The key of the row that a member stands for."""
    at = 16
    while True:
        at = member.index(b"\0", at) + 1
        if member[at : at + 1] != END:
            return member[at + 16 :].decode("utf-8", "surrogatepass")


def ordered_by_key(kind: type[Row]) -> bool:
    """Whether lists of a kind are in the order of keys."""
    return kind.order is Row.order


def plain(kind: type[Row]) -> bool:
    """Whether a row's key says all of where it stands: no order of its own, no facets."""
    return ordered_by_key(kind) and kind.facets is Row.facets


def by_key(key: str, member: bytes) -> bytes:
    """What stands for a row in the set that is sorted by key."""
    return b"%b\0%b" % (key.encode("utf-8", "surrogatepass"), member)


def member_by_key(found: bytes) -> bytes:
    """The row's member in the other sets, of one in the set that is sorted by key."""
    return found.partition(b"\0")[2]
