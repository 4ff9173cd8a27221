"""Both real machines under random, honest actors: the audit finds nothing in the log they write.

It shares no code with them, so each checks the other: the test fails when the machines
break a promise, and when the audit is stricter than a promise.
"""

from typing import Any

import pytest

from tests.support.honest_actors import HonestActors
from tests.support.logs import START_MS, LogBuilder, MachineWriter
from yardmaster_core.admission.machine import QuotaMachine
from yardmaster_core.audit import Audit
from yardmaster_core.machine import Decision, Machine
from yardmaster_core.scheduling.machine import SchedulerMachine
from yardmaster_core.scheduling.policies import POLICIES
from yardmaster_schemas.events.requests import (
    PolicyRef,
)

NODES = [f"n{i}" for i in range(4)]
Key = tuple[str, int, int]


class Part:
    """One machine with its state; its cycles go into the log."""

    def __init__(self, machine: Machine[Any], writer: MachineWriter, log: LogBuilder) -> None:
        self.machine = machine
        self.writer = writer
        self.log = log
        writer.rules = machine.rules
        self.state = machine.initial(log.cell)
        self.cycles = 0

    def cycle(self, *observed: Decision, limit: int = 1000, after_ms: int = 1000) -> list[Any]:
        """Run a cycle; return its decisions."""
        machine, log = self.machine, self.log
        self.cycles += 1
        self.state = machine.begin_cycle(self.state, self.cycles, log.now_ms + after_ms)
        refused = []
        for topic in self.writer.inputs:
            for entry in log.of(topic)[self.writer.taken[topic] :]:
                assert entry.envelope is not None
                claim = topic in ("requests", "node-events")
                code = machine.refusal(self.state, entry.envelope) if claim else None
                if code is not None:
                    refused.append((topic, entry.offset, code))
                elif entry.envelope.type not in ("TermStarted", "CycleCommitted"):
                    self.state = machine.apply(self.state, entry.envelope.data, entry.envelope.id)
        verdict = machine.decide(self.state, limit=limit, observed=observed)
        entries = self.writer.cycle(
            *((d.event, d.cause) for d in verdict.decisions),
            after_ms=after_ms,
            refused=refused,
            complete=verdict.complete,
            state=verdict.state_digest,
        )
        for entry in entries[:-1]:
            assert entry.envelope is not None
            self.state = machine.apply(self.state, entry.envelope.data, entry.envelope.id)
        self.state = machine.end_cycle(self.state, complete=verdict.complete)
        return [d.event for d in verdict.decisions]


@pytest.mark.parametrize("seed", range(40))
def test_the_audit_finds_nothing_in_the_log_of_honest_actors(seed: int) -> None:
    # The policies take turns, twice for each policy: with nodes enrolled and without.
    name, version = list(POLICIES)[seed // 2 % len(POLICIES)]
    policy = PolicyRef(name=name, version=version)
    actors = HonestActors(seed, START_MS, policy, enrolls=bool(seed % 2))
    log, chance = actors.log, actors.chance
    quota = Part(QuotaMachine(), log.quota, log)
    scheduler = Part(SchedulerMachine(), log.scheduler, log)
    actors.begin()
    for _ in range(150):
        actors.act()
        quota.cycle(limit=chance.choice([3, 1000]))
        observed = [Decision(silence, silence.node) for silence in actors.observed()]
        after_ms = chance.choice([0, 100, 1000, 1000, 5000, 30_000])
        limit = chance.choice([4, 1000])
        for event in scheduler.cycle(*observed, limit=limit, after_ms=after_ms):
            actors.obey(event)
    auditor = Audit()
    for record in log.fed():
        auditor.feed(*record)
    findings = auditor.finish()
    assert findings == (), "\n".join(str(f) for f in findings[:5])
    kinds = {e.envelope.type for e in log.entries if e.envelope is not None}
    assert {"SlotsAllocated", "TaskEnded", "TaskRequeued"} <= kinds, "no task ran"
