"""Rebuilds views from the log in a new generation, and switches once it has caught up.

Workers and gateways keep running: they follow the pointer that is switched. A rebuild that is
killed leaves a generation without readers; the next rebuild drops it.
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
from yardmaster_runtime.errors import LogBeginsLater
from yardmaster_runtime.waiting import first_of
from yardmaster_schemas.position import Position
from yardmaster_views.follower import Follower, Metrics, Views

#: How often the new views try to catch up with the current ones. After that, the rebuild switches
#: even if the new views are slightly behind.
MAX_TRIES: Final = 50
#: The rows of one write. It is large, because no reader waits for single rows of a rebuild.
MAX_UNSAVED: Final = 8_000
#: Seconds between two reports of progress.
REPORT_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """The progress of a rebuild: records folded, all records, and `dropped` keys of old views."""

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
        """Build, switch, drop the old views; call `report` about once a second.

        Raises:
            ViewsUnavailable, LogError, CoreError, SchemaError, LogBeginsLater: the rebuild failed;
                the current views are unchanged.
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
        # A reader that names a later position waits a moment, until the worker has caught up.
        await generations.switch(generation, even_behind=True)

    async def _fill(
        self, follower: Follower, generations: RedisGenerations, generation: int
    ) -> None:
        """Catch up with the log.

        If Redis is unavailable or the log's oldest records have expired, drop the generation,
        because it takes memory from the current one.
        """
        try:
            await follower.catch_up()
        except (ViewsUnavailable, LogBeginsLater):
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
