"""The node's own topic: what the scheduler's relay copied there is taken over and acted on.

The position is this agent's, in its ledger; no consumer group. A record may come twice, and late: a
replica that the ledger knows is not taken again, an assignment to another incarnation is void. An
assignment may also be lost, when a broker loses its newest records: the stop of an attempt names
the replicas that never started, and those that the ledger does not know are released. A record that
cannot be read stops the agent (tasks go on): it may be a stop that a newer scheduler
wrote.
"""

from collections import Counter as Tally
from collections.abc import Callable
from typing import Final

from yardmaster_eventlog.codec import decode
from yardmaster_eventlog.errors import OffsetGone
from yardmaster_eventlog.port import Partition, Record, StoredRecord
from yardmaster_node_agent.agent_state import (
    Assignment,
    Reached,
    Replica,
    ReplicaKey,
    StopOrder,
    lost_assignment,
)
from yardmaster_node_agent.errors import AssignmentUnreadable
from yardmaster_node_agent.lease import IncarnationOver
from yardmaster_node_agent.metrics import AgentMetrics
from yardmaster_node_agent.ports import AgentContext
from yardmaster_node_agent.supervision import Supervision
from yardmaster_schemas.envelope import Envelope, Event
from yardmaster_schemas.errors import SchemaError
from yardmaster_schemas.events.decisions import (
    AllocationRevokedV1,
    NodeLostV1,
    Placement,
    PreemptionRequestedV1,
    SlotsAllocatedV1,
    StopRequestedV1,
)
from yardmaster_schemas.relayed import OFFSET_HEADER, RelayedFrom, relayed_from
from yardmaster_schemas.topics import assignments

#: Records read at a time.
MAX_RECORDS: Final = 200
#: How long one wait for more lasts.
WAIT_S: Final = 30.0
#: What the relay adds to a record; the second is its own affair.
RELAY_HEADERS: Final = (OFFSET_HEADER, "yard_behind")
#: Hexadecimal digits of an attempt's token: 256 bits.
TOKEN_DIGITS: Final = 64

StopEvent = PreemptionRequestedV1 | StopRequestedV1 | AllocationRevokedV1


