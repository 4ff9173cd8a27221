"""Waiting for the views to move: one connection listens, for everybody who waits in this process.

Every write adds a tick to a stream of the cell. Of those who wait, one reads it and wakes the
others; who leaves while others wait on passes the listening on. Nothing listens while nobody waits.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final, Protocol

from yardmaster_projections.errors import ViewsDamaged, ViewsError, ViewsUnavailable
from yardmaster_projections.redis import keys as redis_keys
from yardmaster_projections.redis.view import RedisView
from yardmaster_projections.redis.wire import Link, Wire
from yardmaster_schemas.position import Position

#: The longest that a listener hears nothing before it looks again: ticks of a Redis that was
#: flushed or restored may come under numbers that were heard before.
MAX_BLOCK_S: Final = 1.0


class Clock(Protocol):
    """What the store asks of time."""

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
    """Who waits for a position of one view."""

    def __init__(self, wire: Wire, view: RedisView, clock: Clock, block_s: float) -> None:
        self._wire = wire
        self._view = view
        self._clock = clock
        self._block_s = min(MAX_BLOCK_S, block_s)
        self._waiters: dict[int, _Waiter] = {}
        self._made = 0
        self._listening = False
        self._link: Link | None = None
        #: The last tick that was heard; None before the first.
        self._heard: bytes | None = None

    async def until(self, reached: Callable[[Position], bool], timeout_s: float) -> bool:
        """Wait until the position is as wanted; False after `timeout_s` seconds.

        Raises: ViewsUnavailable, ViewsDamaged.
        """
        deadline = self._clock.monotonic_s() + timeout_s
        waiter = _Waiter(reached)
        self._made += 1
        number = self._made
        # First on the list, then a look: a tick that comes in between is heard.
        self._waiters[number] = waiter
        try:
            if reached((await self._view.head()).position):
                return True
            if timeout_s > 0:
                async with asyncio.TaskGroup() as group:
                    alarm = group.create_task(self._ring(waiter, timeout_s))
                    await self._wait(waiter, deadline)
                    alarm.cancel()
            if waiter.error is not None:
                raise waiter.error
            return waiter.done
        finally:
            del self._waiters[number]
            if not self._listening:
                self._pass_on()

    async def close(self) -> None:
        """Hang up."""
        link, self._link = self._link, None
        if link is not None:
            await link.close()

    async def _ring(self, waiter: _Waiter, timeout_s: float) -> None:
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
        """Wake one who waits, to listen from now on."""
        for waiter in self._waiters.values():
            waiter.wake.set()
            return

    async def _listen(self, block_s: float) -> None:
        """Hear the next tick, or none for `block_s` seconds, and wake whom it concerns."""
        fresh = self._link is None
        try:
            position = await self._next(block_s)
        except ViewsUnavailable:
            if fresh:
                raise
            # The connection may have died while nobody listened.
            position = await self._next(block_s)
        for waiter in self._waiters.values():
            if not waiter.done and waiter.reached(position):
                waiter.done = True
                waiter.wake.set()

    async def _next(self, block_s: float) -> Position:
        link = self._link
        if link is None:
            link = self._link = await self._wire.connect()
            self._heard = None
        try:
            position = await self._hear(link, block_s) if self._heard is not None else None
            return position if position is not None else await self._look(link)
        finally:
            if not link.sound:
                self._link = None
                await link.close()

    async def _hear(self, link: Link, block_s: float) -> Position | None:
        name = redis_keys.ticks(self._view.cell)
        milliseconds = max(1, int(block_s * 1000))
        (found,) = await link.run(
            [("XREAD", "BLOCK", milliseconds, "STREAMS", name, self._heard or b"0")]
        )
        if not found:
            return None
        position: Position | None = None
        for number, fields in found[0][1]:
            self._heard = number
            generation, reached, switched = _tick(fields)
            if switched:
                return None
            if generation == self._view.keys.generation:
                position = reached
        return position

    async def _look(self, link: Link) -> Position:
        """Where the views are, and the newest tick then."""
        view = self._view
        for _ in range(2):
            keys = view.keys
            where = (view.pointer, keys.head)
            newest = ("XREVRANGE", redis_keys.ticks(view.cell), "+", "-", "COUNT", 1)
            found, ticks = await link.read(where, [("MGET", *where), newest])
            head = view.follow(keys, found)
            if head is not None:
                self._heard = ticks[0][0] if ticks else b"0"
                return head.position
        raise ViewsUnavailable(found="another generation came to count twice at once")


def _tick(fields: list[bytes]) -> tuple[int, Position, bool]:
    found: dict[bytes, Any] = dict(zip(fields[::2], fields[1::2], strict=True))
    try:
        return int(found[b"g"]), Position.parse(found[b"p"].decode()), found[b"s"] == b"1"
    except (KeyError, ValueError) as error:
        raise ViewsDamaged(kind="tick", found=str(error)) from None
