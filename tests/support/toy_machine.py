"""A small machine over real events, for tests of the runtime.

`ToyMachine.quota()` answers each CancelRequested with a CancelAccepted and each PauseRequested,
five seconds later, with a TaskResumed. `ToyMachine.scheduler()` follows its cycles and ends each
cancelled job with a TaskEnded; it believes TaskProgressed of known nodes, and answers
NodeSilenceObserved with NodeLost. From rules 2 on, quota answers a CancelRequested with a
TaskResumed instead. What they decide does not depend on how their inputs are split
over cycles.
"""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from yardmaster_core.errors import ImpossibleEvent, SnapshotUnreadable
from yardmaster_core.machine import CycleResult, Decision
from yardmaster_schemas.envelope import Actor, ActorKind, Auth, Envelope, Event
from yardmaster_schemas.events.admissions import CancelAcceptedV1, TaskResumedV1
from yardmaster_schemas.events.decisions import (
    LossCause,
    NodeLostV1,
    NodeSilenceObservedV1,
    Outcome,
    TaskEndedV1,
)
from yardmaster_schemas.events.machine import PolicyInUse, RulesEnabledV1, SnapshotTakenV1
from yardmaster_schemas.events.node_events import TaskProgressedV1
from yardmaster_schemas.events.requests import CancelRequestedV1, PauseRequestedV1
from yardmaster_schemas.reasons import EndCode, RefusalCode
from yardmaster_schemas.topics import ADMISSIONS, DECISIONS, NODE_EVENTS, REQUESTS, Topic

PAUSE_MS = 5_000
INCARNATION = "0123456789ab"


class ToyState:
    """Open requests, answered requests, and the progress that each node claimed."""

    def __init__(self, cell: str) -> None:
        self.cell = cell
        self.cycle = 0
        self.now_ms = 0
        self.rules = 0
        self.waiting: list[tuple[str, str, str | None]] = []
        self.answered: dict[str, int] = {}
        self.timers: dict[str, int] = {}
        self.sources: dict[str, list[int]] = {}
        self.silent: list[str] = []
        self.lost: list[str] = []

    def plain(self) -> dict[str, Any]:
        return {
            "waiting": [list(each) for each in self.waiting],
            "answered": self.answered,
            "timers": self.timers,
            "sources": self.sources,
            "silent": self.silent,
            "lost": self.lost,
        }


