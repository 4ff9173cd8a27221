"""Containers and processes on one node: from the allocation to the first output, and cost at rest.

A real agent in this process, on a log in memory; containers need a Docker engine with the image
`YARD_UP_BASE` (by default `yardmaster-base:ci`).
"""

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.timing import Row
from tests.support.containers import CONTAINER_IMAGE, is_there
from tests.support.node_agent import AgentCell
from yardmaster_eventlog import codec
from yardmaster_eventlog.port import Partition
from yardmaster_node_agent.settings import Settings
from yardmaster_schemas.envelope import Event
from yardmaster_schemas.events.details import Run
from yardmaster_schemas.events.expiring import TaskOutputV1
from yardmaster_schemas.events.node_events import SlotsReleasedV1

RUNS: Final = 21
#: The aim of the median from the allocation to the first output of a container.
AIM_S: Final = 1.5
#: The aim of the agent's part of a core at rest.
AIM_PERCENT: Final = 5
REST_S: Final = 60
#: Replicas that are started together; more would wait for each other.
AT_ONCE: Final = 10
#: Seconds that an event may take on a loaded machine.
ARRIVAL_S: Final = 300


def rows(sizes: Sequence[tuple[int, int]], quick: bool) -> list[Row]:
    """The start of containers and processes, and the cost at rest of an agent with many.

    `sizes`: numbers of finished and of running containers, which rise.
    """
    if not is_there(CONTAINER_IMAGE):
        print(f"containers are left out: Docker has no image {CONTAINER_IMAGE}", file=sys.stderr)
        return []
    return asyncio.run(_rows(sizes, 5 if quick else RUNS))


async def _rows(sizes: Sequence[tuple[int, int]], runs: int) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        cell = await AgentCell(Path(folder, "n1")).open()
        defaults = Settings(node="n1", data_dir=Path(folder))
        cell.configure(
            executor="auto",
            tick_s=defaults.tick_s,
            heartbeat_s=defaults.heartbeat_s,
            kept_directories=sizes[-1][0] + 2 * runs,
        )
        async with cell.agent():
            found = [
                await _start(cell, "process", Run(script="echo out"), runs),
                await _start(cell, "container", _in_image("echo out"), runs),
                await _rest(cell, 0, 0),
            ]
            before, arrivals = (0, 0), Arrivals(cell)
            for finished, running in sizes:
                for count in _batches(finished - before[0]):
                    await arrivals.skip(SlotsReleasedV1)
                    for _ in range(count):
                        await cell.allocate(_in_image("true"))
                    await arrivals.of(SlotsReleasedV1, count)
                for count in _batches(running - before[1]):
                    await arrivals.skip(TaskOutputV1)
                    for _ in range(count):
                        await cell.allocate(_in_image("echo up; sleep 9000"))
                    await arrivals.of(TaskOutputV1, count)
                found.append(await _rest(cell, finished, running))
                before = (finished, running)
        await cell.ports().executor.sweep()
        await cell.log.close()
    return found


class Arrivals:
    """The events that the agent reports, each read once: a cell reads the whole log each time."""

    def __init__(self, cell: AgentCell) -> None:
        self._log = cell.log
        self._next: dict[Partition, int] = {}

    async def skip(self, cls: type[Event]) -> None:
        """Skip what is in the topic of a type now."""
        partition = Partition(cls.TOPICS[0])
        self._next[partition] = await self._log.end(partition)

    async def of(self, cls: type[Event], count: int) -> None:
        """Wait for `count` more events of a type."""
        partition = Partition(cls.TOPICS[0])
        while count > 0:
            stored = await self._log.read(partition, self._next[partition], max_records=1_000)
            self._next[partition] += len(stored)
            count -= sum(codec.decode(each.record).type == cls.TYPE for each in stored)
            at = {partition: self._next[partition]}
            if count > 0 and not stored and not await self._log.wait(at, ARRIVAL_S):
                raise TimeoutError(f"{count} more {cls.TYPE} are missing after {ARRIVAL_S} s")


def _batches(count: int) -> list[int]:
    """Return numbers of at most `AT_ONCE` with a sum."""
    return [min(AT_ONCE, count - begun) for begun in range(0, count, AT_ONCE)]


def _in_image(script: str) -> Run:
    return Run(script=script, image=CONTAINER_IMAGE)


async def _start(cell: AgentCell, kind: str, run: Run, runs: int) -> Row:
    """The median from the allocation to the first output in the log, one replica at a time."""
    took = []
    for _ in range(runs):
        began = time.perf_counter()
        task = await cell.allocate(run)
        await cell.until_output(task, "out")
        took.append(time.perf_counter() - began)
        await cell.ended(task)
    aim = f"<= {AIM_S}" if kind == "container" else ""
    return Row(f"{kind}: allocation to first output, p50", statistics.median(took), "s", aim)


async def _rest(cell: AgentCell, finished: int, running: int) -> Row:
    """The part of a core that the agent uses while nothing happens."""
    began_s, used_s = time.perf_counter(), time.process_time()
    await asyncio.sleep(REST_S)
    percent = 100 * (time.process_time() - used_s) / (time.perf_counter() - began_s)
    name = f"agent at rest, {finished} finished and {running} running containers"
    return Row(name, percent, "% of a core", f"<= {AIM_PERCENT}")
