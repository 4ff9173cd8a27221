"""Drives quota's state machine as the runtime does, and checks the invariants of every cycle."""

import json
from collections.abc import Sequence
from typing import Any

from pydantic_core import from_json

from yardmaster_core.admission.machine import QuotaMachine
from yardmaster_core.admission.state import AdmissionState
from yardmaster_core.machine import CycleResult, Decision
from yardmaster_core.rules import RULES
from yardmaster_schemas import plain
from yardmaster_schemas.envelope import Actor, ActorKind, Envelope, Event
from yardmaster_schemas.events.decisions import Outcome, TaskEndedV1
from yardmaster_schemas.events.requests import (
    DepartmentChangeRequestedV1,
    DepartmentConfig,
    DetailsRef,
    LogCreatedV1,
    LogMode,
    PolicyRef,
    PoolChangeRequestedV1,
    PoolConfig,
    ProjectChangeRequestedV1,
    ProjectConfig,
    SubmittedSpec,
    TaskSubmittedV1,
)
from yardmaster_schemas.log_format import LOG_FORMAT
from yardmaster_schemas.reasons import EndCode, RefusalCode
from yardmaster_schemas.resources import Resources

CELL = "main"
JOB = "4kq7w2mz9c1f"
OTHER = "9b3xd0h5t6vn"
BODY = "ab" * 32
OTHER_BODY = "cd" * 32
DETAILS = DetailsRef(offset=7, digest="ef" * 32)
START_MS = 1_700_000_000_000
LOG = LogCreatedV1(log_id="0" * 32, mode=LogMode.EMBEDDED, cell=CELL, format=LOG_FORMAT)


def gpus(count: int, milli: int = 1000) -> Resources:
    return Resources(gpus=count, gpu_milli=milli if count else 0)


def job(job_id: str = JOB, project: str = "nlp", body: str = BODY, **spec: Any) -> TaskSubmittedV1:
    return TaskSubmittedV1(
        job_id=job_id,
        project=project,
        spec=SubmittedSpec(**spec),
        body_digest=body,
        details=DETAILS,
    )


def pool(name: str, if_revision: int | None = None, **config: Any) -> PoolChangeRequestedV1:
    config.setdefault("policy", PolicyRef(name="priority"))
    return PoolChangeRequestedV1(pool=name, config=PoolConfig(**config), if_revision=if_revision)


def department(
    name: str = "research", if_revision: int | None = None, **config: Any
) -> DepartmentChangeRequestedV1:
    return DepartmentChangeRequestedV1(
        department=name, config=DepartmentConfig(**config), if_revision=if_revision
    )


def project(
    name: str = "nlp", if_revision: int | None = None, **config: Any
) -> ProjectChangeRequestedV1:
    config.setdefault("department", "research")
    return ProjectChangeRequestedV1(
        project=name, config=ProjectConfig(**config), if_revision=if_revision
    )


#: A pool, a department and a project that allow everything.
CELL_SETUP: tuple[Event, ...] = (pool("default"), department(), project())


def envelope(
    event: Event, *, source: str = "gateway/gw-1", epoch: int = 1, seq: int = 0, user: str = "ada"
) -> Envelope[Event]:
    return Envelope(
        type=event.TYPE,
        version=event.VERSION,
        source=source,
        epoch=epoch,
        seq=seq,
        subject="main",
        time_ms=START_MS,
        actor=Actor(kind=ActorKind.USER, id=user),
        data=event,
    )


def ended(task_id: str) -> TaskEndedV1:
    return TaskEndedV1(
        task_id=task_id, attempt=0, outcome=Outcome.CANCELLED, code=EndCode.CANCELLED
    )


class AdmissionCell:
    """A cell's quota in memory: requests in, verdicts out."""

    def __init__(
        self,
        *setup: Event,
        machine: QuotaMachine | None = None,
        log: LogCreatedV1 = LOG,
    ) -> None:
        self.machine = machine or QuotaMachine()
        self.state: AdmissionState = self.machine.initial(CELL)
        self.rules = RULES
        self.seq = 0
        self.own_seq = 0
        self.cycle = 0
        self.now_ms = START_MS
        self.verdicts: list[tuple[str, Event]] = []
        self.refusals: list[RefusalCode] = []
        self.take([envelope(log, source="setup/main")])
        if setup:
            self.ask(*setup)

    def ask(self, *requests: Event, limit: int = 1000, user: str = "ada") -> list[Event]:
        """The verdicts on requests of one gateway; `limit` may spread them over several cycles."""
        records = []
        for request in requests:
            records.append(envelope(request, seq=self.seq, user=user))
            self.seq += 1
        return self.take(records, limit=limit)

    def one(self, request: Event, user: str = "ada") -> Any:
        """The verdict on one request."""
        (verdict,) = self.ask(request, user=user)
        return verdict

    def end(self, *task_ids: str) -> None:
        """Take the scheduler's decisions that these tasks have ended."""
        self.take([envelope(ended(task_id), source="scheduler/main") for task_id in task_ids])

    def take(self, records: Sequence[Envelope[Event]], limit: int = 1000) -> list[Event]:
        """Run cycles until no request is pending; invalid records are refused and noted."""
        verdicts: list[Event] = []
        records = list(records)
        while True:
            self.cycle += 1
            self.state = self.machine.begin_cycle(self.state, self.cycle, self.now_ms, self.rules)
            for record in records:
                claim = not isinstance(record.data, TaskEndedV1)
                if claim and (code := self.machine.refusal(self.state, record)) is not None:
                    self.refusals.append(code)
                    continue
                self.state = self.machine.apply(self.state, record.data, record.id, record.actor.id)
            records = []
            complete = self._decide(limit, verdicts)
            self.state = self.machine.end_cycle(self.state, complete=complete)
            if complete:
                return verdicts

    def _decide(self, limit: int, verdicts: list[Event]) -> bool:
        before = self.dumped()
        verdict = self.machine.decide(self.state, limit=limit)
        assert self.dumped() == before, "decide changed the state"
        kept = self.machine.load(CELL, json.loads(before))
        kept, decisions, complete = self.machine.decide_in_place(kept, limit=limit)
        same = CycleResult(decisions, self.machine.digest(kept), complete)
        assert same == verdict, "decide_in_place decides differently"
        assert len(verdict.decisions) <= limit, "the limit is exceeded"
        for decision in verdict.decisions:
            self.record(decision)
            verdicts.append(decision.event)
        assert self.machine.digest(self.state) == verdict.state_digest, "decided on another state"
        applied, advanced = self.machine.dump(self.state), self.machine.dump(kept)
        assert advanced | {"own": applied["own"]} == applied, (
            "what was kept is not what was applied"
        )
        assert verdict.complete == (self.machine.due_ms(self.state) is None)
        return verdict.complete

    def record(self, decision: Decision) -> None:
        assert decision.cause is not None
        record_id = f"quota/main.0123456789ab/1/{self.own_seq}"
        self.state = self.machine.apply(self.state, decision.event, record_id)
        self.own_seq += 1
        self.verdicts.append((decision.cause, decision.event))

    def dumped(self) -> str:
        """The dump as a snapshot would store it."""
        return json.dumps(from_json(plain.encode(self.machine.dump(self.state))), sort_keys=True)
