"""A log keeps its rules until an operator switches them; then older programs stop by name."""

from dataclasses import make_dataclass
from typing import Any

import pytest

from tests.support.audit import assert_audit_clean
from tests.support.logs import LogBuilder, log_created, subject_of, submitted
from tests.support.memory_cell import CELL
from tests.support.toy_cell import ToyCell
from yardmaster_core.admission.machine import QuotaMachine
from yardmaster_core.commit import CommitReader
from yardmaster_core.errors import ChainBroken
from yardmaster_core.machine import Machine
from yardmaster_core.rules import RULES as OLD
from yardmaster_core.scheduling.machine import SchedulerMachine
from yardmaster_core.scheduling.policies import check
from yardmaster_eventlog.codec import decode
from yardmaster_runtime.cycle_reader import digest_of
from yardmaster_runtime.errors import DecisionNotEnabled, UnknownRules
from yardmaster_runtime.machine.leader import Leader
from yardmaster_runtime.replay.report import Report, RulesRange
from yardmaster_runtime.replay.verify import verify
from yardmaster_schemas.envelope import Event
from yardmaster_schemas.events import registry
from yardmaster_schemas.events.admissions import NodeCordonedV1, RequestRefusedV1
from yardmaster_schemas.events.decisions import TaskEndedV1
from yardmaster_schemas.events.machine import CycleCommittedV1, RulesEnabledV1
from yardmaster_schemas.events.requests import (
    CancelRequestedV1,
    DepartmentChangeRequestedV1,
    DepartmentConfig,
    NodeCordonRequestedV1,
    PolicyRef,
    PoolChangeRequestedV1,
    PoolConfig,
    ProjectChangeRequestedV1,
    ProjectConfig,
    RulesRequestedV1,
)
from yardmaster_schemas.reasons import RefusalCode
from yardmaster_schemas.topics import REQUESTS

#: Rules that decide as those of this version do, and which no program has yet.
NEW = OLD + 1
JOB = "job000000001"


class NewQuota(QuotaMachine):
    """Quota of the next release, which has the rules of this version too."""

    rules = NEW


class NewScheduler(SchedulerMachine):
    """The scheduler of the next release."""

    rules = NEW


class UpgradedCell(ToyCell):
    """A cell whose first cycles were led by the release before; the test plays the gateway."""

    def __init__(self) -> None:
        super().__init__()
        self._writers = LogBuilder(now_ms=self.clock.now_ms())
        self._leaders: list[Leader[Any]] = []

    async def create_upgraded(self) -> "UpgradedCell":
        await self.create()
        await self.lead(QuotaMachine(check), SchedulerMachine())
        await self.request(
            log_created(),
            PoolChangeRequestedV1(
                pool="default", config=PoolConfig(policy=PolicyRef(name="priority"))
            ),
            DepartmentChangeRequestedV1(department="research", config=DepartmentConfig()),
            ProjectChangeRequestedV1(project="nlp", config=ProjectConfig(department="research")),
        )
        await self.run()
        await self.lead(NewQuota(check), NewScheduler())
        return self

    async def lead(self, *machines: Machine[Any], **limits: Any) -> None:
        """Start a term of each."""
        self._leaders = [self.leader(machine, **limits) for machine in machines]
        for leader in self._leaders:
            await leader.take_term()

    async def run(self) -> None:
        """Run cycles until no leader has work."""
        while any([await leader.step() for leader in self._leaders]):
            pass

    async def request(self, *events: Event) -> None:
        gateway = self._writers.gateway
        await self.put("requests", [gateway.envelope(e, subject_of(e)) for e in events])

    async def asked(self, *events: Event) -> None:
        await self.request(*events)
        await self.run()

    async def commits(self, topic: str) -> list[CycleCommittedV1]:
        events = await self.events(topic)
        return [one for one in events if isinstance(one, CycleCommittedV1)]

    async def prove(self) -> Report:
        report = await verify(self.log, [NewQuota(check), NewScheduler()], CELL)
        # The test writes no details.
        assert [one for one in report.findings if one.topic != "details"] == []
        assert report.promises == ()
        await assert_audit_clean(self.log)
        return report


@pytest.fixture
async def upgraded() -> UpgradedCell:
    return await UpgradedCell().create_upgraded()