class ToyMachine:
    """See the module; `decides` counts the calls of `decide` over all uses."""

    def __init__(
        self,
        name: str,
        output: Topic,
        inputs: tuple[Topic, ...],
        rules: int = 1,
        oldest_rules: int | None = None,
    ) -> None:
        self.name = name
        self.output = output
        self.inputs = inputs
        self.observations: tuple[type[Event], ...] = (
            NodeSilenceObservedV1,
            RulesEnabledV1,
            SnapshotTakenV1,
        )
        self.rules = rules
        self.oldest_rules = rules if oldest_rules is None else oldest_rules
        self.oldest_recomputed = self.oldest_rules
        self.decides = 0

    @classmethod
    def quota(cls, rules: int = 1) -> "ToyMachine":
        return cls("quota", ADMISSIONS, (REQUESTS,), rules)

    @classmethod
    def scheduler(cls) -> "ToyMachine":
        return cls("scheduler", DECISIONS, (ADMISSIONS, NODE_EVENTS))

    def initial(self, cell: str) -> ToyState:
        return ToyState(cell)

    def begin_cycle(self, state: ToyState, cycle: int, now_ms: int, rules: int = 1) -> ToyState:
        state.cycle, state.now_ms, state.rules = cycle, now_ms, rules
        for job, when in sorted(state.timers.items()):
            if when <= now_ms:
                del state.timers[job]
                state.waiting.append((job, "resume", None))
        return state

    def takes(self, topic: Topic, rules: int) -> bool:
        return True

    def calls_for_cycle(self, event: Event) -> bool:
        return True

    def refusal(self, state: ToyState, envelope: Envelope[Event]) -> RefusalCode | None:
        last = state.sources.get(envelope.source)
        if last is not None and [envelope.epoch, envelope.seq] <= last:
            return RefusalCode.REPEATED
        if isinstance(envelope.data, TaskProgressedV1):
            if envelope.source != f"node/{envelope.data.node}":
                return RefusalCode.NOT_ITS_AUTHOR
            if envelope.data.permille == 666:
                return RefusalCode.CONTRADICTION
        return None

    def apply(self, state: ToyState, event: Event, record_id: str, actor: str = "") -> ToyState:
        source, epoch, seq = record_id.rsplit("/", 2)
        if source.startswith(("gateway/", "node/")):
            state.sources[source] = [int(epoch), int(seq)]
        match event:
            case CancelRequestedV1():
                state.waiting.append((event.job_id, "cancel", record_id))
            case PauseRequestedV1():
                state.timers[event.job_id] = state.now_ms + PAUSE_MS
            case CancelAcceptedV1() if self.name == "scheduler":
                state.waiting.append((event.job_id, "end", record_id))
            case NodeSilenceObservedV1():
                state.silent.append(event.node)
            case NodeLostV1():
                state.silent.remove(event.node)
                state.lost.append(event.node)
            case CancelAcceptedV1() | TaskResumedV1() if self.name == "quota":
                self._answer(state, event.job_id, event)
            case TaskEndedV1():
                self._answer(state, event.task_id.partition(".")[0], event)
            case _:
                pass
        return state

    def _answer(self, state: ToyState, job: str, event: Event) -> None:
        if not state.waiting or state.waiting[0][0] != job:
            raise ImpossibleEvent(event=event.TYPE, found=f"{job} has no request")
        state.waiting.pop(0)
        state.answered[job] = state.answered.get(job, 0) + 1

    def decide(
        self, state: ToyState, *, limit: int, observed: Sequence[Decision] = ()
    ) -> CycleResult:
        self.decides += 1
        draft = self.load(state.cell, self.dump(state))
        decisions: list[Decision] = []
        capacity = limit - len(observed)
        for each in observed:
            self.apply(draft, each.event, "quota/x/0/0")
        for node in draft.silent[:capacity]:
            event = NodeLostV1(
                node=node, incarnation=INCARNATION, cause=LossCause.SILENT, last_heard_at_ms=0
            )
            decisions.append(Decision(event, node))
        capacity -= len(decisions)
        for job, what, cause in draft.waiting[:capacity]:
            answer: Event
            if what == "cancel" and draft.rules < 2:
                answer = CancelAcceptedV1(job_id=job)
            elif what in ("cancel", "resume"):
                answer = TaskResumedV1(job_id=job)
            else:
                answer = TaskEndedV1(
                    task_id=f"{job}.0",
                    attempt=0,
                    outcome=Outcome.CANCELLED,
                    code=EndCode.CANCELLED,
                )
            decisions.append(Decision(answer, job, cause))
        for each in decisions:
            self.apply(draft, each.event, "quota/x/0/0")
        return CycleResult(decisions, self.digest(draft), not draft.waiting and not draft.silent)

    def unwritable(self, event: Event) -> Decision | None:
        return None

    def end_cycle(self, state: ToyState, *, complete: bool) -> ToyState:
        return state

    def policies(self, state: ToyState) -> tuple[PolicyInUse, ...]:
        return (PolicyInUse(pool="default", name="toy", version=1),)

    def digest(self, state: ToyState) -> str:
        return hashlib.sha256(json.dumps(state.plain(), sort_keys=True).encode()).hexdigest()

    def committed_digest(self, state: ToyState) -> str:
        return self.digest(state)

    def due_ms(self, state: ToyState) -> int | None:
        return min(state.timers.values(), default=None)

    def dump(self, state: ToyState) -> Any:
        return json.loads(
            json.dumps(state.plain() | {"at": [state.cycle, state.now_ms, state.rules]})
        )

    def load(self, cell: str, dump: Any) -> ToyState:
        state = ToyState(cell)
        try:
            state.cycle, state.now_ms, state.rules = dump["at"]
            state.waiting = [tuple(each) for each in dump["waiting"]]
            state.answered = dict(dump["answered"])
            state.timers = dict(dump["timers"])
            state.sources = {name: list(last) for name, last in dump["sources"].items()}
            state.silent, state.lost = list(dump["silent"]), list(dump["lost"])
        except (KeyError, TypeError) as error:
            raise SnapshotUnreadable(found=str(error)) from None
        return state


def job_id(number: int) -> str:
    """The id of a toy job."""
    return f"job{number:09d}"


def request(number: int, event: Event | None = None, *, epoch: int = 0) -> Envelope[Event]:
    """Request number `number` of the gateway: a CancelRequested unless another event is given."""
    data = event or CancelRequestedV1(job_id=job_id(number))
    return Envelope(
        type=data.TYPE,
        version=data.VERSION,
        source="gateway/gw-1",
        epoch=epoch,
        seq=number,
        subject=job_id(number),
        time_ms=1_700_000_000_000 + number,
        actor=Actor(kind=ActorKind.USER, id="ann"),
        auth=Auth(method="none", issuer="test", credential_id="none"),
        data=data,
    )


def progress(number: int, permille: int, *, node: str = "n1", by: str = "n1") -> Envelope[Event]:
    """A node's claim about the progress of a task; 666 is never believed."""
    data = TaskProgressedV1(
        task_id=f"{job_id(0)}.0",
        attempt=1,
        replica=0,
        node=node,
        incarnation=INCARNATION,
        permille=permille,
    )
    return Envelope(
        type=data.TYPE,
        version=data.VERSION,
        source=f"node/{by}",
        epoch=0,
        seq=number,
        subject=data.task_id,
        time_ms=1_700_000_000_000 + number,
        actor=Actor(kind=ActorKind.NODE, id=by),
        data=data,
    )