class Follower:
    """Reads the node's assignments and acts on each."""

    def __init__(
        self,
        context: AgentContext,
        metrics: AgentMetrics,
        *,
        begin: Callable[[Supervision], None],
        supervisions: dict[ReplicaKey, Supervision],
    ) -> None:
        self._context = context
        self._metrics = metrics
        self._begin = begin
        self._supervisions = supervisions
        self._partition = Partition(
            assignments(context.settings.node).name, context.settings.partition
        )

    async def run(self) -> None:
        """Follow for ever.

        Raises:
            IncarnationOver: NodeLost for this incarnation; records of it are no longer kept; or it
                was cut off for longer than what it is to run allows.
            AssignmentUnreadable, LogError.
        """
        log, state = self._context.ports.log, self._context.state
        while True:
            try:
                records = await log.read(
                    self._partition, state.reached, max_records=MAX_RECORDS, buffered_only=True
                )
            except OffsetGone as error:
                # What was removed may have been a stop: whatever runs here may be held by others
                # now.
                raise IncarnationOver(str(error)) from None
            for stored in records:
                self._act(stored)
                state.take(Reached(offset=stored.offset + 1))
            if records:
                self._context.keep(Reached(offset=state.reached), durable=False)
            else:
                await log.wait({self._partition: state.reached}, WAIT_S)

    def _act(self, stored: StoredRecord) -> None:
        envelope, origin = self._read(stored)
        event = envelope.data
        match event:
            case SlotsAllocatedV1():
                outcome = self._allocated(event, envelope.id, origin.offset)
            case PreemptionRequestedV1() | StopRequestedV1():
                outcome = self._stopped(event, envelope.id, origin)
            case AllocationRevokedV1():
                order = StopOrder(
                    code=event.stop.code.value, deadline_ms=0, cause=envelope.id, revoked=True
                )
                outcome = self._order(event, order, origin)
            case NodeLostV1():
                head = self._context.state.head
                if (event.node, event.incarnation) == (head.node, head.incarnation):
                    self._metrics.assignments.labels(envelope.type, "taken").inc()
                    raise IncarnationOver(f"lost: {event.cause.value}")
                outcome = "void"
            case _:
                outcome = "ignored"
        self._metrics.assignments.labels(envelope.type, outcome).inc()

    def _read(self, stored: StoredRecord) -> tuple[Envelope[Event], RelayedFrom]:
        """The event, and what the relay says of it."""
        record = stored.record
        given = dict(record.headers).get(OFFSET_HEADER, b"")
        own = tuple(header for header in record.headers if header[0] not in RELAY_HEADERS)
        try:
            envelope = decode(Record(record.key, record.value, own))
        except SchemaError as error:
            raise AssignmentUnreadable(
                topic=self._partition.topic, offset=stored.offset, found=error
            ) from None
        if not envelope.source.startswith("scheduler/"):
            raise AssignmentUnreadable(
                topic=self._partition.topic,
                offset=stored.offset,
                found=f"{envelope.source} is no scheduler",
            )
        return envelope, relayed_from(given)

    def _allocated(self, event: SlotsAllocatedV1, cause: str, decision: int) -> str:
        head, state = self._context.state.head, self._context.state
        first = min(event.placements, key=lambda placement: placement.replica)
        new: list[Replica] = []
        for placement in event.placements:
            if placement.node != head.node or placement.incarnation != head.incarnation:
                continue
            assignment = _assignment(event, placement, first, cause, decision)
            if not state.repeated(assignment):
                token = self._context.ports.chance.hex("task-token", TOKEN_DIGITS)
                new.append(Replica(assignment=assignment, token=token))
        if not new:
            mine = any(placement.node == head.node for placement in event.placements)
            return "repeated" if mine else "void"
        if event.fence_s is not None:
            self._context.lease.take(event.fence_s)
        refused = self._impossible(new)
        self._context.add(new)
        for replica in new:
            supervision = Supervision(self._context, self._metrics, replica)
            if refused is not None:
                supervision.refuse(refused)
            self._begin(supervision)
        return "refused" if refused else "taken"

    def _impossible(self, new: list[Replica]) -> str | None:
        """Why the node cannot hold the new replicas beside what it holds: its own last word."""
        held = [s.replica for s in self._supervisions.values() if s.replica.held and not s.refused]
        if len(held) + len(new) > self._context.settings.max_replicas:
            return f"the node holds {len(held)} replicas already"
        used: Tally[int] = Tally()
        for replica in [*held, *new]:
            for slot in replica.assignment.slots:
                used[slot] += replica.assignment.gpu_milli
        offered = self._context.state.head.offer.gpus
        for slot in sorted({slot for replica in new for slot in replica.assignment.slots}):
            if slot >= offered or slot >= len(self._context.facts.devices):
                return f"the node has no slot {slot}"
            if used[slot] > 1000:
                return f"slot {slot} is held already"
        return None

    def _stopped(
        self, event: PreemptionRequestedV1 | StopRequestedV1, cause: str, origin: RelayedFrom
    ) -> str:
        # The deadline is the scheduler's time: a clock of ours that is behind does not lengthen it.
        now_ms = self._context.ports.clock.now_ms()
        deadline_ms = min(event.deadline_at_ms, now_ms + event.grace_s * 1000)
        order = StopOrder(code=event.stop.code.value, deadline_ms=deadline_ms, cause=cause)
        return self._order(event, order, origin)

    def _order(self, event: StopEvent, order: StopOrder, origin: RelayedFrom) -> str:
        stopped = [
            supervision
            for key, supervision in self._supervisions.items()
            if (key.task_id, key.attempt) == (event.task_id, event.attempt)
        ]
        for supervision in stopped:
            supervision.stop(order)
        if stopped:
            return "taken"
        return "lost" if self._release_lost(event, order, origin) else "void"

    def _release_lost(self, event: StopEvent, order: StopOrder, origin: RelayedFrom) -> bool:
        """Release replicas whose assignment never reached this incarnation; whether there are any.

        They are in the ledger from here on, so an assignment that comes late is a repeat.
        """
        head, state = self._context.state.head, self._context.state
        if origin.incarnation != head.incarnation or order.cause is None:
            return False
        keys = [ReplicaKey(event.task_id, event.attempt, number) for number in origin.unstarted]
        lost = [
            Replica(
                assignment=lost_assignment(key, order.cause, origin.offset),
                token=self._context.ports.chance.hex("task-token", TOKEN_DIGITS),
            )
            for key in keys
            if key not in state.replicas
        ]
        if not lost:
            return False
        self._metrics.assignments_lost.inc(len(lost))
        self._context.ports.telemetry.error(
            "assignment_lost",
            task_id=event.task_id,
            attempt=event.attempt,
            replicas=len(lost),
            topic=self._partition.topic,
        )
        self._context.add(lost)
        for replica in lost:
            supervision = Supervision(self._context, self._metrics, replica)
            supervision.refuse("its assignment did not reach the node")
            self._begin(supervision)
        return True


def _assignment(
    event: SlotsAllocatedV1, placement: Placement, first: Placement, cause: str, decision: int
) -> Assignment:
    return Assignment(
        key=ReplicaKey(event.task_id, event.attempt, placement.replica),
        cause=cause,
        decision=decision,
        project=event.project,
        pool=event.pool,
        tasks=event.tasks,
        replicas=len(event.placements),
        slots=placement.slots,
        gpu_milli=placement.gpu_milli,
        cpu_milli=placement.cpu_milli,
        memory_mib=placement.memory_mib,
        master_addr=first.address,
        master_port=event.master_port,
        details=event.details,
        checkpoint=event.checkpoint,
        grace_s=event.grace_s,
        fence_s=event.fence_s,
    )
