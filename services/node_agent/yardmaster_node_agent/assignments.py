"""Consume the node's own topic, to which the scheduler's relay copies decisions, and execute them.

The offset is stored in the agent's ledger; there is no consumer group. A record may arrive twice,
or late: a replica that is in the ledger is not added again, and an assignment to another
incarnation is void. A record that cannot be read stops the agent, because it may be a stop that a
newer scheduler wrote; running tasks continue.

The topic holds copies, and a broker that loses power may lose the newest of them:

- The agent cannot notice the loss of records that it had not read. The relay copies them again.
  In addition, the stop of an attempt lists the replicas that have not started; the agent releases
  each of these that is not in its ledger.
- If the agent had read one of the lost records, it does not know whether `decisions` still has what
  it executed. It ends the incarnation: it kills all replicas, and joins again as the successor, for
  which all earlier assignments are void. The scheduler starts further attempts only after that
  join, so no two attempts of a task run at once.
"""

from collections import Counter as Tally
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from yardmaster_eventlog.codec import decode
from yardmaster_eventlog.errors import LogTruncated, OffsetGone, ReadPastEnd
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
from yardmaster_node_agent.lease import IncarnationOver, Replaced
from yardmaster_node_agent.metrics import AgentMetrics
from yardmaster_node_agent.ports import AgentContext
from yardmaster_node_agent.supervision import Supervision
from yardmaster_runtime.cycle_reader import digest_of
from yardmaster_schemas.counts import count_of
from yardmaster_schemas.envelope import Envelope, Event
from yardmaster_schemas.errors import SchemaError
from yardmaster_schemas.events.decisions import (
    AllocationRevokedV1,
    LossCause,
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
#: Seconds of one wait for more records.
WAIT_S: Final = 30.0
#: Headers that the relay adds to a record. The agent uses only the first.
RELAY_HEADERS: Final = (OFFSET_HEADER, "yard_behind", "yard_generation")
#: Hexadecimal digits of an attempt's token: 256 bits.
TOKEN_DIGITS: Final = 64

StopEvent = PreemptionRequestedV1 | StopRequestedV1 | AllocationRevokedV1


@contextmanager
def ends_incarnation(partition: Partition) -> Iterator[None]:
    """Turn errors of the `with` block into IncarnationOver if the assignments lack records."""
    try:
        yield
    except (OffsetGone, ReadPastEnd) as error:
        # A missing record may be a stop, so other tasks may have the slots by now.
        raise IncarnationOver(str(error)) from None
    except LogTruncated as error:
        if error.fields.get("topic") != partition.topic:
            raise
        raise IncarnationOver(f"its assignments lost records: {error.fields['found']}") from None


class AssignmentFollower:
    """Consumes the node's assignments and executes each."""

    def __init__(
        self,
        context: AgentContext,
        metrics: AgentMetrics,
        *,
        begin: Callable[[Supervision], None],
        supervisions: dict[ReplicaKey, Supervision],
        on_rival_lost: Callable[[], object] = lambda: None,
    ) -> None:
        """`on_rival_lost` is called when another incarnation of the node is lost."""
        self._on_rival_lost = on_rival_lost
        self._context = context
        self._metrics = metrics
        self._begin = begin
        self._supervisions = supervisions
        self._partition = Partition(
            assignments(context.settings.node).name, context.settings.partition
        )

    async def run(self) -> None:
        """Consume the assignments until cancelled.

        Raises:
            Replaced: another agent has joined as the node.
            IncarnationOver: the scheduler counts this incarnation as lost (NodeLost); or some of
                the assignments were deleted or lost; or the node was cut off from the log for
                longer than the fence of a new attempt allows.
            AssignmentUnreadable, LogError.
        """
        log, state = self._context.ports.log, self._context.state
        while True:
            with ends_incarnation(self._partition):
                records = await log.read(
                    self._partition, state.reached, max_records=MAX_RECORDS, buffered_only=True
                )
                if not records:
                    await log.wait({self._partition: state.reached}, WAIT_S)
                    continue
            for stored in records:
                self._act(stored)
                state.apply(Reached(offset=stored.offset + 1))
            digest = digest_of(records[-1].record).hex()
            state.apply(Reached(offset=state.reached, digest=digest))
            self._context.save(Reached(offset=state.reached, digest=digest), durable=False)

    def _act(self, stored: StoredRecord) -> None:
        """Execute one assignment record, and count it with its outcome.

        Raises: AssignmentUnreadable, IncarnationOver, Replaced, FenceExpired.
        """
        envelope, origin = self._read(stored)
        event = envelope.data
        match event:
            case SlotsAllocatedV1():
                outcome = self._allocated(event, envelope.id, origin.offset)
            case PreemptionRequestedV1() | StopRequestedV1():
                outcome = self._stopped(event, envelope.id, origin)
            case AllocationRevokedV1():
                order = StopOrder(
                    code=str(event.stop.code),
                    deadline_ms=0,
                    cause=envelope.id,
                    kill_at_ms=0,
                    revoked=True,
                )
                outcome = self._order(event, order, origin)
            case NodeLostV1():
                head = self._context.state.head
                if (event.node, event.incarnation) == (head.node, head.incarnation):
                    self._metrics.assignments.labels(envelope.type, "taken").inc()
                    # An agent that begins an incarnation itself has its head before the join.
                    over = Replaced if event.cause is LossCause.REPLACED else IncarnationOver
                    raise over(f"lost: {event.cause.value}")
                self._on_rival_lost()
                outcome = "void"
            case _:
                outcome = "ignored"
        self._metrics.assignments.labels(envelope.type, outcome).inc()

    def _read(self, stored: StoredRecord) -> tuple[Envelope[Event], RelayedFrom]:
        """Return the event, and the metadata that the relay added."""
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
        """Add the new replicas of an allocation to the ledger and start them; return the outcome.

        If the node has no capacity for them, they are added too, and released as never started.
        """
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
            self._context.lease.admit(event.fence_s)
        refused = self._impossible(new) or self._context.users.give(new)
        self._context.add(new)
        for replica in new:
            supervision = Supervision(self._context, self._metrics, replica)
            if refused is not None:
                supervision.refuse(refused)
            self._begin(supervision)
        return "refused" if refused else "taken"

    def _impossible(self, new: list[Replica]) -> str | None:
        """Return why the node has no capacity for the new replicas; None if it has.

        The agent checks this itself, independently of the scheduler.
        """
        held = [s.replica for s in self._supervisions.values() if s.replica.held and not s.refused]
        if len(held) + len(new) > self._context.settings.max_replicas:
            return f"the node holds {count_of(len(held), 'replica')} already"
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
        # The event's deadline is a time of the scheduler's clock, which may differ from this host's
        # clock, so the agent uses only the grace period.
        clock, grace_ms = self._context.ports.clock, event.grace_s * 1000
        order = StopOrder(
            code=str(event.stop.code),
            deadline_ms=clock.now_ms() + grace_ms,
            cause=cause,
            kill_at_ms=int(clock.monotonic_s() * 1000) + grace_ms,
        )
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
        """Release the replicas whose assignment was lost; return whether there are any.

        These replicas are in the ledger from then on, so an assignment of one of them that arrives
        late counts as a repeat.
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
        gpu_memory_mib=placement.gpu_memory_mib,
        image=event.image,
        run_as=event.run_as,
    )
