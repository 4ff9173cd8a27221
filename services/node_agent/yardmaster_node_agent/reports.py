"""Number the agent's records, append them until they are in the log, and queue its facts.

A fact is in the ledger before it is queued here, so the queue may be lost: the next agent process
queues all facts that the ledger does not mark as logged. A repeated fact changes nothing, so an
append of unknown outcome is retried with the same numbers.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from yardmaster_eventlog.codec import encode
from yardmaster_eventlog.errors import AppendOutcomeUnknown
from yardmaster_eventlog.port import BATCH_OVERHEAD, EventLog, Partition, Record
from yardmaster_node_agent.lease import Lease
from yardmaster_node_agent.metrics import AgentMetrics
from yardmaster_runtime.clock import Clock
from yardmaster_schemas.backoff import Backoff
from yardmaster_schemas.envelope import Actor, ActorKind, Envelope, Event
from yardmaster_schemas.sources import agent_source
from yardmaster_schemas.topics import KIB, NODE_EVENTS

#: A batch of facts or of output is at most this large; the topics take 128 KiB.
MAX_BATCH_BYTES: Final = 120 * KIB
#: Attempts of an append whose outcome stays unknown; only for appends with `retry=False`.
UNKNOWN_TRIES: Final = 3
#: The pause before the first retry; it doubles up to the longest.
UNKNOWN_PAUSE_S: Final = 0.2
LONGEST_PAUSE_S: Final = 5.0


class Writer:
    """Numbers the records of this agent process and appends them.

    `retrying_log` retries while the log is unavailable; it is used for facts. `log` is the same log
    without retries; it is used for heartbeats and output, which are sent again later in any case.
    """

    def __init__(
        self,
        log: EventLog,
        retrying_log: EventLog,
        clock: Clock,
        metrics: AgentMetrics,
        *,
        node: str,
        incarnation: str,
        partition: int,
        epoch: int,
    ) -> None:
        self._log = log
        self._retrying_log = retrying_log
        self._clock = clock
        self._metrics = metrics
        self._node = node
        self.source = agent_source(node, incarnation)
        self._partition = partition
        self._epoch = epoch
        self._seq = 0
        #: Records with lower numbers may be in the log twice.
        self._once_from = 0

    def record(
        self,
        event: Event,
        *,
        subject: str,
        key: str,
        cause: str | None = None,
        traceparent: str | None = None,
    ) -> Record:
        """Return the record of an event, with the next number of this source and epoch."""
        seq, self._seq = self._seq, self._seq + 1
        envelope = Envelope(
            type=event.TYPE,
            version=event.VERSION,
            source=self.source,
            epoch=self._epoch,
            seq=seq,
            subject=subject,
            time_ms=self._clock.now_ms(),
            actor=Actor(kind=ActorKind.NODE, id=self._node),
            cause=cause,
            traceparent=traceparent,
            data=event,
        )
        return encode(envelope, key)

    def written_once(self, seq: int) -> bool:
        """Return whether the record with this number was appended only once."""
        return seq >= self._once_from

    async def append(self, topic: str, records: Sequence[Record], *, retry: bool = True) -> float:
        """Append a batch until it is in the log; return when it was sent (monotonic seconds).

        After an unknown outcome the batch is appended again, so it may be in the log twice;
        `written_once` is then false for its records.

        Raises:
            LogUnavailable: only without `retry`.
            AppendOutcomeUnknown: the batch may be in the log, after `UNKNOWN_TRIES` attempts; only
                without `retry`.
            LogError: an error that retries cannot solve.
        """
        log = self._retrying_log if retry else self._log
        backoff = Backoff(UNKNOWN_PAUSE_S, LONGEST_PAUSE_S)
        tries = 0
        while True:
            sent_s = self._clock.monotonic_s()
            try:
                await log.append(Partition(topic, self._partition), records)
            except AppendOutcomeUnknown:
                self._once_from = self._seq
                self._metrics.append_unknown.inc()
                tries += 1
                if not retry and tries == UNKNOWN_TRIES:
                    raise
                await self._clock.sleep(backoff.next_s())
            else:
                self._metrics.appends.labels(topic).inc()
                return sent_s


@dataclass(frozen=True, slots=True)
class Fact:
    """Events to append to `node-events` in one batch; `on_logged` is called once they are in it."""

    events: tuple[Event, ...]
    subject: str
    cause: str | None
    on_logged: Callable[[], None]
    traceparent: str | None = None


class Reporter:
    """The queue of facts for `node-events`, in the order in which they were reported.

    A new fact replaces a queued fact of the same name, because only the newest progress and the
    newest checkpoint are needed. Therefore at most four facts of a replica are queued.
    """

    def __init__(self, writer: Writer, lease: Lease, metrics: AgentMetrics, cell: str) -> None:
        self._writer = writer
        self._lease = lease
        self._metrics = metrics
        self._cell = cell
        self._waiting: dict[tuple[str, str], Fact] = {}
        self._some = asyncio.Event()

    def report(self, what: str, about: str, fact: Fact) -> None:
        """Queue a fact; its name consists of `what` (its kind) and `about` (its replica)."""
        self._waiting[what, about] = fact
        self._metrics.facts_waiting.set(len(self._waiting))
        self._some.set()

    async def run(self) -> None:
        """Append the queued facts until cancelled.

        Raises:
            FenceExpired: the fence may have ended the replicas, which must not count as failures.
            LogError: an error that retries cannot solve; facts not yet logged are in the ledger.
        """
        while True:
            await self._some.wait()
            self._some.clear()
            while self._waiting:
                await self._append_some()

    async def _append_some(self) -> None:
        """Append the oldest queued facts as one batch, and call `on_logged` of each."""
        self._lease.check()
        records: list[Record] = []
        taken: list[Fact] = []
        size = BATCH_OVERHEAD
        for name, fact in list(self._waiting.items()):
            more = [
                self._writer.record(
                    event,
                    subject=fact.subject,
                    key=self._cell,
                    cause=fact.cause,
                    traceparent=fact.traceparent,
                )
                for event in fact.events
            ]
            size += sum(record.size for record in more)
            if taken and size > MAX_BATCH_BYTES:
                break
            del self._waiting[name]
            records += more
            taken.append(fact)
        self._metrics.facts_waiting.set(len(self._waiting))
        await self._writer.append(NODE_EVENTS.name, records)
        for fact in taken:
            fact.on_logged()
