"""Rebuilding views while the old ones are read: begin a generation, fill it, switch, drop the old.

A generation is a whole set of views under keys of its own. Readers and writers follow one pointer
to the current generation. The pointer changes in one transaction, so that no reader sees rows of
two generations.
"""

from contextlib import suppress
from typing import Any, Final

from yardmaster_projections.errors import ViewsDamaged, ViewsMoved
from yardmaster_projections.redis import keys as redis_keys
from yardmaster_projections.redis.client import Client
from yardmaster_projections.redis.head import Head
from yardmaster_projections.redis.keys import Keys
from yardmaster_projections.redis.settings import RedisSettings
from yardmaster_projections.redis.view import generation_of
from yardmaster_projections.redis.write import tick

#: The most keys that one command visits or removes.
CHUNK: Final = 500


class RedisGenerations:
    """The generations of one cell's views."""

    def __init__(
        self, settings: RedisSettings, cell: str, *, space: str = redis_keys.VIEWS
    ) -> None:
        self.cell = cell = redis_keys.namespace(cell, space)
        self._client = Client(settings)
        self._pointer = redis_keys.current(cell)
        self._last = redis_keys.last(cell)

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()

    async def current(self) -> int:
        """The current generation.

        Raises: ViewsUnavailable.
        """
        return generation_of(await self._client.run("GET", self._pointer))

    async def begin(self) -> int:
        """Begin a new, empty generation and return its number; `RedisViewStore(..., generation=)`
        fills it.

        Raises: ViewsUnavailable.
        """

        async def work(pipe: Any) -> int:
            current, last = await pipe.mget(self._pointer, self._last)
            number = max(generation_of(current), generation_of(last)) + 1
            pipe.multi()
            pipe.set(self._last, number)
            return number

        number: int = await self._client.transaction((self._pointer, self._last), work)
        return number

    async def switch(self, generation: int, *, even_behind: bool = False) -> bool:
        """Make a generation current; False if its position is still before that of the current one.

        `even_behind`: switch even then, for example if the current views contain records that the
        log never had.

        Raises:
            ViewsMoved: a newer generation is current already.
            ViewsUnavailable: the switch may have been made, or not.
        """
        new_head = Keys(self.cell, generation).head

        async def work(pipe: Any) -> bool:
            current = generation_of(await pipe.get(self._pointer))
            if current > generation:
                raise ViewsMoved(found=f"generation {current}", expected=generation)
            if current == generation:
                return True
            old_head = Keys(self.cell, current).head
            await pipe.watch(old_head)
            new = Head.load(self.cell, await pipe.get(new_head)).position
            # Views of another layout cover nothing, so that a rebuild always replaces them.
            old = Head.start(self.cell).position
            with suppress(ViewsDamaged):
                old = Head.load(self.cell, await pipe.get(old_head)).position
            if not even_behind and not new.covers(old):
                return False
            pipe.multi()
            pipe.set(self._pointer, generation)
            pipe.execute_command(*tick(self.cell, generation, new, switched=True))
            return True

        switched: bool = await self._client.transaction((self._pointer, new_head), work)
        return switched

    async def drop(self, generation: int) -> int:
        """Remove a generation, a bounded number of keys at a time; return the number of keys.

        Raises:
            ViewsMoved: the generation is the current one.
            ViewsUnavailable: some keys may be left; drop the generation again.
        """
        if await self.current() == generation:
            raise ViewsMoved(found=f"generation {generation}", expected="one that is not read")
        # The head is removed first: without a head, no reader takes the remaining keys for views.
        await self._client.run("UNLINK", Keys(self.cell, generation).head)
        removed = 0
        async for names in self._client.scan(f"{Keys(self.cell, generation).prefix}*", CHUNK):
            removed += await self._client.run("UNLINK", *names)
        return removed

    async def drop_older(self) -> int:
        """Remove every generation before the current one; return the number of keys.

        Raises: ViewsUnavailable.
        """
        current = await self.current()
        return sum([await self.drop(one) for one in await self.known() if one < current])

    async def known(self) -> list[int]:
        """The generations that have keys.

        Raises: ViewsUnavailable.
        """
        found: set[int] = set()
        prefix = f"{redis_keys.root(self.cell)}g"
        async for names in self._client.scan(f"{prefix}*", CHUNK):
            for name in names:
                number = name.decode("utf-8", "replace")[len(prefix) :].partition(":")[0]
                if number.isdecimal():
                    found.add(int(number))
        return sorted(found)
