"""The cells that a worker has: hosts run for those it was given, until they are taken away.

Cells share a process, not a fate. One whose log or views hold what they may not stops: its views
stay as they are, the worker is not ready, by its name, and says `cell_stopped` in its log and
`stopped` in its metrics; the others go on. It is tried again where it is given anew. A worker of
which every cell has stopped ends.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import NoReturn

from yardmaster_projections.fold import FOLDS
from yardmaster_runtime.telemetry.health import Health
from yardmaster_runtime.telemetry.port import Telemetry
from yardmaster_schemas.position import Position
from yardmaster_views.progress import Progress

#: Follows a cell's partition until cancelled, and tells the progress of each view by its name.
Serve = Callable[[int, str, Mapping[str, Progress]], Awaitable[object]]


class Cells:
    """Which partitions are this worker's, and what follows them.

    It may have one that is another's already, or not yet: whoever wrote last is right, and the
    other's write fails (`ViewsMoved`).
    """

    def __init__(
        self,
        cells: Mapping[int, str],
        serve: Serve,
        telemetry: Telemetry,
        health: Health | None = None,
    ) -> None:
        self._cells = cells
        self._serve = serve
        self._telemetry = telemetry
        self._health = health
        #: Why cells stopped that are this worker's.
        self._stopped: dict[int, Exception] = {}
        #: Taken away since what runs was last looked at.
        self._taken: set[int] = set()
        self._given: frozenset[int] = frozenset()
        self._changed = asyncio.Event()
        self._progress = {
            partition: {view: Progress(Position.start(cell), followed=False) for view in FOLDS}
            for partition, cell in cells.items()
        }
        self._followed = telemetry.gauge("cells", "Cells that this worker follows.")
        self._stops = telemetry.gauge("stopped", "1 once a cell's views have stopped.", "cell")

    def give(self, partitions: frozenset[int]) -> None:
        """These, and no others, are this worker's from now on."""
        given = frozenset(partitions & self._cells.keys())
        if given == self._given:
            return
        for partition in given ^ self._given:
            for progress in self._progress[partition].values():
                progress.follow(partition in given)
        self._taken |= self._given - given
        self._given = given
        self._changed.set()

    async def covered(self, partition: int, view: str, topic: str, offset: int) -> bool:
        """Wait until a view covers a record; False when this worker does not follow its partition:
        it is another's, or stopped.
        """
        progress = self._progress.get(partition, {}).get(view)
        return progress is not None and await progress.covers(topic, offset)

    async def run(self) -> NoReturn:
        """Follow what is given until cancelled, or all of it has stopped.

        Raises: what stopped the first of them.
        """
        running: dict[int, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as group:
            while not self._given or self._given - self._stopped.keys():
                self._changed.clear()
                for partition in sorted(running.keys() - self._given):
                    running.pop(partition).cancel()
                for partition in sorted(self._given - running.keys()):
                    running[partition] = group.create_task(self._follow(partition))
                followed = sorted(self._given - self._stopped.keys())
                self._followed.set(len(followed))
                self._telemetry.info("cells", cells=[self._cells[each] for each in followed])
                await self._changed.wait()
                for partition in self._taken & self._stopped.keys():
                    # Even if it was given back meanwhile: so it is tried again.
                    running.pop(partition)
                    del self._stopped[partition]
                    self._say(partition, None)
                self._taken.clear()
        raise next(iter(self._stopped.values()))

    async def _follow(self, partition: int) -> None:
        cell = self._cells[partition]
        try:
            await self._serve(partition, cell, self._progress[partition])
        except Exception as error:  # noqa: BLE001 one cell's, and named: raised when none is left
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                return  # it was taken away, and fell over that
            code = getattr(error, "code", type(error).__name__)
            self._telemetry.error("cell_stopped", cell=cell, code=code, found=str(error))
            self._say(partition, f"{code}: {error}")
            self._stopped[partition] = error
            for progress in self._progress[partition].values():
                progress.follow(False)
            self._changed.set()

    def _say(self, partition: int, reason: str | None) -> None:
        cell = self._cells[partition]
        self._stops.labels(cell).set(0 if reason is None else 1)
        if self._health is not None:
            self._health.report(f"cell {cell}", reason)
