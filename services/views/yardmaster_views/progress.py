"""The position of a store, for callers that wait until it covers a record."""

import asyncio

from yardmaster_schemas.position import Position


class Progress:
    """A position that advances while a worker follows the log; it falls if a store was lost."""

    def __init__(self, position: Position, *, followed: bool = True) -> None:
        self._position = position
        self._followed = followed
        self._moved = asyncio.Event()

    @property
    def position(self) -> Position:
        """The position of the store."""
        return self._position

    def reached(self, position: Position) -> None:
        """Set the position of the store."""
        if position != self._position:
            self._position = position
            self._wake()

    def follow(self, followed: bool) -> None:
        """Set whether this worker follows the log."""
        self._followed = followed
        self._wake()

    async def covers(self, topic: str, offset: int) -> bool:
        """Wait until a record is covered; False once this worker does not follow the log."""
        while self._followed and (self._position.of(topic) or 0) <= offset:
            await self._moved.wait()
        return self._followed

    def _wake(self) -> None:
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()
