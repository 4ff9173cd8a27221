"""How far a store is, for those that wait until it is further."""

import asyncio

from yardmaster_schemas.position import Position


class Progress:
    """A position that moves on while somebody follows the log; back only where a store was lost."""

    def __init__(self, position: Position, *, followed: bool = True) -> None:
        self._position = position
        self._followed = followed
        self._moved = asyncio.Event()

    @property
    def position(self) -> Position:
        """What the store covers."""
        return self._position

    def reached(self, position: Position) -> None:
        """The store covers this."""
        if position != self._position:
            self._position = position
            self._wake()

    def follow(self, followed: bool) -> None:
        """Somebody follows the log, or nobody does any more."""
        self._followed = followed
        self._wake()

    async def covers(self, topic: str, offset: int) -> bool:
        """Wait until the record at `offset` of a topic is covered; False when nobody follows."""
        while self._followed and (self._position.of(topic) or 0) <= offset:
            await self._moved.wait()
        return self._followed

    def _wake(self) -> None:
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()
