"""Builds views anew from the log, beside those that are read, and switches when they are as far.

Workers and gateways go on meanwhile: they follow the pointer that is switched. What is killed in
between leaves a generation that nobody reads; the next rebuild drops it.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from yardmaster_eventlog.port import EventLog
from yardmaster_projections.cached import CachedReader
from yardmaster_projections.errors import ViewsUnavailable
from yardmaster_projections.fold import Fold
from yardmaster_projections.redis.generations import RedisGenerations
from yardmaster_projections.redis.settings import RedisSettings
from yardmaster_projections.redis.store import RedisViewStore
from yardmaster_runtime.clock import Clock
from yardmaster_runtime.waiting import first_of
from yardmaster_schemas.position import Position
from yardmaster_views.follower import Follower, Metrics, Views

#: How often the new views try to be as far as those that are read; then they may be a bit behind.
MAX_TRIES: Final = 50
#: Rows of one write; nobody waits for them one by one.
MAX_UNSAVED: Final = 8_000
#: Between two reports of progress.
REPORT_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """How far a rebuild is: records folded, and records there are; `dropped` keys of old views."""

    view: str
    generation: int
    position: Position
    folded: int
    records: int
    dropped: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuild:
    """A rebuild of one projection of one cell."""

    log: EventLog
    redis: RedisSettings
    cell: str
    partition: int
    fold: Fold
    clock: Clock
    metrics: Metrics

    async def run(self, report: Callable[[Rebuilt], None]) -> Rebuilt:
        """Build, switch, drop what was read before; `tell` is called about once a second.

        Raises:
            ViewsUnavailable: the views that were read are untouched, and are read on.
            LogError, CoreError, SchemaError: the same.
        """
        generations = RedisGenerations(self.redis, self.cell, space=self.fold.name)
        try:
            generation = await generations.begin()
            store = RedisViewStore(
                self.redis,
                self.cell,
                self.clock,
                generation=generation,
                space=self.fold.name,
            )
            try:
                follower = Follower(
                    self.log,
                    Views(store, CachedReader(store)),
                    self.cell,
                    self.partition,
                    self.metrics,
                    fold=self.fold,
                    max_unsaved=MAX_UNSAVED,
                )
                await first_of(
                    self._build(follower, generations, generation),
                    self._report(follower, generation, report),
                )
                dropped = await generations.drop_older()
                done = await self._reached(follower, generation)
            finally:
                await store.close()
        finally:
            await generations.close()
        return Rebuilt(
            done.view, generation, done.position, done.folded, done.records, dropped=dropped
        )

    async def _build(
        self, follower: Follower, generations: RedisGenerations, generation: int
    ) -> None:
        await follower.start()
        for _ in range(MAX_TRIES):
            await self._fill(follower, generations, generation)
            if await generations.switch(generation):
                return
        # Whoever asks for a position waits a moment for it; the worker goes on from here.
        await generations.switch(generation, even_behind=True)

    async def _fill(
        self, follower: Follower, generations: RedisGenerations, generation: int
    ) -> None:
        """Catch up, or leave nothing: in a full Redis it would be in the way of what is read."""
        try:
            await follower.catch_up()
        except ViewsUnavailable:
            with suppress(ViewsUnavailable):
                await generations.drop(generation)
            raise

    async def _report(
        self, follower: Follower, generation: int, report: Callable[[Rebuilt], None]
    ) -> None:
        while True:
            await self.clock.sleep(REPORT_S)
            report(await self._reached(follower, generation))

    async def _reached(self, follower: Follower, generation: int) -> Rebuilt:
        position = follower.position
        folded = sum(offset for _, offset in position.parts())
        records = await follower.records()
        return Rebuilt(self.fold.name, generation, position, folded, max(folded, records))
