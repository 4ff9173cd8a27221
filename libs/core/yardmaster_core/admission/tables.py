"""Tables of rows by name, with an incremental digest, and drafts that cost only their changes.

Quota judges each request on a state that includes the verdicts on earlier requests, before these
verdicts are appended. This draft of the state is an overlay of tables. Rows are immutable, so an
overlay holds only the rows that differ from its base. A copy of the state would cost as much as all
jobs ever admitted, in every cycle. An undo log would change the state in place, and each code path
would have to undo its changes.
"""

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from yardmaster_core.digests import MODULUS, row_hash

R = TypeVar("R")


class Table(Generic[R]):
    """Immutable rows by name; a draft shows the rows of its base, except the rows it changed.

    `line` gives a row's canonical text. The digest is a sum of hashes of (kind, name, line) modulo
    2^256, so neither the order of changes nor their division into cycles matters. It is updated
    only on request, so a row that changed many times is hashed once.
    """

    __slots__ = ("_base", "_changed", "_line", "_rows", "_sum", "kind")

    def __init__(
        self, kind: str, line: Callable[[R], str], base: "Table[R] | None" = None, total: int = 0
    ) -> None:
        self.kind = kind
        self._line = line
        self._base = base
        self._rows: dict[str, R | None] = {}
        #: Name -> the row that `_sum` counts for it.
        self._changed: dict[str, R | None] = {}
        self._sum = total

    def __len__(self) -> int:
        """Return the number of rows; a draft does not know its number."""
        assert self._base is None
        return len(self._rows)

    def draft(self) -> "Table[R]":
        """Return an overlay, whose changes do not change this table.

        Do not change this table while the overlay is used.
        """
        return Table(self.kind, self._line, self, self.total())

    def get(self, name: str) -> R | None:
        """Return the row with this name, or None."""
        if self._base is None:
            return self._rows.get(name)
        return self._rows[name] if name in self._rows else self._base.get(name)

    def put(self, name: str, row: R | None) -> None:
        """Replace a row; None removes it."""
        if name not in self._changed:
            self._changed[name] = self.get(name)
        if row is None and self._base is None:
            self._rows.pop(name, None)
        else:
            self._rows[name] = row

    def total(self) -> int:
        """The sum of the rows' hashes, modulo 2^256."""
        if not self._changed:
            return self._sum
        total = self._sum
        for name, counted in self._changed.items():
            row = self.get(name)
            if row is counted:
                continue
            if counted is not None:
                total -= self._hash(name, counted)
            if row is not None:
                total += self._hash(name, row)
        self._changed.clear()
        self._sum = total % MODULUS
        return self._sum

    def items(self) -> Iterator[tuple[str, R]]:
        """Yield all rows in name order, for snapshots: a pass over everything; not for a draft."""
        assert self._base is None
        for name in sorted(self._rows):
            row = self._rows[name]
            assert row is not None
            yield name, row

    def _hash(self, name: str, row: R) -> int:
        text = f"{self.kind}\0{name}\0{self._line(row)}"
        return row_hash(text)
