"""The cells that a worker has: hosts run for those it was given, until they are taken away."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import NoReturn

from yardmaster.projections.fold import FOLDS
from yardmaster.runtime.telemetry import Telemetry
from yardmaster.schemas.position import Position
from yardmaster.views.progress import Progress

#: Follows a cell's partition until cancelled, and tells the progress of each view by its name.
Serve = Callable[[int, str, Mapping[str, Progress]], Awaitable[object]]


class Cells:
    """Which partitions are this worker's, and what follows them.

    It may have one that is another's already, or not yet: whoever wrote last is right, and the
    other's write fails (`ViewsMoved`).
    """

    def __init__(self, cells: Mapping[int, str], serve: Serve, telemetry: Telemetry) -> None:
        self._cells = cells
        self._serve = serve
        self._telemetry = telemetry
        self._given: frozenset[int] = frozenset()
        self._changed = asyncio.Event()
        self._progress = {
            partition: {view: Progress(Position.start(cell), followed=False) for view in FOLDS}
            for partition, cell in cells.items()
        }
        self._followed = telemetry.gauge("cells", "Cells that this worker follows.")

    def give(self, partitions: frozenset[int]) -> None:
        """These, and no others, are this worker's from now on."""
        given = frozenset(partitions & self._cells.keys())
        if given == self._given:
            return
        for partition in given ^ self._given:
            for progress in self._progress[partition].values():
                progress.follow(partition in given)
        self._given = given
        self._changed.set()

    async def covered(self, partition: int, view: str, topic: str, offset: int) -> bool:
        """Wait until a view covers a record; False when its partition is not this worker's."""
        progress = self._progress.get(partition, {}).get(view)
        return progress is not None and await progress.covers(topic, offset)

    async def run(self) -> NoReturn:
        """Follow what is given until cancelled; raises what stops one of those that follow."""
        running: dict[int, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as group:
            while True:
                self._changed.clear()
                for partition in sorted(running.keys() - self._given):
                    running.pop(partition).cancel()
                for partition in sorted(self._given - running.keys()):
                    running[partition] = group.create_task(self._follow(partition))
                self._followed.set(len(running))
                names = [self._cells[partition] for partition in sorted(running)]
                self._telemetry.info("cells", cells=names)
                await self._changed.wait()

    async def _follow(self, partition: int) -> None:
        await self._serve(partition, self._cells[partition], self._progress[partition])
