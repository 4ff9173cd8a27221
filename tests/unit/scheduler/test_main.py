"""The service with the real machines: jobs are submitted, placed, relayed, run, and proved."""

import asyncio
import sqlite3
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.cell_world import World, job, of, submission
from tests.support.logs import (
    exited,
    joined,
    released,
    started,
    submitted,
)
from yardmaster_core.admission.machine import QuotaMachine
from yardmaster_core.machine import Machine
from yardmaster_core.scheduling.machine import SchedulerMachine
from yardmaster_core.scheduling.policies import check
from yardmaster_core.scheduling.state.phases import NodeState
from yardmaster_core.testing import Cell
from yardmaster_eventlog.errors import UnknownTopic
from yardmaster_eventlog.port import Partition, Record
from yardmaster_eventlog.sqlite.log import SqliteLog
from yardmaster_runtime.clock import SystemClock
from yardmaster_runtime.errors import BeforeFirstCycle
from yardmaster_runtime.machine.election import ManualElection
from yardmaster_runtime.replay.rebuild import state_at
from yardmaster_runtime.replay.verify import verify
from yardmaster_runtime.settings import RuntimeSettings
from yardmaster_scheduler import main as scheduler
from yardmaster_scheduler.main import known_nodes, live_nodes, needs_topic
from yardmaster_schemas.events.decisions import (
    NodeLostV1,
    SlotsAllocatedV1,
    StopRequestedV1,
    TaskEndedV1,
    TaskRequeuedV1,
)
from yardmaster_schemas.events.machine import CycleCommittedV1
from yardmaster_schemas.events.requests import CancelRequestedV1, Enrollment, NodeEnrolRequestedV1
from yardmaster_schemas.instants import LAST_MS, rfc3339
from yardmaster_schemas.position import Position
from yardmaster_schemas.resources import Resources
from yardmaster_schemas.topics import TOPICS