async def test_until_an_operator_switches_the_rules_an_older_program_follows_and_can_lead_again(
    upgraded: UpgradedCell,
) -> None:
    await upgraded.asked(NodeCordonRequestedV1(node="n1"), submitted(JOB))
    for topic in ("admissions", "decisions"):
        assert {one.rules for one in await upgraded.commits(topic)} == {OLD}
    for machine in (QuotaMachine(check), SchedulerMachine()):
        await upgraded.fold(machine)
    await upgraded.lead(QuotaMachine(check), SchedulerMachine())
    await upgraded.asked(CancelRequestedV1(job_id=JOB))
    assert any(isinstance(one, TaskEndedV1) for one in await upgraded.events("decisions"))
    await upgraded.prove()
    report = await verify(upgraded.log, [QuotaMachine(check), SchedulerMachine()], CELL)
    assert [one for one in report.findings if one.topic != "details"] == []


async def test_a_request_switches_quota_the_scheduler_follows_and_older_programs_stop_by_name(
    upgraded: UpgradedCell,
) -> None:
    followers = [
        await upgraded.fold(machine) for machine in (QuotaMachine(check), SchedulerMachine())
    ]
    await upgraded.asked(RulesRequestedV1(rules=NEW), submitted(JOB))
    for topic in ("admissions", "decisions"):
        events = await upgraded.events(topic)
        assert events.count(RulesEnabledV1(rules=NEW)) == 1
        assert (await upgraded.commits(topic))[-1].rules == NEW
    for follower in followers:
        with pytest.raises(UnknownRules, match=f"this program has rules {OLD}"):
            await follower.catch_up()
    report = await upgraded.prove()
    for proved in report.proved:
        ranges = [(one.rules, one.derived) for one in proved.ranges]
        assert ranges in ([(OLD, True), (NEW, True)], [(OLD, True)])


async def test_the_cycle_of_the_switch_is_recomputed_with_the_rules_with_which_it_began(
    upgraded: UpgradedCell,
) -> None:
    await upgraded.asked(NodeCordonRequestedV1(node="n1"), RulesRequestedV1(rules=NEW))
    await upgraded.asked(NodeCordonRequestedV1(node="n2"))
    report = await upgraded.prove()
    quota, scheduler = report.proved
    switched = next(c.cycle for c in await upgraded.commits("admissions") if c.rules == NEW)
    assert quota.ranges == (
        RulesRange(OLD, 1, switched, derived=True),
        RulesRange(NEW, switched + 1, switched + 1, derived=True),
    )
    # The scheduler's leader itself switches the whole cycle.
    switched = next(c.cycle for c in await upgraded.commits("decisions") if c.rules == NEW)
    assert scheduler.ranges[0].last_cycle == switched - 1


async def test_a_new_log_starts_with_the_newest_rules() -> None:
    cell = UpgradedCell()
    await cell.create()
    await cell.lead(NewQuota(check), NewScheduler())
    await cell.asked(
        log_created(),
        DepartmentChangeRequestedV1(department="research", config=DepartmentConfig()),
    )
    for topic in ("admissions", "decisions"):
        assert {one.rules for one in await cell.commits(topic)} == {NEW}


async def test_a_scheduler_that_starts_late_begins_with_the_rules_of_quota() -> None:
    cell = UpgradedCell()
    await cell.create()
    await cell.lead(QuotaMachine(check))
    await cell.asked(log_created(), NodeCordonRequestedV1(node="n1"))
    await cell.lead(NewScheduler())
    await cell.run()
    assert {one.rules for one in await cell.commits("decisions")} == {OLD}


async def test_a_switch_that_changes_nothing_is_refused_as_a_record(upgraded: UpgradedCell) -> None:
    await upgraded.asked(RulesRequestedV1(rules=NEW + 1), RulesRequestedV1(rules=OLD))
    # The older program, which cannot read these requests, follows.
    await upgraded.fold(QuotaMachine(check))
    await upgraded.asked(RulesRequestedV1(rules=NEW), RulesRequestedV1(rules=NEW))
    refused = [one.code for each in await upgraded.commits("admissions") for one in each.refused]
    assert refused == [
        *(RefusalCode.UNKNOWN_VERSION, RefusalCode.REPEATED, RefusalCode.REPEATED),
    ]
    assert (await upgraded.events("admissions")).count(RulesEnabledV1(rules=NEW)) == 1
    await upgraded.prove()


