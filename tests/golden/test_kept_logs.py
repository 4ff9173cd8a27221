"""This version folds, verifies and continues the logs of earlier versions."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.kept_logs import KEPT, SIMULATED, kept_log, rules_of
from tests.support.toy_cell import CELL, ToyCell
from tests.support.views import telemetry
from yardmaster_core.admission.machine import QuotaMachine
from yardmaster_core.machine import Machine
from yardmaster_core.rules import OLDEST_RECOMPUTED, OLDEST_RULES, RULES
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
from yardmaster_runtime.machine.leader import Leader
from yardmaster_runtime.replay.verify import verify
from yardmaster_schemas.envelope import Event
from yardmaster_schemas.events.decisions import SharesDividedV1
from yardmaster_schemas.events.machine import CycleCommittedV2, RulesEnabledV1
from yardmaster_schemas.events.requests import (
    QUOTA_SETTINGS,
    PolicyRef,
    PoolChangeRequestedV1,
    PoolConfig,
    ProjectChangeRequestedV1,
    ProjectConfig,
    Quota,
    RulesRequestedV1,
)
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


#: Machine -> the oldest rules whose decisions it recomputes.
RECOMPUTED = {"quota": OLDEST_RULES, "scheduler": OLDEST_RECOMPUTED}


def machines() -> list[Machine[Any]]:
    return [QuotaMachine(check), SchedulerMachine()]


def test_there_are_logs_of_both_forms_and_of_each_version_of_the_rules() -> None:
    """If the newest rules have none: `make kept-log`, then commit the folder."""
    assert {"before-1/sqlite.db", "before-1/kafka.jsonl"} <= set(KEPT)
    assert {rules_of(name) for name in KEPT} == set(range(RULES + 1))


async def test_a_kept_log_is_proved_and_decisions_of_rules_that_the_program_has_are_recomputed(
    log: EventLog, kept: str
) -> None:
    rules = rules_of(kept)
    report = await verify(log, machines(), CELL)
    assert report.findings == ()
    assert report.promises == ()
    for proved in report.proved:
        (only,) = proved.ranges
        assert (only.rules, only.derived) == (rules, rules >= RECOMPUTED[proved.machine])
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
        commits = [one for one in events if isinstance(one, CycleCommittedV2)]
        assert {one.rules for one in commits} == {former, later} - {0}
        enabled = [one for one in events if isinstance(one, RulesEnabledV1)]
        assert enabled == ([] if former == later else [RulesEnabledV1(rules=later)])
    report = await verify(log, machines(), CELL)
    assert report.findings == ()
    assert report.promises == ()
    for proved in report.proved:
        ranges = [(one.rules, one.derived) for one in proved.ranges]
        oldest = RECOMPUTED[proved.machine]
        if former == later:
            assert ranges == [(former, former >= oldest)]
            continue
        assert ranges == [(former, False), (later, later >= oldest)]
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


@pytest.mark.parametrize("kept", [name for name in KEPT if name not in SIMULATED])
@pytest.mark.parametrize("fold", FOLDS.values(), ids=FOLDS)
async def test_views_of_a_kept_log_are_folded_to_its_end(
    log: EventLog, fold: projecting.Fold
) -> None:
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


async def test_quotas_stored_under_rules_7_take_effect_when_the_pool_gets_the_policy_quota(
    tmp_path: Path,
) -> None:
    former = QUOTA_SETTINGS - 1
    log = await kept_log(f"rules-{former}/priority.db", tmp_path)
    cell = ToyCell(log)

    async def lead() -> list[Leader[Any]]:
        leaders = [cell.leader(machine) for machine in machines()]
        for leader in leaders:
            await leader.take_term()
        return leaders

    async def asked(*events: Event) -> None:
        for event in events:
            await cell.ask(event=event)
        while any([await leader.step() for leader in leaders]):
            pass

    async def divided() -> list[SharesDividedV1]:
        events = await cell.events("decisions")
        return [one for one in events if isinstance(one, SharesDividedV1)]

    leaders = await lead()
    quotas = {"default": Quota(deserved_milli=3000, over_quota_weight=2)}
    project = ProjectConfig(department="default", quotas=quotas)
    await asked(ProjectChangeRequestedV1(project="nlp", config=project))
    await asked(RulesRequestedV1(rules=QUOTA_SETTINGS))
    assert await divided() == []
    config = PoolConfig(policy=PolicyRef(name="quota"))
    await asked(PoolChangeRequestedV1(pool="default", config=config))
    (event, *_) = await divided()
    assert {queue.name: queue.deserved.gpu_milli for queue in event.queues}["nlp"] == 3000
    report = await verify(log, machines(), CELL)
    assert report.findings == ()
    assert report.promises == ()
    for proved in report.proved:
        assert [one.rules for one in proved.ranges] == [former, QUOTA_SETTINGS]
    await log.close()
