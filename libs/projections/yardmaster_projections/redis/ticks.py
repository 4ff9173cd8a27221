"""Waiting for the views to move: one connection listens for all waiters of this process.

Every write appends a tick to a stream of the cell. One of the waiters, the listener, reads the
stream and wakes the others. If the listener leaves while others wait, another waiter becomes the
listener. Without waiters nothing reads the stream.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from yardmaster_projections.errors import ViewsDamaged, ViewsError
from yardmaster_projections.redis import keys as redis_keys
from yardmaster_projections.redis.client import Client
from yardmaster_projections.redis.view import RedisView
from yardmaster_schemas.position import Position

#: The longest time that a listener waits for a tick before it looks at the head: a Redis that was
#: flushed or restored may number its ticks below those that were read before.
MAX_BLOCK_S: Final = 1.0


class Clock(Protocol):
    """The clock that the store needs."""

    def monotonic_s(self) -> float:
        """Seconds from some start; never falls."""

    async def sleep(self, seconds: float) -> None:
        """Wait for `seconds`."""


class _Waiter:
    __slots__ = ("done", "error", "reached", "wake")

    def __init__(self, reached: Callable[[Position], bool]) -> None:
        self.reached = reached
        self.wake = asyncio.Event()
        self.done = False
        self.error: ViewsError | None = None


class Ticks:
    """The waiters for positions of one view."""

    def __init__(self, client: Client, view: RedisView, clock: Clock, block_s: float) -> None:
        self._client = client
        self._view = view
        self._clock = clock
        self._block_s = min(MAX_BLOCK_S, block_s)
        self._waiters: dict[int, _Waiter] = {}
        self._made = 0
        self._listening = False
        #: The id of the last tick that was read; None before the first.
        self._read: bytes | None = None

    async def until(self, reached: Callable[[Position], bool], timeout_s: float) -> bool:
        """Wait until `reached` holds for the position; False after `timeout_s` seconds.

        Raises: ViewsUnavailable, ViewsDamaged.
        """
        deadline = self._clock.monotonic_s() + timeout_s
        waiter = _Waiter(reached)
        self._made += 1
        number = self._made
        # Register before the look, so that a tick in between wakes this waiter.
        self._waiters[number] = waiter
        try:
            if reached((await self._view.head()).position):
                return True
            if timeout_s > 0:
                async with asyncio.TaskGroup() as group:
                    alarm = group.create_task(self._wake_after(waiter, timeout_s))
                    await self._wait(waiter, deadline)
                    alarm.cancel()
            if waiter.error is not None:
                raise waiter.error
            return waiter.done
        finally:
            del self._waiters[number]
            if not self._listening:
                self._pass_on()

    async def _wake_after(self, waiter: _Waiter, timeout_s: float) -> None:
        await self._clock.sleep(timeout_s)
        waiter.wake.set()

    async def _wait(self, waiter: _Waiter, deadline: float) -> None:
        while not waiter.done and waiter.error is None:
            left = deadline - self._clock.monotonic_s()
            if left <= 0:
                return
            if self._listening:
                await waiter.wake.wait()
                waiter.wake.clear()
                continue
            self._listening = True
            try:
                await self._listen(min(left, self._block_s))
            except ViewsError as error:
                for one in self._waiters.values():
                    one.error = error
                    one.wake.set()
            finally:
                self._listening = False

    def _pass_on(self) -> None:
        """Wake one waiter, which then listens."""
        for waiter in self._waiters.values():
            waiter.wake.set()
            return

    async def _listen(self, block_s: float) -> None:
        """Wait up to `block_s` seconds for ticks; wake the waiters whose position is reached."""
        position = await self._next(block_s) if self._read is not None else None
        if position is None:
            position = await self._look()
        for waiter in self._waiters.values():
            if not waiter.done and waiter.reached(position):
                waiter.done = True
                waiter.wake.set()

    async def _next(self, block_s: float) -> Position | None:
        """The position after the next ticks; None when the head must be read instead."""
        stream = redis_keys.ticks(self._view.cell)
        block_ms = max(1, int(block_s * 1000))
        found = await self._client.listen(
            "XREAD", "BLOCK", block_ms, "STREAMS", stream, self._read or b"0"
        )
        position: Position | None = None
        for number, fields in found[0][1] if found else ():
            self._read = number
            generation, reached, switched = _tick(fields)
            if switched:
                return None
            if generation == self._view.keys.generation:
                position = reached
        return position

    async def _look(self) -> Position:
        """Return the position now; continue with the ticks after this moment."""
        stream = redis_keys.ticks(self._view.cell)
        seen = await self._view.look(lambda _: [("XREVRANGE", stream, "+", "-", "COUNT", 1)])
        (newest,) = seen.answers
        self._read = newest[0][0] if newest else b"0"
        return seen.at.head.position


def _tick(fields: Mapping[bytes, Any]) -> tuple[int, Position, bool]:
    try:
        return int(fields[b"g"]), Position.parse(fields[b"p"].decode()), fields[b"s"] == b"1"
    except (KeyError, ValueError) as error:
        raise ViewsDamaged(kind="tick", found=str(error)) from None