async def test_jobs_are_placed_relayed_run_and_proved(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.create()
    async with world.running():
        await world.claim(joined("n1", 2))
        await world.request(*(submission(n) for n in range(3)))
        allocated = of(
            SlotsAllocatedV1, await world.happens(lambda e: len(of(SlotsAllocatedV1, e)) == 2)
        )
        for each in allocated:
            await world.claim(started(each.task_id, "n1"))
            await world.claim(exited(each.task_id, "n1"), released(each.task_id, "n1"))
        await world.happens(lambda e: len(of(SlotsAllocatedV1, e)) == 3)
        await world.happens(lambda e: len(of(TaskEndedV1, e)) == 2)
        given = await world.relayed("n1", 3)
        assert len(of(SlotsAllocatedV1, given)) == 3
    await world.prove()


async def test_a_restart_continues_and_relays_at_most_one_cycle_again(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    await world.create()
    async with world.running():
        await world.claim(joined("n1", 8))
    for life in range(4):
        async with world.running():
            await world.request(submission(life))
            await world.happens(lambda e, n=life: len(of(SlotsAllocatedV1, e)) == n + 1)  # type: ignore[misc]
            for _ in range(30):
                world.clock.advance(0.02)
                await asyncio.sleep(0.001)
    assert await world.snapshots.cycles("scheduler", "main")
    assert '"snapshot_cycle": 3' in world.lines.getvalue(), "a later life started from it"
    given = [e.task_id for e in of(SlotsAllocatedV1, await world.assigned("n1"))]
    assert set(given) == {f"{job(n)}.0" for n in range(4)}
    assert all(given.count(one) <= 2 for one in given)
    await world.prove()


async def test_a_silent_node_is_lost_and_its_tasks_are_requeued(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.create(node_timeout_s=3)
    async with world.running():
        await world.claim(joined("n1", 2))
        await world.request(submission(0))
        await world.happens(lambda e: bool(of(SlotsAllocatedV1, e)))
        world.clock.advance(2)
        found = await world.happens(lambda e: bool(of(NodeLostV1, e)))
        assert of(NodeLostV1, found)[0].node == "n1"
        await world.claim(joined("n1", 2, life=2))
        await world.happens(lambda e: len(of(SlotsAllocatedV1, e)) == 2)
        for _ in range(20):
            await asyncio.sleep(0)
        assert [type(e) for e in await world.assigned("n1")] == [
            SlotsAllocatedV1,
            NodeLostV1,
            SlotsAllocatedV1,
        ]
    await world.prove()


async def test_a_silent_node_is_lost_though_leaders_change_faster_than_its_timeout(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    await world.create(node_timeout_s=10)
    elections = [ManualElection(), ManualElection()]
    async with world.running(), asyncio.TaskGroup() as group:
        await world.claim(joined("n1", 2))
        await world.happens(lambda e: bool(of(CycleCommittedV1, e)))
        ports = [
            replace(world.ports("scheduler"), elections=partial(lambda election, _: election, each))
            for each in elections
        ]
        replicas = [group.create_task(scheduler.run(each, RuntimeSettings())) for each in ports]
        terms = 0
        while not of(NodeLostV1, await world.decisions()) and terms < 12:
            here, there = elections[terms % 2], elections[(terms + 1) % 2]
            there.depose()
            here.elect()
            terms += 1
            for _ in range(4):
                await world.run_for_half_a_second()
        for task in replicas:
            task.cancel()
    (lost,) = of(NodeLostV1, await world.decisions())
    assert lost.node == "n1"
    assert 5 <= terms <= 7, "it is lost 10 s after its last heartbeat, by leaders of 2 s each"
    await world.prove()


async def test_in_the_last_second_of_the_year_9999_tasks_still_start_fail_and_stop(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    world.clock.advance((LAST_MS - world.clock.now_ms()) / 1000 - 0.5)
    await world.create()
    async with world.running():
        await world.claim(joined("n1", 2))
        one = Resources(gpus=1, gpu_milli=1000)
        await world.request(*(submitted(job(n), resources=one, max_restarts=3) for n in range(2)))
        found = await world.happens(lambda e: len(of(SlotsAllocatedV1, e)) == 2)
        fails, stops = (each.task_id for each in of(SlotsAllocatedV1, found))
        await world.claim(started(fails, "n1"), started(stops, "n1"))
        await world.claim(exited(fails, "n1", exit_code=1), released(fails, "n1"))
        await world.request(CancelRequestedV1(job_id=stops.split(".")[0], index=0))
        found = await world.happens(
            lambda e: bool(of(StopRequestedV1, e)) and bool(of(TaskRequeuedV1, e))
        )
    assert of(StopRequestedV1, found)[0].deadline_at_ms == LAST_MS
    assert of(TaskRequeuedV1, found)[0].not_before_ms == LAST_MS
    await world.prove()


async def test_an_enrolled_node_has_its_topic_before_it_joins_and_an_unknown_one_never(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    await world.create()
    async with world.running():
        enrollment = Enrollment(pool="default", gpus=2)
        await world.request(NodeEnrolRequestedV1(node="n1", enrollment=enrollment))
        assert await world.relayed("n1", 0) == []
        await world.claim(joined("n9", 2))
        await world.run_for_half_a_second()
    with pytest.raises(UnknownTopic):
        await world.assigned("n9")
    await world.prove()


def test_a_new_relay_creates_topics_for_joined_and_enrolled_nodes() -> None:
    cell = Cell()
    cell.node("n1")
    cell.cycle()
    for name in ("n1", "n2", "n3"):
        cell.enroll(name)
    cell.revoke("n3")
    cell.cycle()
    assert known_nodes(cell.state) == {"n1", "n2"}
    assert [name for name in ("n1", "n2", "n3") if needs_topic(cell.state, name)] == ["n1", "n2"]


def test_a_revoked_node_needs_its_topic_until_it_is_gone_and_again_after_an_enrollment() -> None:
    cell = Cell()
    cell.enroll("n1")
    cell.node("n1")
    cell.submit("job", gpus=1)
    cell.cycle()
    cell.revoke("n1")
    cell.cycle()
    assert needs_topic(cell.state, "n1"), "its agent must stop the task"
    cell.cycle(silent={"n1": cell.now_ms}, after_s=3600)
    assert cell.state.nodes["n1"].state is NodeState.LOST
    assert not needs_topic(cell.state, "n1")
    cell.enroll("n1")
    cell.cycle()
    assert needs_topic(cell.state, "n1")


def test_in_an_open_cell_a_lost_node_needs_its_topic_and_one_that_left_does_not() -> None:
    cell = Cell()
    for name in ("n1", "n2"):
        cell.node(name)
    cell.cordon("n3")
    cell.cycle()
    cell.leaves("n1")
    cell.cycle(silent={"n2": cell.now_ms}, after_s=3600)
    assert cell.state.nodes["n2"].state is NodeState.LOST
    assert [name for name in ("n1", "n2", "n3") if needs_topic(cell.state, name)] == ["n2"]


async def test_the_rebuilt_state_equals_the_state_of_that_moment(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.create(node_timeout_s=3600)
    async with world.running():
        await world.claim(joined("n1", 2))
        await world.request(submission(0))
        await world.happens(lambda e: len(of(SlotsAllocatedV1, e)) == 1)
        between_ms = world.clock.now_ms()
        end = await world.log.end(Partition("decisions"))
        world.clock.advance(60)
        await world.request(submission(1))
        await world.happens(lambda e: len(of(SlotsAllocatedV1, e)) == 2)
    machine = SchedulerMachine()
    then = await state_at(world.log, machine, "main", time_ms=between_ms + 1000)
    assert set(then.state.jobs) == {job(0)}
    same = await state_at(world.log, machine, "main", position=Position(cell="main", decisions=end))
    assert same.state.digest() == then.state.digest()
    assert same.cycle == then.cycle
    again = await state_at(world.log, machine, "main", cycle=then.cycle)
    assert again.position == then.position
    assert then.position.covers(Position(cell="main", decisions=end))
    now = await state_at(world.log, machine, "main")
    assert set(now.state.jobs) == {job(0), job(1)}
    first = await state_at(world.log, machine, "main", cycle=1)
    assert (await state_at(world.log, machine, "main", time_ms=first.now_ms)).cycle >= 1
    start = f"cycle 1 at {rfc3339(first.now_ms)}"
    for before in (
        {"cycle": 0},
        {"time_ms": first.now_ms - 1},
        {"position": Position(cell="main", decisions=0)},
    ):
        with pytest.raises(BeforeFirstCycle, match=start):
            await state_at(world.log, machine, "main", **before)


async def test_hostile_claims_stop_nothing(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.create()
    async with world.running():
        await world.claim(joined("n1", 2))
        for number in range(30):
            await world.log.append(Partition("node-events"), [Record(b"main", b"x%d" % number)])
            await world.log.append(Partition("requests"), [Record(b"main", b"x%d" % number)])
        await world.request(submission(0))
        await world.happens(lambda e: len(of(SlotsAllocatedV1, e)) == 1)
    assert await world.log.end(Partition("quarantine")) == 60
    await world.prove()


async def test_a_record_removed_from_a_log_file_is_named(tmp_path: Path) -> None:
    world = World(tmp_path / "snapshots")
    await world.create()
    async with world.running():
        await world.claim(*(joined(f"n{n}", 1) for n in (1, 2, 3)))
        await world.request(*(submission(n) for n in range(4)))
        await world.happens(lambda e: len(of(SlotsAllocatedV1, e)) == 3)
    path = tmp_path / "log.db"
    for topic, offset in (("requests", 5), ("admissions", 3), ("node-events", 1), ("decisions", 2)):
        path.unlink(missing_ok=True)
        file = await SqliteLog.open(path, SystemClock())
        await file.create_topics(list(TOPICS.values()))
        for name in TOPICS:
            records = await world.log.read(Partition(name), 0)
            if records:
                await file.append(Partition(name), [stored.record for stored in records])
        await file.close()
        with closing(sqlite3.connect(path)) as raw, raw:
            (number,) = raw.execute(
                "SELECT id FROM partitions WHERE topic = ?", (topic,)
            ).fetchone()
            deleted = raw.execute(
                "DELETE FROM records WHERE partition = ? AND offset = ?", (number, offset)
            )
            assert deleted.rowcount == 1
        file = await SqliteLog.open(path, SystemClock())
        machines: list[Machine[Any]] = [QuotaMachine(check), SchedulerMachine()]
        report = await verify(file, machines, "main", promises=False)
        await file.close()
        assert report.first is not None
        assert (report.first.topic, report.first.offset) == (topic, offset)


def test_a_silent_node_that_is_not_lost_is_still_watched() -> None:
    cell = Cell()
    cell.node("n1")
    cell.cycle()
    cell.cycle(after_s=59, silent={"n1": cell.now_ms})
    assert [node.name for node in live_nodes(cell.state)] == ["n1"]
    lost = cell.cycle(after_s=1, silent={"n1": cell.now_ms - 59_000})
    assert of(NodeLostV1, lost)
    assert not list(live_nodes(cell.state))