async def test_a_switch_that_a_cut_cycle_left_pending_is_judged_in_the_next_one(
    upgraded: UpgradedCell,
) -> None:
    await upgraded.lead(NewQuota(check), max_decisions=1)
    await upgraded.asked(NodeCordonRequestedV1(node="n1"), RulesRequestedV1(rules=NEW))
    assert (await upgraded.commits("admissions"))[-1].rules == NEW
    await upgraded.prove()


async def test_a_switch_that_a_newer_leader_made_meanwhile_is_refused(
    upgraded: UpgradedCell,
) -> None:
    """The leader of the release after next has no old rules any more: it switches by itself."""

    class Later(NewQuota):
        oldest_rules = NEW

    await upgraded.lead(NewQuota(check), max_decisions=1)
    await upgraded.request(NodeCordonRequestedV1(node="n1"), RulesRequestedV1(rules=NEW))
    assert await upgraded._leaders[0].step()
    await upgraded.lead(Later(check))
    await upgraded.run()
    events = await upgraded.events("admissions")
    assert events.count(RulesEnabledV1(rules=NEW)) == 1
    assert [one.request_type for one in events if isinstance(one, RequestRefusedV1)] == [
        "RulesRequested"
    ]
    report = await verify(upgraded.log, [Later(check), NewScheduler()], CELL)
    assert report.promises == ()
    assert report.findings == ()


async def test_a_claim_that_newer_rules_introduce_is_refused_as_unknown_until_they_are_enabled(
    upgraded: UpgradedCell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NodeCordonRequestedV1, "RULES", NEW)
    await upgraded.asked(NodeCordonRequestedV1(node="n1"))
    (refused,) = (await upgraded.commits("admissions"))[-1].refused
    assert refused.code is RefusalCode.UNKNOWN_TYPE
    await upgraded.asked(RulesRequestedV1(rules=NEW))
    await upgraded.asked(NodeCordonRequestedV1(node="n2"))
    events = await upgraded.events("admissions")
    assert [one.node for one in events if isinstance(one, NodeCordonedV1)] == ["n2"]
    report = await upgraded.prove()
    # The refusal is recomputed, since this program knows the rules of that cycle.
    assert report.proved[0].unreadable_then == 0


async def test_a_new_version_of_a_claim_is_refused_as_an_unknown_version_until_it_is_enabled(
    upgraded: UpgradedCell, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.event(REQUESTS, name="NodeCordonRequested", version=2, rules=NEW)(
        make_dataclass("NodeCordonRequestedV2", (), bases=(NodeCordonRequestedV1,), frozen=True)
    )
    newer: Any = registry.EVENTS.pop(("NodeCordonRequested", 2))
    monkeypatch.setitem(registry.EVENTS, ("NodeCordonRequested", 2), newer)
    await upgraded.asked(newer(node="n1"))
    (refused,) = (await upgraded.commits("admissions"))[-1].refused
    assert refused.code is RefusalCode.UNKNOWN_VERSION


async def test_a_leader_writes_no_decision_that_newer_rules_introduce(
    upgraded: UpgradedCell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NodeCordonedV1, "RULES", NEW)
    await upgraded.request(NodeCordonRequestedV1(node="n1"))
    before = await upgraded.stored("admissions")
    with pytest.raises(DecisionNotEnabled, match=f"NodeCordoned, which rules {NEW} introduce"):
        await upgraded.run()
    assert await upgraded.stored("admissions") == before


async def test_a_cycle_with_a_decision_that_newer_rules_introduce_breaks_the_chain(
    upgraded: UpgradedCell, monkeypatch: pytest.MonkeyPatch
) -> None:
    await upgraded.asked(NodeCordonRequestedV1(node="n1"))
    monkeypatch.setattr(NodeCordonedV1, "RULES", NEW)
    reader = CommitReader("quota", CELL, "admissions")
    *before, last = await upgraded.stored("admissions")
    for one in before:
        reader.feed(one.offset, digest_of(one.record), decode(one.record))
    with pytest.raises(ChainBroken, match=f"rules {NEW} introduce NodeCordoned"):
        reader.feed(last.offset, digest_of(last.record), decode(last.record))
    with pytest.raises(AssertionError, match=f"rules {NEW} introduce it, not {OLD}"):
        await assert_audit_clean(upgraded.log)
