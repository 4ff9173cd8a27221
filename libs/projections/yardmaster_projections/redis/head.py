"""The head of a generation: the position of its rows, and the count of changes for watches."""

import json
from dataclasses import dataclass
from typing import Final

from yardmaster_projections.errors import ViewsDamaged
from yardmaster_projections.redis.keys import cell_of
from yardmaster_schemas.position import Position

#: The version of the layout that `keys` shows. Views of another layout are refused until they are
#: rebuilt.
LAYOUT: Final = 2


@dataclass(frozen=True, slots=True)
class Head:
    """Position and counts of a generation.

    Every write changes the head: if two reads return equal heads, nothing was written in between.
    """

    position: Position
    #: The position of the newest change set.
    watched: Position
    #: The number of changes in all sets so far, also in sets that are no longer kept.
    total: int = 0
    #: The number of writes so far.
    writes: int = 0
    #: The lowest number of a change whose set is still kept; changes are numbered from 1.
    kept: int = 1

    @classmethod
    def start(cls, cell: str) -> "Head":
        """The head of an empty generation."""
        position = Position.start(cell_of(cell))
        return cls(position, position)

    @classmethod
    def load(cls, cell: str, raw: bytes | None) -> "Head":
        """Decode the head; None is the head of an empty generation.

        Raises: ViewsDamaged.
        """
        if raw is None:
            return cls.start(cell)
        try:
            layout, position, watched, *counts = json.loads(raw)
            if layout != LAYOUT:
                raise ViewsDamaged(kind="head", found=f"its layout is not {LAYOUT}")
            total, writes, kept = map(int, counts)
            head = cls(Position.parse(position), Position.parse(watched), total, writes, kept)
        except (ValueError, TypeError) as error:
            raise ViewsDamaged(kind="head", found=str(error)) from None
        return head

    def dump(self) -> bytes:
        """Encode the head for Redis."""
        counts = (self.total, self.writes, self.kept)
        return json.dumps([LAYOUT, str(self.position), str(self.watched), *counts]).encode()
