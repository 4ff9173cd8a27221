"""Runs hosts for the cells that are assigned to this worker, until they are revoked.

Cells fail independently. A cell with an invalid log or damaged views stops: its views stay as they
are, the worker reports the cell as not ready, logs `cell_stopped` and sets the metric `stopped`;
the other cells continue. The next worker of the cell tries again. A worker whose cells have all
stopped exits.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import NoReturn

from yardmaster_projections.fold import FOLDS
from yardmaster_runtime.telemetry.health import Health
from yardmaster_runtime.telemetry.port import Telemetry
from yardmaster_schemas.position import Position
from yardmaster_views.progress import Progress

#: Follows a cell until cancelled. Its arguments are the partition, the cell, and the progress of
#: each view by name, which it updates.
Serve = Callable[[int, str, Mapping[str, Progress]], Awaitable[object]]


class Cells:
    """The partitions of this worker, and the tasks that follow them.

    During a rebalance two workers may have the same partition. Then the write of the one that is
    behind fails (`ViewsMoved`).
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
        #: The errors of the assigned cells that stopped.
        self._stopped: dict[int, Exception] = {}
        #: Partitions that were revoked since `run` last looked.
        self._revoked: set[int] = set()
        self._assigned: frozenset[int] = frozenset()
        self._changed = asyncio.Event()
        self._progress = {
            partition: {view: Progress(Position.start(cell), followed=False) for view in FOLDS}
            for partition, cell in cells.items()
        }
        self._followed = telemetry.gauge("cells", "Cells that this worker follows.")
        self._stops = telemetry.gauge("stopped", "1 once a cell's views have stopped.", "cell")

    def assign(self, partitions: frozenset[int]) -> None:
        """Set the partitions of this worker."""
        assigned = frozenset(partitions & self._cells.keys())
        if assigned == self._assigned:
            return
        for partition in assigned ^ self._assigned:
            for progress in self._progress[partition].values():
                progress.follow(partition in assigned)
        self._revoked |= self._assigned - assigned
        self._assigned = assigned
        self._changed.set()

    async def wait_covered(self, partition: int, view: str, topic: str, offset: int) -> bool:
        """Wait until a view covers a record; False if this worker does not follow the partition,
        because it is assigned to another worker or the cell stopped.
        """
        progress = self._progress.get(partition, {}).get(view)
        return progress is not None and await progress.covers(topic, offset)

    async def run(self) -> NoReturn:
        """Follow the assigned cells until cancelled, or until all have stopped.

        Raises: the error of the first cell that stopped.
        """
        running: dict[int, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as group:
            while not self._assigned or self._assigned - self._stopped.keys():
                self._changed.clear()
                for partition in sorted(running.keys() - self._assigned):
                    running.pop(partition).cancel()
                for partition in sorted(self._assigned - running.keys()):
                    running[partition] = group.create_task(self._follow(partition))
                followed = sorted(self._assigned - self._stopped.keys())
                self._followed.set(len(followed))
                self._telemetry.info("cells", cells=[self._cells[each] for each in followed])
                await self._changed.wait()
                for partition in self._revoked & self._stopped.keys():
                    # If the cell was assigned again since then, it is now started again.
                    running.pop(partition)
                    del self._stopped[partition]
                    self._report(partition, None)
                self._revoked.clear()
        raise next(iter(self._stopped.values()))

    async def _follow(self, partition: int) -> None:
        """Follow a cell; if that fails, report the cell as stopped and keep the error for `run`."""
        cell = self._cells[partition]
        try:
            await self._serve(partition, cell, self._progress[partition])
        except Exception as error:  # noqa: BLE001 reported, and raised once all cells have stopped
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                return  # it was revoked, and failed because of that
            code = getattr(error, "code", type(error).__name__)
            self._telemetry.error("cell_stopped", cell=cell, code=code, found=str(error))
            self._report(partition, f"{code}: {error}")
            self._stopped[partition] = error
            for progress in self._progress[partition].values():
                progress.follow(False)
            self._changed.set()

    def _report(self, partition: int, reason: str | None) -> None:
        cell = self._cells[partition]
        self._stops.labels(cell).set(0 if reason is None else 1)
        if self._health is not None:
            self._health.report(f"cell {cell}", reason)
