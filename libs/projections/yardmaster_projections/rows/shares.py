"""Rows of the shares of the queues of a pool."""

from dataclasses import dataclass
from typing import ClassVar

from yardmaster_projections.rows.row import Facet, Row
from yardmaster_schemas.events.decisions import QueueShare


@dataclass(frozen=True, slots=True, kw_only=True)
class SharesRow(Row):
    """A part of the newest division of a pool among its queues, as the scheduler recorded it."""

    KIND: ClassVar[str] = "shares"

    pool: str
    part: int
    queues: tuple[QueueShare, ...]
    at_ms: int
    cycle: int

    @property
    def key(self) -> str:
        """Pool and part."""
        return shares_key(self.pool, self.part)

    @property
    def facets(self) -> tuple[Facet, ...]:
        """The pool."""
        return (("pool", self.pool),)


def shares_key(pool: str, part: int) -> str:
    """The key of a part; keys sort like the parts."""
    return f"{pool}/{part:06d}"
