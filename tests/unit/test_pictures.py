"""The picture of the demo: what the script draws from a log, and what the committed one shows."""

import contextlib
import itertools
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from docs.pictures.timeline import timeline_of
from docs.pictures.timeline_svg import Picture
from tests.support.kept_logs import kept_log
from yardmaster_cli.demo.cluster import NODES, SLOTS, DemoCluster, Programs
from yardmaster_cli.demo.run import DemoRun
from yardmaster_eventlog.order import LogOrder
from yardmaster_eventlog.port import EventLog
from yardmaster_schemas.api import Task
from yardmaster_schemas.events.decisions import PreemptionRequestedV1, SlotsAllocatedV1
from yardmaster_schemas.events.node_events import CheckpointDoneV1, NodeJoinedV1
from yardmaster_schemas.position import Position

ROOT: Final = Path(__file__).parents[2]
COMMITTED: Final = ROOT / "docs" / "pictures" / "demo.svg"
#: A log with preemptions, resumed attempts, gangs and checkpoints.
KEPT: Final = "rules-1/priority.db"
NAMESPACE: Final = "{http://www.w3.org/2000/svg}"


async def events_of(log: EventLog) -> list[Any]:
    return [
        entry.envelope.data
        async for entry in LogOrder(log, Position.start("main")).entries()
        if entry.envelope is not None
    ]


def of_class(svg: ET.Element, name: str) -> list[ET.Element]:
    return [element for element in svg.iter() if element.get("class") == name]


def top_of(element: ET.Element) -> float:
    return float(element.attrib["y"])


@pytest.fixture
async def drawn(tmp_path: Path) -> tuple[str, list[Any]]:
    """The picture of the kept log, and the events of the log."""
    log = await kept_log(KEPT, tmp_path)
    try:
        return Picture(await timeline_of(log)).draw(), await events_of(log)
    finally:
        await log.close()


async def test_the_same_log_gives_the_same_picture(
    drawn: tuple[str, list[Any]], tmp_path: Path
) -> None:
    (tmp_path / "again").mkdir()
    log = await kept_log(KEPT, tmp_path / "again")
    again = Picture(await timeline_of(log)).draw()
    await log.close()
    assert again == drawn[0]


async def test_every_attempt_has_its_bars_on_the_rows_of_its_gpus(
    drawn: tuple[str, list[Any]],
) -> None:
    svg, events = ET.fromstring(drawn[0]), drawn[1]
    rows = {row.attrib["data-gpu"]: row for row in of_class(svg, "row")}
    joined = [event for event in events if isinstance(event, NodeJoinedV1)]
    assert set(rows) == {f"{e.node}/{slot}" for e in joined for slot in range(e.gpus)}
    expected = sorted(
        (event.task_id.partition(".")[2], str(event.attempt), f"{placement.node}/{slot}")
        for event in events
        if isinstance(event, SlotsAllocatedV1)
        for placement in event.placements
        for slot in placement.slots
    )
    bars = of_class(svg, "attempt")
    found = [
        (bar.attrib["data-index"], bar.attrib["data-attempt"], bar.attrib["data-gpu"])
        for bar in bars
    ]
    assert len(expected) > 20
    assert sorted(found) == expected
    for bar in bars:
        box = next(bar.iter(f"{NAMESPACE}rect"))
        assert top_of(box) == top_of(rows[bar.attrib["data-gpu"]])
        assert float(box.attrib["width"]) > 0


async def test_bars_on_one_gpu_do_not_overlap(drawn: tuple[str, list[Any]]) -> None:
    by_gpu: dict[str, list[tuple[float, float]]] = {}
    for bar in of_class(ET.fromstring(drawn[0]), "attempt"):
        box = next(bar.iter(f"{NAMESPACE}rect"))
        left = float(box.attrib["x"])
        ends = (left, left + float(box.attrib["width"]))
        by_gpu.setdefault(bar.attrib["data-gpu"], []).append(ends)
    for ends_of_gpu in by_gpu.values():
        ordered = sorted(ends_of_gpu)
        for (_, end), (left, _) in itertools.pairwise(ordered):
            # A bar is at least one pixel wide, also when its attempt was shorter.
            assert left >= end - 1.2


async def test_checkpoints_preemptions_and_resumed_attempts_are_marked(
    drawn: tuple[str, list[Any]],
) -> None:
    svg, events = ET.fromstring(drawn[0]), drawn[1]
    preempted = {
        (event.task_id, event.attempt)
        for event in events
        if isinstance(event, PreemptionRequestedV1)
    }
    resumed = 0
    stopped = 0
    on_gpus = set()
    for event in events:
        if isinstance(event, SlotsAllocatedV1):
            slots = sum(len(placement.slots) for placement in event.placements)
            if slots:
                on_gpus.add((event.task_id, event.attempt))
            resumed += slots * (event.attempt > 1 and event.checkpoint is not None)
            stopped += slots * ((event.task_id, event.attempt) in preempted)
    in_the_legend = 1
    assert resumed > 0
    assert stopped > 0
    assert len(of_class(svg, "resumed")) == resumed + in_the_legend
    assert len(of_class(svg, "preempted")) == stopped + in_the_legend
    saved = sum(
        isinstance(event, CheckpointDoneV1) and (event.task_id, event.attempt) in on_gpus
        for event in events
    )
    assert len(of_class(svg, "checkpoint")) == saved + in_the_legend


class Rehearsal(DemoCluster):
    """Records the jobs of the demo instead of running them."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, Programs("python3", "examples", "checkpoints"), color=False)
        self.submitted: list[dict[str, str]] = []

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        yield

    def say(self, text: str) -> None:
        pass

    def yard(self, *words: str) -> int:
        return 0

    def submit(self, flags: Sequence[str], program: Sequence[str]) -> str:
        options = dict(zip(flags[::2], flags[1::2], strict=True))
        tasks = 1
        for flag, value in zip(flags[::2], flags[1::2], strict=True):
            if flag == "--matrix":
                tasks *= len(value.partition("=")[2].split(","))
        self.submitted.append(
            {
                "job": options["--name"],
                "tasks": str(tasks),
                "replicas": options.get("--replicas", "1"),
                "gpu-milli": str(int(options["--gpus"]) * 1000),
                "priority": options["--priority"],
                "preemptible": str(options.get("--kind") != "interactive").lower(),
            }
        )
        return options["--name"]

    def cancel(self, refs: Sequence[str]) -> None:
        pass

    def tasks(self) -> list[Task]:
        return []

    def watch(self, done: Callable[[list[Task]], bool], what: str) -> None:
        pass


def test_the_committed_picture_shows_the_jobs_and_gpus_of_the_demo(tmp_path: Path) -> None:
    rehearsal = Rehearsal(tmp_path)
    DemoRun(rehearsal).run()
    svg = ET.parse(COMMITTED).getroot()
    shown = [
        {key.removeprefix("data-"): value for key, value in element.attrib.items()}
        for element in svg.iter(f"{NAMESPACE}g")
        if "data-tasks" in element.attrib
    ]
    assert len(rehearsal.submitted) == 5
    assert shown == rehearsal.submitted
    assert len(of_class(svg, "row")) == NODES * SLOTS
    ran = {bar.attrib["data-job"] for bar in of_class(svg, "attempt")}
    assert ran == {job["job"] for job in rehearsal.submitted}
