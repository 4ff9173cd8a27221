"""From the agent to the log: numbering, appending until it is certain, and the queue of facts.

A fact is in the ledger before it is queued here, so the queue may be lost: the next life of the
agent queues again what the ledger does not know to be told. A fact that arrives twice changes
nothing, so an append of unknown outcome is simply made again, with the same numbers.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from yardmaster.eventlog.codec import encode
from yardmaster.eventlog.errors import AppendOutcomeUnknown
from yardmaster.eventlog.port import BATCH_OVERHEAD, EventLog, Partition, Record
from yardmaster.node_agent.metrics import AgentMetrics
from yardmaster.runtime.clock import Clock
from yardmaster.schemas.envelope import Actor, ActorKind, Envelope, Event
from yardmaster.schemas.topics import KIB, NODE_EVENTS

#: A batch of facts or of output is at most this large; the topics take 128 KiB.
MAX_BATCH_BYTES: Final = 120 * KIB
#: How often an append of unknown outcome is made again before the error is raised.
UNKNOWN_TRIES: Final = 20
#: The pause before that.
UNKNOWN_PAUSE_S: Final = 0.2


class Writer:
    """Numbers this life's records and appends them.

    `patient` is the log that tries again while it is unavailable, for what must arrive; `log` the
    same without patience, for what is sent anew anyway: heartbeats and output.
    """

    def __init__(
        self,
        log: EventLog,
        patient: EventLog,
        clock: Clock,
        metrics: AgentMetrics,
        *,
        node: str,
        partition: int,
        epoch: int,
    ) -> None:
        self._log = log
        self._patient = patient
        self._clock = clock
        self._metrics = metrics
        self._node = node
        self._partition = partition
        self._epoch = epoch
        self._seq = 0
        #: When the last append that was acknowledged had been sent (the clock's monotonic seconds).
        self.acknowledged_s = clock.monotonic_s()

    def record(self, event: Event, *, subject: str, key: str, cause: str | None = None) -> Record:
        """The record of an event, with the next number of this source and epoch."""
        seq, self._seq = self._seq, self._seq + 1
        envelope = Envelope(
            type=event.TYPE,
            version=event.VERSION,
            source=f"node/{self._node}",
            epoch=self._epoch,
            seq=seq,
            subject=subject,
            time_ms=self._clock.now_ms(),
            actor=Actor(kind=ActorKind.NODE, id=self._node),
            cause=cause,
            data=event,
        )
        return encode(envelope, key)

    async def append(self, topic: str, records: Sequence[Record], *, patient: bool = True) -> None:
        """Append a batch until it is certain that it is there.

        Raises:
            LogUnavailable: the log is; for long when `patient`.
            LogError: it may or may not be there.
        """
        log = self._patient if patient else self._log
        for tries_left in reversed(range(UNKNOWN_TRIES)):
            sent_s = self._clock.monotonic_s()
            try:
                await log.append(Partition(topic, self._partition), records)
            except AppendOutcomeUnknown:
                self._metrics.append_unknown.inc()
                if not tries_left:
                    raise
                await self._clock.sleep(UNKNOWN_PAUSE_S)
            else:
                self.acknowledged_s = max(self.acknowledged_s, sent_s)
                self._metrics.appends.labels(topic).inc()
                return


@dataclass(frozen=True, slots=True)
class Fact:
    """Events that go to `node-events` in one batch, and what to do when they are there."""

    events: tuple[Event, ...]
    subject: str
    cause: str | None
    told: Callable[[], None]


class Reporter:
    """Facts on their way into `node-events`, in the order of their reporting.

    A fact waiting under the same name is replaced: of progress and checkpoints the newest is
    enough. So no more than four facts a replica wait.
    """

    def __init__(self, writer: Writer, metrics: AgentMetrics, cell: str) -> None:
        self._writer = writer
        self._metrics = metrics
        self._cell = cell
        self._waiting: dict[tuple[str, str], Fact] = {}
        self._some = asyncio.Event()

    def report(self, what: str, about: str, fact: Fact) -> None:
        """Queue a fact; `what` and `about` name it."""
        self._waiting[what, about] = fact
        self._metrics.facts_waiting.set(len(self._waiting))
        self._some.set()

    async def run(self) -> None:
        """Append what is queued, for ever.

        Raises:
            LogError: the log failed for too long; what was not told is in the ledger.
        """
        while True:
            await self._some.wait()
            self._some.clear()
            while self._waiting:
                await self._append_some()

    async def _append_some(self) -> None:
        records: list[Record] = []
        taken: list[Fact] = []
        size = BATCH_OVERHEAD
        for name, fact in list(self._waiting.items()):
            more = [
                self._writer.record(event, subject=fact.subject, key=self._cell, cause=fact.cause)
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
            fact.told()
