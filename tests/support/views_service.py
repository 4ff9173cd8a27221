"""The views service as real processes, on a real broker and a real Redis."""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support import logs
from tests.support.forks import Forked, fork
from tests.support.kafka_broker import KafkaBroker
from tests.support.logs import Entry, LogBuilder
from tests.support.redis_server import RedisServer
from yardmaster_eventlog.kafka.log import KafkaLog, KafkaSettings
from yardmaster_eventlog.port import Partition
from yardmaster_projections.errors import ViewsUnavailable
from yardmaster_projections.redis.settings import RedisSettings
from yardmaster_projections.redis.store import RedisViewStore
from yardmaster_runtime.clock import SystemClock
from yardmaster_schemas.position import Position
from yardmaster_schemas.topics import TOPICS

LIMIT_S = 60.0


class Story(LogBuilder):
    """The log of a working cell: `job` adds a job from its submission to its end."""

    def __init__(self, cell: str = "main") -> None:
        super().__init__(cell)
        self.jobs = 0
        self.written = 0
        self.request(logs.log_created(cell))
        self.quota.cycle(logs.pool_configured(), logs.department(), logs.project())
        self.claim(logs.joined("n1"))
        self.scheduler.cycle()

    def job(self) -> None:
        """Add a whole job that takes a minute."""
        job = f"job{self.jobs:09d}"
        self.jobs += 1
        task = f"{job}.0"
        resources = logs.admitted(job).spec.resources
        self.judged(logs.submitted(job, resources=resources), logs.admitted(job))
        self.scheduler.cycle(logs.allocated(task, logs.placed("n1", 0)))
        self.claim(logs.started(task, "n1"))
        self.scheduler.cycle()
        self.now_ms += 60_000
        self.claim(logs.exited(task, "n1"))
        self.claim(logs.released(task, "n1"))
        self.scheduler.cycle()

    @property
    def position(self) -> Position:
        """The position of views that show all of it."""
        ends = {"requests": 0, "admissions": 0, "node-events": 0, "decisions": 0}
        for entry in self.entries:
            if entry.topic in ends:
                ends[entry.topic] = entry.offset + 1
        found = Position.start(self.cell)
        for topic, end in ends.items():
            found = found.at(topic, end)
        return found


class ViewsProcesses:
    """A log on Kafka that tests write, a Redis, and any number of workers."""

    def __init__(
        self,
        folder: Path,
        broker: KafkaBroker,
        redis: RedisServer,
        cells: Sequence[str] = ("main",),
    ) -> None:
        self.folder = folder
        self.broker = broker
        self.redis = redis
        self.cells = tuple(cells)
        self.clock = SystemClock()
        self.workers: dict[str, Forked] = {}
        self._stores: dict[tuple[str, str], RedisViewStore] = {}

    async def __aenter__(self) -> Self:
        self.log = await KafkaLog.open(KafkaSettings(bootstrap=self.broker.bootstrap), self.clock)
        await self.log.create_topics(tuple(TOPICS.values()), len(self.cells))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for name in list(self.workers):
            self.kill(name)
        for store in self._stores.values():
            await store.close()
        await self.log.close()
        if error is not None:
            for path in sorted(self.folder.glob("*.log")):
                print(f"--- {path.name}\n{path.read_text()[-4000:]}")

    def environment(self, **more: str) -> dict[str, str]:
        """The environment of a worker or of the command line."""
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith("YARD_")},
            "YARD_LOG": f"kafka://{self.broker.bootstrap}",
            "YARD_REDIS__URL": self.redis.url,
            "YARD_CELLS": ",".join(self.cells),
            "YARD_VIEWS_IDLE_WAIT_S": "1",
            **more,
        }

    def start(self, name: str, **more: str) -> Forked:
        """Start a worker."""
        self.workers[name] = fork(
            "yardmaster_views.faust_app",
            (),
            env=self.environment(**more),
            cwd=self.folder,
            stdout=self.folder / f"{name}.log",
        )
        return self.workers[name]

    def kill(self, name: str) -> None:
        """Send SIGKILL at any moment."""
        process = self.workers.pop(name)
        process.kill()
        process.wait()

    def stop(self, name: str) -> int:
        """Send SIGTERM; return the exit code."""
        process = self.workers.pop(name)
        process.send_signal(signal.SIGTERM)
        return process.wait(LIMIT_S)

    def said(self, name: str) -> str:
        """The whole output of a worker."""
        return (self.folder / f"{name}.log").read_text()

    async def write(self, story: Story) -> None:
        """Append the records of the story that are not written yet."""
        number = self.cells.index(story.cell)
        run: list[Entry] = []
        for entry in [*story.entries[story.written :], None]:
            if run and (entry is None or entry.topic != run[0].topic):
                await self.log.append(Partition(run[0].topic, number), [e.record for e in run])
                run = []
            if entry is not None:
                run.append(entry)
        story.written = len(story.entries)

    def store(self, cell: str = "main", space: str = "views") -> RedisViewStore:
        """The views of a cell, or its usage."""
        if (cell, space) not in self._stores:
            settings = RedisSettings(url=self.redis.url)
            self._stores[cell, space] = RedisViewStore(settings, cell, self.clock, space=space)
        return self._stores[cell, space]

    async def shows(self, story: Story, spaces: Sequence[str] = ("views", "usage")) -> float:
        """Wait until Redis shows all of a story; return the seconds that it took."""
        started = time.monotonic()
        for space in spaces:
            store = self.store(story.cell, space)
            while True:
                position = None
                with suppress(ViewsUnavailable):
                    position = await store.position()
                if position is not None and position.covers(story.position):
                    break
                self.check()
                if time.monotonic() - started > LIMIT_S:
                    raise AssertionError(f"{space} are at {position}, not at {story.position}")
                await asyncio.sleep(0.02)
        return time.monotonic() - started

    async def happens(self, true: Callable[[], Any]) -> float:
        """Wait until `true` holds; return the seconds that it took."""
        started = time.monotonic()
        while not true():
            self.check()
            if time.monotonic() - started > LIMIT_S:
                raise AssertionError("the condition did not become true")
            await asyncio.sleep(0.05)
        return time.monotonic() - started

    def check(self) -> None:
        """Check that no worker ended by itself."""
        for name, process in self.workers.items():
            if process.poll() is not None:
                raise AssertionError(f"{name} ended with {process.returncode}")
