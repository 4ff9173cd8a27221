"""This version folds, verifies and continues the logs of earlier versions."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.kept_logs import KEPT, kept_log, rules_of
from tests.support.memory_cell import CELL
from tests.support.toy_cell import ToyCell
from tests.support.views import telemetry
from yardmaster_core.admission.machine import QuotaMachine
from yardmaster_core.machine import Machine
from yardmaster_core.rules import OLDEST_RULES, RULES
from yardmaster_core.scheduling.machine import SchedulerMachine
from yardmaster_core.scheduling.policies import check
from yardmaster_core.scheduling.state.cluster import ClusterState
from yardmaster_eventlog.port import EventLog
from yardmaster_projections import fold as projecting
from yardmaster_projections.fold import FOLDS
from yardmaster_projections.memory import MemoryViewStore
from yardmaster_projections.rows import TaskRow
from yardmaster_runtime.clock import ManualClock
from yardmaster_runtime.machine.fold import Fold
from yardmaster_runtime.replay.verify import verify
from yardmaster_schemas.events.machine import CycleCommittedV1, RulesEnabledV1
from yardmaster_schemas.topics import TOPICS
from yardmaster_views.follower import Follower, Metrics, Views


@pytest.fixture(params=KEPT)
def kept(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
async def log(kept: str, tmp_path: Path) -> AsyncIterator[EventLog]:
    opened = await kept_log(kept, tmp_path)
    yield opened
    await opened.close()


def machines() -> list[Machine[Any]]:
    return [QuotaMachine(check), SchedulerMachine()]


def test_there_are_logs_of_each_version_of_the_rules() -> None:
    """If the newest rules have none: `make kept-log`, then commit the folder."""
    assert {rules_of(name) for name in KEPT} == set(range(1, RULES + 1))


async def test_a_kept_log_is_proved_and_decisions_of_rules_that_the_program_has_are_recomputed(
    log: EventLog, kept: str
) -> None:
    rules = rules_of(kept)
    report = await verify(log, machines(), CELL)
    assert report.findings == ()
    assert report.promises == ()
    for proved in report.proved:
        (only,) = proved.ranges
        assert (only.rules, only.derived) == (rules, rules >= OLDEST_RULES)
        assert (only.first_cycle, only.last_cycle) == (1, proved.cycles)
    assert sum(proved.cycles for proved in report.proved) >= 56
    assert sum(proved.decisions for proved in report.proved) >= 60


async def test_a_kept_log_is_continued_under_its_rules_or_the_oldest_and_stays_provable(
    log: EventLog, kept: str
) -> None:
    former = rules_of(kept)
    later = max(former, OLDEST_RULES)
    cell = ToyCell(log)
    before = {}
    for machine in machines():
        leader = cell.leader(machine)
        await leader.take_term()
        before[machine.name] = leader.fold.reader.cycle
        # Decisions due by time alone: silent nodes, ended pauses.
        cell.clock.advance(3600.0)
        # A request, so that quota writes a verdict for the scheduler to take, and not only the ends
        # that it reads.
        await cell.ask()
        while not await leader.step():
            await cell.ask()
    for machine in machines():
        events = await cell.events(machine.output.name)
        commits = [one for one in events if isinstance(one, CycleCommittedV1)]
        assert {one.rules for one in commits} == {former, later}
        enabled = [one for one in events if isinstance(one, RulesEnabledV1)]
        assert enabled == ([] if former == later else [RulesEnabledV1(rules=later)])
    report = await verify(log, machines(), CELL)
    assert report.findings == ()
    assert report.promises == ()
    for proved in report.proved:
        ranges = [(one.rules, one.derived) for one in proved.ranges]
        if former == later:
            assert ranges == [(former, True)]
            continue
        assert ranges == [(former, False), (later, True)]
        assert proved.ranges[0].last_cycle == before[proved.machine]


async def test_a_kept_log_restores_from_a_snapshot_taken_in_its_middle(log: EventLog) -> None:
    for machine in machines():
        whole = Fold(log, machine, CELL)
        await whole.catch_up()
        part = Fold(log, machine, CELL)
        while part.reader.cycle < 15 and await part.cursor.fill(1):
            counted = part.feed(part.cursor.pop())
            if counted is not None:
                await part.follow(counted)
        again = Fold(log, machine, CELL, dump=part.dump())
        await again.catch_up()
        assert again.dump() == whole.dump()


@pytest.mark.parametrize("fold", FOLDS.values(), ids=FOLDS)
async def test_views_of_a_kept_log_are_folded_to_its_end(
    log: EventLog, fold: projecting.Fold
) -> None:
    # A simulation has no topics of views and nodes.
    await log.create_topics(list(TOPICS.values()))
    store = MemoryViewStore(CELL, ManualClock())
    follower = Follower(log, Views(store, store), CELL, 0, Metrics(telemetry()), fold=fold)
    await follower.start()
    await follower.catch_up()
    decided: Fold[ClusterState] = Fold(log, SchedulerMachine(), CELL)
    await decided.catch_up()
    position = await store.position()
    assert position.of("decisions") == decided.reader.boundary
    assert decided.state.tasks
    for task_id, task in decided.state.tasks.items() if fold is projecting.VIEWS else ():
        row = await store.get(TaskRow, task_id)
        assert row is not None
        assert row.phase.final == task.phase.final
