"""A log that older rules decided is folded and led on; only the current rules recompute it."""

from dataclasses import replace
from typing import Any

import pytest

from tests.support.memory_cell import CELL
from tests.support.toy_cell import ToyCell
from tests.support.toy_machine import ToyMachine, job_id
from yardmaster_core.commit import CommitReader
from yardmaster_core.errors import ChainBroken
from yardmaster_core.machine import Decision
from yardmaster_eventlog.codec import decode
from yardmaster_eventlog.memory import MemoryLog
from yardmaster_eventlog.port import Partition
from yardmaster_runtime.clock import ManualClock
from yardmaster_runtime.cycle_reader import digest_of
from yardmaster_runtime.errors import UnknownRules
from yardmaster_runtime.replay.report import RulesRange
from yardmaster_runtime.replay.verify import verify
from yardmaster_schemas.events.admissions import CancelAcceptedV1, TaskResumedV1
from yardmaster_schemas.events.machine import (
    CycleCommittedV1,
    RulesEnabledV1,
    SnapshotTakenV1,
    TermStartedV1,
)
from yardmaster_schemas.topics import TOPICS


async def lead(cell: ToyCell, rules: int, *, requests: int, cycles: int, **limits: Any) -> None:
    """A term of a leader with these rules, which answers new requests."""
    leader = cell.leader(ToyMachine.quota(rules), **limits)
    await leader.take_term()
    if requests:
        await cell.ask(requests)
    for _ in range(cycles):
        assert await leader.step()


@pytest.fixture
async def upgraded() -> ToyCell:
    """Rules 1 decide two cycles, rules 2 one."""
    cell = await ToyCell().create()
    await lead(cell, 1, requests=2, cycles=2, max_inputs=1)
    await lead(cell, 2, requests=1, cycles=1)
    return cell


async def test_a_new_log_names_the_rules_of_its_first_leader_and_enables_nothing() -> None:
    cell = await ToyCell().create()
    await lead(cell, 2, requests=1, cycles=1)
    events = await cell.events("admissions")
    assert [type(one) for one in events] == [TermStartedV1, TaskResumedV1, CycleCommittedV1]
    assert [one.rules for one in events if isinstance(one, CycleCommittedV1)] == [2]


async def test_the_first_cycle_of_newer_rules_enables_them_and_only_that_one(
    upgraded: ToyCell,
) -> None:
    await lead(upgraded, 2, requests=1, cycles=1)
    events = await upgraded.events("admissions")
    named = [one.rules for one in events if isinstance(one, CycleCommittedV1)]
    assert named == [1, 1, 2, 2]
    assert [one for one in events if isinstance(one, RulesEnabledV1)] == [RulesEnabledV1(rules=2)]
    assert [type(one) for one in events[6:9]] == [RulesEnabledV1, TaskResumedV1, CycleCommittedV1]


async def test_a_cycle_that_was_cut_under_older_rules_is_continued_under_newer_ones() -> None:
    cell = await ToyCell().create()
    await lead(cell, 1, requests=3, cycles=1, max_decisions=1)
    await lead(cell, 2, requests=0, cycles=2, max_decisions=2)
    events = [type(one) for one in await cell.events("admissions")]
    assert events.count(CancelAcceptedV1) == 1
    assert events.count(TaskResumedV1) == 2
    report = await verify(cell.log, [ToyMachine.quota(2)], CELL, promises=False)
    assert report.ok


async def test_observations_wait_for_the_cycle_after_the_one_that_enables_rules() -> None:
    cell = await ToyCell().create()
    await lead(cell, 1, requests=1, cycles=1)
    leader = cell.leader(ToyMachine.quota(2), max_decisions=1)
    await leader.take_term()
    taken = SnapshotTakenV1(cycle=1, state_digest="0" * 64)
    leader._observations.put(Decision(taken, CELL))
    while await leader.step():
        pass
    assert [type(one) for one in (await cell.events("admissions"))[4:]] == [
        *(RulesEnabledV1, CycleCommittedV1),
        *(SnapshotTakenV1, CycleCommittedV1),
    ]
    await cell.fold(ToyMachine.quota(2))


async def test_verify_recomputes_cycles_of_current_rules_and_reports_the_older_ones(
    upgraded: ToyCell,
) -> None:
    report = await verify(upgraded.log, [ToyMachine.quota(2)], CELL, promises=False)
    assert report.ok
    assert report.proved[0].ranges == (
        RulesRange(rules=1, first_cycle=1, last_cycle=2, derived=False),
        RulesRange(rules=2, first_cycle=3, last_cycle=3, derived=True),
    )
    assert report.proved[0].decisions == 4


@pytest.mark.parametrize(("topic", "offset"), [("requests", 1), ("admissions", 1)])
async def test_a_changed_record_of_older_rules_is_found(
    upgraded: ToyCell, topic: str, offset: int
) -> None:
    log = MemoryLog(ManualClock())
    await log.create_topics(list(TOPICS.values()))
    for name in TOPICS:
        for one in await upgraded.stored(name):
            record = one.record
            if (name, one.offset) == (topic, offset):
                record = replace(record, value=(record.value or b"") + b" ")
            await log.append(Partition(name), [record])
    report = await verify(log, [ToyMachine.quota(2)], CELL, promises=False)
    assert report.first is not None
    assert (report.first.topic, report.first.offset) == (topic, offset)


async def test_a_program_with_older_rules_neither_leads_nor_proves_a_newer_log(
    upgraded: ToyCell,
) -> None:
    with pytest.raises(UnknownRules, match="rules 2 decided cycle 3; this program has rules 1"):
        await upgraded.leader(ToyMachine.quota(1)).take_term()
    report = await verify(upgraded.log, [ToyMachine.quota(1)], CELL, promises=False)
    assert report.first is not None
    assert "this program has rules 1" in report.first.found


@pytest.mark.parametrize("rules", [1, 3])
async def test_rules_that_are_not_those_enabled_break_the_chain(
    upgraded: ToyCell, rules: int
) -> None:
    reader = CommitReader("quota", CELL, "admissions")
    *before, last = await upgraded.stored("admissions")
    for one in before:
        reader.feed(one.offset, digest_of(one.record), decode(one.record))
    commit = decode(last.record)
    assert isinstance(commit.data, CycleCommittedV1)
    changed = replace(commit, data=replace(commit.data, rules=rules))
    with pytest.raises(ChainBroken, match=f"rules are {rules} after 1"):
        reader.feed(last.offset, digest_of(last.record), changed)


async def test_a_snapshot_keeps_the_rules_that_the_log_had_reached(upgraded: ToyCell) -> None:
    fold = await upgraded.fold(ToyMachine.quota(2))
    again = await upgraded.fold(ToyMachine.quota(2), dump=fold.dump())
    assert (fold.reader.rules, again.reader.rules) == (2, 2)
    assert job_id(2) in fold.state.answered
