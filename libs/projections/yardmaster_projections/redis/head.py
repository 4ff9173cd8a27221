"""The head of a generation: what its rows cover, and how many changes watches were told of."""

import json
from dataclasses import dataclass

from yardmaster_projections.errors import ViewsDamaged
from yardmaster_projections.redis.keys import cell_of
from yardmaster_schemas.position import Position


@dataclass(frozen=True, slots=True)
class Head:
    """Written with every change; two that are equal say that nothing was written between."""

    position: Position
    #: Where the newest change set that watches are told of leads.
    watched: Position
    #: Changes in all sets so far, kept or not.
    total: int = 0
    #: Transactions so far.
    writes: int = 0
    #: The least number that a change of a set that is kept has; changes are counted from 1.
    kept: int = 1

    @classmethod
    def start(cls, cell: str) -> "Head":
        """Of a generation in which nothing was written."""
        position = Position.start(cell_of(cell))
        return cls(position, position)

    @classmethod
    def load(cls, cell: str, raw: bytes | None) -> "Head":
        """What Redis holds.

        Raises: ViewsDamaged.
        """
        if raw is None:
            return cls.start(cell)
        try:
            position, watched, *counts = json.loads(raw)
            total, writes, kept = map(int, counts)
            head = cls(Position.parse(position), Position.parse(watched), total, writes, kept)
        except (ValueError, TypeError) as error:
            raise ViewsDamaged(kind="head", found=str(error)) from None
        return head

    def dump(self) -> bytes:
        """What Redis is given."""
        counts = (self.total, self.writes, self.kept)
        parts = [str(self.position), str(self.watched), *counts]
        return json.dumps(parts).encode()
