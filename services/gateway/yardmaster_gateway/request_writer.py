"""Appends requests to the log, in one sequence; concurrent requests share a batch.

Quota accepts the records of a source only in ascending sequence. Sequence numbers are therefore
assigned when a batch is built, and one batch is appended at a time. If the outcome of an append is
unknown, its records may still reach the log later. If they arrive after a newer record, quota
refuses them as repeated.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Final

from opentelemetry.trace import Span, SpanKind

from yardmaster_eventlog.codec import encode
from yardmaster_eventlog.errors import AppendOutcomeUnknown, LogUnavailable
from yardmaster_eventlog.port import EventLog, Partition, Record, batch_bytes
from yardmaster_eventlog.reader import details_digest
from yardmaster_gateway.errors import Busy
from yardmaster_gateway.identity.authorization import Caller
from yardmaster_runtime.chance import Chance
from yardmaster_runtime.clock import Clock
from yardmaster_runtime.telemetry.port import Telemetry
from yardmaster_runtime.telemetry.tracing import child_span, ending
from yardmaster_schemas.envelope import Actor, ActorKind, Auth, Envelope, Event
from yardmaster_schemas.events.requests import DetailsRef
from yardmaster_schemas.topics import DETAILS, REQUESTS

#: The most requests that may wait for their append; further requests are refused.
MAX_WAITING: Final = 1_000
#: The largest batch, in records and in bytes.
MAX_BATCH_RECORDS: Final = 200
MAX_BATCH_BYTES: Final = 512 * 1024
#: Batches with an unknown outcome that are remembered.
MAX_UNANSWERED: Final = 1_000
#: Sources of this run whose refused records are recognized.
MAX_SOURCES: Final = 100
#: Seconds between two comparisons of the epoch with the append time of the newest request.
COMPARE_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class RequestOrigin:
    """The origin of a record: its caller, its trace context, and the kind of its actor."""

    caller: Caller
    traceparent: str | None
    kind: ActorKind = ActorKind.USER


@dataclass(slots=True)
class _Entry:
    """Events that are appended next to each other, and the result: an offset or an error."""

    events: Sequence[tuple[Event, str]]
    origin: RequestOrigin
    #: The sequence numbers of its records, once they are assigned.
    seqs: range = range(0)
    offset: int | None = None
    error: BaseException | None = None
    records: list[Record] = field(default_factory=list)

    @property
    def done(self) -> bool:
        return self.offset is not None or self.error is not None


class RequestWriter:
    """Writes the records of one run of a gateway, for one cell.

    The source contains 12 random hex digits, so every run is a new source. If all runs were one
    source, a run that starts after the clock was set back would write lower epochs than the run
    before it, and quota would refuse its records. The epoch is the append time of the newest
    request when the source begins, by the brokers' clock, because quota refuses an epoch that is
    far ahead of this clock. If the brokers' clock was set back below the epoch, or quota refuses a
    record, the writer begins a new source.
    """

    def __init__(
        self,
        log: EventLog,
        clock: Clock,
        telemetry: Telemetry,
        *,
        cell: str,
        partition: int,
        instance: str,
        chance: Chance,
    ) -> None:
        self._log = log
        self._clock = clock
        self._telemetry = telemetry
        self._cell = cell
        self._requests = Partition(REQUESTS.name, partition)
        self._details = Partition(DETAILS.name, partition)
        self._name = f"gateway/{instance}"
        self._chance = chance
        self.source = self._new_source()
        self._epoch: int | None = None
        #: The newest sources with their epochs.
        self._sources: deque[tuple[str, int]] = deque(maxlen=MAX_SOURCES)
        #: When the epoch was last compared with the newest request (`monotonic_s`).
        self._compared_s = 0.0
        self._starting = asyncio.Lock()
        self._seq = 0
        self._waiting: deque[_Entry] = deque()
        self._lock = asyncio.Lock()
        #: Sequence numbers of records with an unknown outcome.
        self._unanswered: deque[range] = deque(maxlen=MAX_UNANSWERED)
        self._depth = telemetry.gauge("requests_waiting", "Requests that wait to be recorded")
        self._batches = telemetry.counter("request_batches", "Batches appended to requests")
        self._recorded = telemetry.counter("requests_recorded", "Requests recorded")

    async def begin_source(self) -> None:
        """Write all further records as a new source, whose epoch is taken from the log.

        Raises: LogUnavailable, LogClosed.
        """
        self._begin(await self._newest_ms())

    async def repeat(self, envelope: Envelope[Event]) -> int:
        """Append a request of this writer again, as a new record; return its offset.

        Raises: as `record`.
        """
        auth = envelope.auth
        assert auth is not None, "this writer sets it"
        caller = Caller(envelope.actor.id, auth.method, auth.issuer, auth.credential_id, ())
        origin = RequestOrigin(caller, envelope.traceparent)
        return await self.record([(envelope.data, envelope.subject)], origin)

    async def record_detail(
        self, event: Event, key: str, subject: str, origin: RequestOrigin
    ) -> DetailsRef:
        """Append an event to `details`, which no decision reads; return its place and digest.

        Raises:
            BatchTooLarge, LogUnavailable, LogClosed: nothing was written.
            AppendOutcomeUnknown: the event may be written, but no record refers to it.
        """
        await self._set_epoch()
        record = encode(self._envelope(event, subject, origin), key)
        with self._appending(self._details, origin):
            offset = await self._log.append(self._details, [record])
        digest = details_digest(record.value)
        return DetailsRef(partition=self._details.number, offset=offset, digest=digest)

    async def write_tombstones(self, keys: Sequence[str]) -> int:
        """Write a tombstone for each key of `details`; return the offset of the last one.

        Raises:
            LogUnavailable, LogClosed, AppendOutcomeUnknown: some tombstones may be written. Repeat
                the call.
        """
        offset = 0
        for start in range(0, len(keys), MAX_BATCH_RECORDS):
            batch = [Record(key.encode(), None) for key in keys[start : start + MAX_BATCH_RECORDS]]
            offset = await self._log.append(self._details, batch) + len(batch) - 1
        return offset

    async def record(self, events: Sequence[tuple[Event, str]], origin: RequestOrigin) -> int:
        """Append requests next to each other, each with its subject; return the first offset.

        Raises:
            Busy, BatchTooLarge, LogUnavailable, LogClosed: nothing was written.
            AppendOutcomeUnknown: the requests may be in the log already, or appear there later.
        """
        if len(self._waiting) >= MAX_WAITING:
            raise Busy(limit=MAX_WAITING)
        await self._set_epoch()
        entry = _Entry(events, origin)
        self._waiting.append(entry)
        self._depth.set(len(self._waiting))
        with self._appending(self._requests, origin):
            async with self._lock:
                while not entry.done:
                    await self._flush()
        if entry.error is not None:
            raise entry.error
        if entry.offset is None:
            raise AssertionError("a finished entry has an offset or an error")
        return entry.offset

    def acknowledged(self, envelope: Envelope[Event]) -> bool:
        """Whether this writer wrote a record and its append was acknowledged."""
        own = (envelope.source, envelope.epoch) in self._sources and envelope.seq < self._seq
        return own and not any(envelope.seq in seqs for seqs in self._unanswered)

    def _appending(self, where: Partition, origin: RequestOrigin) -> AbstractContextManager[Span]:
        """The span of an append, which includes the wait for its batch."""
        name = f"append {where.topic}"
        tracer = self._telemetry.tracer
        return ending(child_span(tracer, name, origin.traceparent, kind=SpanKind.PRODUCER))

    async def _flush(self) -> None:
        """Append one batch of waiting entries, the oldest first; set the result of each entry."""
        batch: list[_Entry] = []
        size = 0
        while self._waiting and len(batch) < MAX_BATCH_RECORDS:
            entry = self._waiting[0]
            if not entry.records:
                first = self._seq
                entry.records = [
                    encode(self._envelope(event, subject, entry.origin), self._cell)
                    for event, subject in entry.events
                ]
                entry.seqs = range(first, self._seq)
            size += batch_bytes(entry.records)
            if batch and size > MAX_BATCH_BYTES:
                break
            batch.append(self._waiting.popleft())
        self._depth.set(len(self._waiting))
        records = [record for entry in batch for record in entry.records]
        try:
            offset = await self._log.append(self._requests, records)
        except BaseException as error:
            self._unanswered.extend(entry.seqs for entry in batch)
            for entry in batch:
                entry.error = self._error_of_batch(error)
            raise
        for entry in batch:
            entry.offset = offset
            offset += len(entry.records)
        self._batches.inc()
        self._recorded.inc(len(records))

    @staticmethod
    def _error_of_batch(error: BaseException) -> BaseException:
        """The error for the other requests of a batch whose append failed or was cancelled."""
        if isinstance(error, Exception):
            return error
        return AppendOutcomeUnknown(topic=REQUESTS.name, found="the append was cancelled")

    async def _set_epoch(self) -> None:
        """Set the epoch of a new source from the log; every `COMPARE_S`, compare it with the log.

        Raises: LogUnavailable, LogClosed.
        """
        async with self._starting:
            now_s = self._clock.monotonic_s()
            if self._epoch is not None and now_s - self._compared_s < COMPARE_S:
                return
            newest_ms = await self._newest_ms()
            if self._epoch is None:
                self._begin(newest_ms)
            elif newest_ms < self._epoch:
                self._telemetry.warn(
                    "source_replaced",
                    found="the clock of the log was set back",
                    behind_ms=self._epoch - newest_ms,
                )
                self._begin(newest_ms)
            self._compared_s = now_s

    def _begin(self, epoch: int) -> None:
        if self._epoch is not None:
            self.source = self._new_source()
        self._epoch = epoch
        self._sources.append((self.source, epoch))

    async def _newest_ms(self) -> int:
        """The append time of the newest request."""
        found = await self._log.newest([self._requests])
        if self._requests not in found:
            raise LogUnavailable(found=f"{self._requests.topic} has no leader")
        newest = found[self._requests]
        return self._clock.now_ms() if newest is None else newest.appended_ms

    def _new_source(self) -> str:
        return f"{self._name}.{self._chance.hex('source of a gateway', 12)}"

    def _envelope(self, event: Event, subject: str, origin: RequestOrigin) -> Envelope[Event]:
        """Return an event as a record of the present source; this uses up a sequence number."""
        assert self._epoch is not None, "the epoch is set before the first record"
        seq = self._seq
        self._seq += 1
        caller = origin.caller
        return Envelope(
            type=event.TYPE,
            version=event.VERSION,
            source=self.source,
            epoch=self._epoch,
            seq=seq,
            subject=subject,
            time_ms=self._clock.now_ms(),
            actor=Actor(kind=origin.kind, id=caller.user),
            traceparent=origin.traceparent,
            auth=Auth(
                method=caller.method, issuer=caller.issuer, credential_id=caller.credential_id
            ),
            data=event,
        )
