"""Rebuilding views beside those that are read: begin a generation, fill it, switch, drop the old.

A generation is a whole set of views under keys of its own. Readers and writers follow one pointer,
which changes in one transaction, so that nobody sees half of each.
"""

from typing import Final

from yardmaster_projections.errors import ViewsDamaged, ViewsMoved, ViewsUnavailable
from yardmaster_projections.redis import keys as redis_keys
from yardmaster_projections.redis.head import Head
from yardmaster_projections.redis.keys import Keys
from yardmaster_projections.redis.settings import RedisSettings
from yardmaster_projections.redis.view import FIRST
from yardmaster_projections.redis.wire import EXEC, MULTI, UNWATCH, Command, Link, Wire
from yardmaster_projections.redis.write import tick

#: Keys that are looked at, and at most removed, by one command.
CHUNK: Final = 500
#: How often a change of the pointer is tried while others write.
MAX_TRIES: Final = 100


class RedisGenerations:
    """The generations of one cell's views."""

    def __init__(
        self, settings: RedisSettings, cell: str, *, space: str = redis_keys.VIEWS
    ) -> None:
        self.cell = cell = redis_keys.place(cell, space)
        self._wire = Wire(settings)
        self._pointer = redis_keys.current(cell)
        self._last = redis_keys.last(cell)

    async def close(self) -> None:
        """Hang up."""
        await self._wire.close()

    async def current(self) -> int:
        """The generation that counts.

        Raises: ViewsUnavailable.
        """
        (found,) = await self._wire.run([("GET", self._pointer)])
        return _number(found, FIRST)

    async def begin(self) -> int:
        """A new generation, empty; `RedisViewStore(..., generation=)` fills it.

        Raises: ViewsUnavailable.
        """
        for _ in range(MAX_TRIES):
            async with self._wire.link() as link:
                _, (pointer, last) = await link.run(
                    [
                        ("WATCH", self._pointer, self._last),
                        ("MGET", self._pointer, self._last),
                    ]
                )
                number = max(_number(pointer, FIRST), _number(last, FIRST)) + 1
                if await self._commit(link, [("SET", self._last, number)]):
                    return number
        raise _busy()

    async def switch(self, generation: int, *, even_behind: bool = False) -> bool:
        """Let a generation count; False when it does not cover yet what the present one covers.

        `even_behind`: whatever the present one covers, such as a future that the log never had.

        Raises:
            ViewsMoved: a newer generation counts already.
            ViewsUnavailable: it may have been done, or not.
        """
        for _ in range(MAX_TRIES):
            async with self._wire.link() as link:
                _, pointer = await link.run([("WATCH", self._pointer), ("GET", self._pointer)])
                present = _number(pointer, FIRST)
                if present > generation:
                    raise ViewsMoved(found=f"generation {present}", expected=generation)
                if present == generation:
                    await link.run([UNWATCH])
                    return True
                names = [Keys(self.cell, number).head for number in (present, generation)]
                _, heads = await link.run([("WATCH", *names), ("MGET", *names)])
                old, new = (Head.load(self.cell, raw) for raw in heads)
                if not even_behind and not new.position.covers(old.position):
                    await link.run([UNWATCH])
                    return False
                commands = [
                    ("SET", self._pointer, generation),
                    tick(self.cell, generation, new.position, switched=True),
                ]
                if await self._commit(link, commands):
                    return True
        raise _busy()

    async def drop(self, generation: int) -> int:
        """Remove a generation, a bounded number of keys at a time; how many there were.

        Raises:
            ViewsMoved: it is the one that counts.
            ViewsUnavailable: some of it may be left; drop it again.
        """
        if await self.current() == generation:
            raise ViewsMoved(found=f"generation {generation}", expected="one that is not read")
        # The head first: what is left is no views any more, whoever looks at it.
        await self._wire.run([("UNLINK", Keys(self.cell, generation).head)])
        return await self._remove(f"{Keys(self.cell, generation).prefix}*")

    async def drop_older(self) -> int:
        """Remove every generation before the one that counts; how many keys there were.

        Raises: ViewsUnavailable.
        """
        present = await self.current()
        removed = 0
        for number in await self.known():
            if number < present:
                removed += await self.drop(number)
        return removed

    async def known(self) -> list[int]:
        """Generations of which something is there.

        Raises: ViewsUnavailable.
        """
        found: set[int] = set()
        prefix = f"{redis_keys.root(self.cell)}g"
        cursor = b"0"
        while True:
            cursor, names = (await self._wire.run([_scan(cursor, f"{prefix}*")]))[0]
            for name in names:
                number = name.decode("utf-8", "replace")[len(prefix) :].partition(":")[0]
                if number.isdecimal():
                    found.add(int(number))
            if cursor == b"0":
                return sorted(found)

    async def _remove(self, pattern: str) -> int:
        removed = 0
        cursor = b"0"
        while True:
            cursor, names = (await self._wire.run([_scan(cursor, pattern)]))[0]
            if names:
                (count,) = await self._wire.run([("UNLINK", *names)])
                removed += count
            if cursor == b"0":
                return removed

    async def _commit(self, link: Link, commands: list[Command]) -> bool:
        *_, done = await link.run([MULTI, *commands, EXEC])
        return done is not None


def _scan(cursor: bytes, pattern: str) -> Command:
    return ("SCAN", cursor, "MATCH", pattern, "COUNT", CHUNK)


def _number(raw: bytes | None, otherwise: int) -> int:
    try:
        return int(raw) if raw is not None else otherwise
    except ValueError:
        raise ViewsDamaged(kind="pointer", found="it is no number") from None


def _busy() -> ViewsUnavailable:
    return ViewsUnavailable(found=f"others wrote first {MAX_TRIES} times")
