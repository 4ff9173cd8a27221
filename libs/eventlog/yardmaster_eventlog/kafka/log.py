"""The log on Apache Kafka.

A batch is one record batch, which a broker appends atomically, so no transaction is needed.
`send_batch` to an explicit partition sends exactly the given records (`send` may split them); the
producer is idempotent, so its own retries write nothing twice.

Appends to one partition that are pending at the same time are sent in one record batch, and each
stays atomic. (aiokafka sends one batch at a time, and batches that wait for their turn starve.)

An idempotent producer retries forever, so this module bounds an append: when the time is up, the
outcome is unknown, and the producer is discarded with all its unsent batches, so that none of them
is written later, except by a request that is already under way. This module never repeats an
append. After LogUnavailable nothing was written: leaders and the facts of agents repeat the append
(`yardmaster_runtime.retrying`), the relay repeats it itself, and other callers report the error or
send later. After AppendOutcomeUnknown a leader restores its state, and an agent appends its facts
again (`Writer.append` in its `reports.py`).

After each interruption of a connection, before records are returned or appended, the newest records
that this handle has seen are read again (`seen`): the brokers may have lost the end of a partition.
Unless records were lost, the end that the brokers return is never before a record that was read: a
new leader returns no end until it has all records that the former leader had shown (KIP-207). Only
a former leader that does not know yet that it was replaced, after a pause or a network fault, may
return an older end; then `_end` asks again.

A *cursor* is a consumer without a group at one offset of one partition. A reader that continues
where it stopped gets the same cursor, which has read ahead. To wait for records is to fetch them
and to keep them for the read that follows, so there is no polling.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final, TypeVar

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    InvalidTopicError,
    KafkaConnectionError,
    KafkaError,
    LeaderNotAvailableError,
    MessageSizeTooLargeError,
    NoError,
    OffsetOutOfRangeError,
    RecordListTooLargeError,
    TopicAlreadyExistsError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
    for_code,
)
from aiokafka.structs import RecordMetadata

from yardmaster_eventlog.errors import (
    AppendOutcomeUnknown,
    BatchTooLarge,
    LogClosed,
    LogError,
    LogUnavailable,
    OffsetGone,
    ReadPastEnd,
    UnknownTopic,
)
from yardmaster_eventlog.kafka.access import check_access
from yardmaster_eventlog.kafka.clients import (
    FETCH_BYTES,
    FETCH_WAIT_MS,
    Cursor,
    Producer,
    cancel_safe,
    newest_records,
    watch_connections,
)
from yardmaster_eventlog.kafka.settings import KafkaSettings, topic_settings
from yardmaster_eventlog.metrics import NO_METRICS, LogMetrics
from yardmaster_eventlog.port import Clock, Partition, Record, StoredRecord, batch_bytes
from yardmaster_eventlog.seen import SeenRecords, is_kept
from yardmaster_eventlog.waiting import Waiter
from yardmaster_schemas.topics import MIB, Topic
from yardmaster_schemas.topics import topic as topic_of

T = TypeVar("T")

__all__ = ["KafkaLog", "KafkaSettings"]

#: The client's limit of one batch; the limit of every topic is lower.
MAX_BATCH_BYTES: Final = 16 * MIB
#: The most idle cursors that are kept for later reads: in total, and of one partition.
IDLE_CURSORS: Final = 32
IDLE_CURSORS_OF_PARTITION: Final = 3
RETRY_S: Final = 0.1
#: The time in which a former leader learns that another broker leads, once it runs again.
REPLACED_S: Final = 1.0
#: The type of a batch's timestamp, in an acknowledgment, that the broker's clock set.
_LOG_APPEND_TIME: Final = 1
#: Topics created by one request; a controller refuses one that causes 10,000 of its own records.
TOPICS_AT_ONCE: Final = 200


@dataclass(slots=True, eq=False)
class _Append:
    """A pending batch. Once `taken`, it may be written; `sent` is set when the producer has it."""

    batch: Sequence[Record]
    size: int
    taken: bool = False
    #: Index of its first record in the record batch.
    first: int = 0
    sent: "_Sent | None" = None


@dataclass(frozen=True, slots=True)
class _Sent:
    """One record batch that the producer has accepted: its size, and its number of appends."""

    producer: Producer
    done: asyncio.Future[RecordMetadata]
    size: int
    appends: int
    #: When the append that sent it times out (the event loop's time).
    deadline: float


@dataclass(slots=True)
class _Queue:
    """Appends to one partition; the holder of the lock sends all pending appends.

    The producer has one batch of a partition at a time. While the broker writes it, appends wait
    here and form the next batch together; in the producer, each would be a batch of its own.
    """

    pending: list[_Append] = field(default_factory=list)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    #: The newest batch that the producer has accepted.
    last: _Sent | None = None


class KafkaLog:
    """A log on Kafka; see `EventLog` for its contract. Made by `open`."""

    def __init__(
        self, settings: KafkaSettings, clock: Clock, metrics: LogMetrics = NO_METRICS
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._metrics = metrics
        self._client = settings.client()
        self._admin = AIOKafkaAdminClient(**self._client)
        # This consumer asks for offsets only: the consumer of a cursor would get an answer only
        # when its pending fetch ends.
        self._offsets = AIOKafkaConsumer(group_id=None, enable_auto_commit=False, **self._client)
        watch_connections(self._offsets._client, self._on_interruption)
        self._producer: Producer | None = None
        self._producer_lock = asyncio.Lock()
        #: Number of partitions of each known topic.
        self._topics: dict[str, int] = {}
        self._limits: dict[str, int] = {}
        self._queues: dict[Partition, _Queue] = {}
        self._idle: list[Cursor] = []
        self._seen = SeenRecords()
        self._interruptions = 0
        #: The value of `_interruptions` when `_seen` was last compared with the log: by partition
        #: for topics that expire, and at None for all topics that are kept forever.
        self._compared: defaultdict[Partition | None, int] = defaultdict(int)
        self._compare_locks: defaultdict[Partition | None, asyncio.Lock]
        self._compare_locks = defaultdict(asyncio.Lock)
        #: Topics that this client may write but not read.
        self._unreadable: set[str] = set()
        self._waiters: dict[Waiter, None] = {}
        self._closed = False

    @classmethod
    async def open(
        cls, settings: KafkaSettings, clock: Clock, metrics: LogMetrics = NO_METRICS
    ) -> "KafkaLog":
        """Connect.

        Raises: LogUnavailable, LogNotTrusted, LogAccessRefused, TlsUnusable.
        """
        log = cls(settings, clock, metrics)
        try:
            await log._bounded(log._connect)
            await log._bounded(log._offsets.start)
        except BaseException:
            await log.close()
            raise
        return log

    async def _connect(self) -> None:
        try:
            await self._admin.start()
        except (KafkaConnectionError, ValueError):
            await check_access(self._settings)
            raise

    async def create_topics(self, topics: Sequence[Topic], partitions: int = 1) -> None:
        """Create missing topics, and wait until each partition has a leader."""
        self._check_open()
        for first in range(0, len(topics), TOPICS_AT_ONCE):
            await self._create_topics(topics[first : first + TOPICS_AT_ONCE], partitions)

    async def _create_topics(self, topics: Sequence[Topic], partitions: int) -> None:
        new = [
            NewTopic(
                name=topic.name,
                num_partitions=partitions,
                replication_factor=self._settings.replication_factor,
                topic_configs=topic_settings(topic, self._settings),
            )
            for topic in topics
        ]

        async def create() -> None:
            response = await self._admin.create_topics(new)
            for name, code, *about in response.topic_errors:
                error = for_code(code)
                if code and error is not TopicAlreadyExistsError:
                    raise error(f"{name}: {about}")

        await self._bounded(create)
        await self._bounded(lambda: self._led({topic.name for topic in topics}))
        self._limits |= {topic.name: topic.max_batch_bytes for topic in topics}

    async def append(self, partition: Partition, batch: Sequence[Record]) -> int:
        """Append `batch` atomically; return its first offset when all in-sync replicas have it."""
        self._check_open()
        if not batch:
            raise ValueError("a batch without records")
        size, limit = batch_bytes(batch), self._limit(partition.topic)
        if size > limit:
            raise BatchTooLarge(size=size, limit=limit, topic=partition.topic)
        deadline = asyncio.get_running_loop().time() + self._settings.append_timeout_s
        await self._require(partition)
        await self._bounded(lambda: self._check_seen(partition))
        before = self._seen.known_end(partition)
        append = _Append(tuple(batch), size)
        queue = self._queues.setdefault(partition, _Queue())
        queue.pending.append(append)
        try:
            async with asyncio.timeout_at(deadline), queue.lock:
                if append.sent is None:
                    await self._finished(queue.last)
                    await self._send(partition, queue, deadline)
        except (TimeoutError, KafkaError, LogUnavailable) as error:
            if not append.taken:
                raise LogUnavailable(found=_described(error)) from error
        finally:
            if append in queue.pending:
                queue.pending.remove(append)
        offset = await self._outcome(partition, append, deadline)
        self._seen.appended(partition, offset, batch, before)
        return offset

    async def _finished(self, sent: _Sent | None) -> None:
        """Wait until a batch is acknowledged or given up."""
        if sent is None or sent.done.done():
            return
        left_s = sent.deadline - asyncio.get_running_loop().time()
        await asyncio.wait([sent.done], timeout=max(0.0, left_s))
        if not sent.done.done():
            # Its own calls give it up at their deadlines, unless all of them were cancelled.
            await self._abandon(sent.producer)

    async def _send(self, partition: Partition, queue: _Queue, deadline: float) -> None:
        """Give pending appends to the producer, as many as fit into one record batch."""
        producer = await self._bounded(self._running_producer)
        builder, pending = producer.create_batch(), queue.pending
        now_ms = self._clock.now_ms()
        group: list[_Append] = []
        size, limit = 0, self._limit(partition.topic)
        for append in pending:
            if group and size + append.size > limit:
                break
            size += append.size
            append.taken = True
            append.first = builder.record_count()
            group.append(append)
            for record in append.batch:
                added = builder.append(
                    timestamp=now_ms,
                    key=record.key,
                    value=record.value,
                    headers=list(record.headers),
                )
                assert added is not None, "a batch within its topic's limit fits one record batch"
        builder.close()
        try:
            sent = await producer.send_batch(builder, partition.topic, partition=partition.number)
        except BaseException:
            for append in group:
                append.taken = False  # the producer is busy: nothing was sent
            raise
        sent.add_done_callback(lambda done: done.cancelled() or done.exception())
        queue.last = _Sent(producer, sent, size, len(group), deadline)
        for append in group:
            append.sent = queue.last
            # An append that has timed out has removed itself.
            if append in pending:
                pending.remove(append)

    async def _outcome(self, partition: Partition, append: _Append, deadline: float) -> int:
        """Wait for the acknowledgment of an append; return the offset of its first record.

        After the deadline or an error the producer is discarded, with all its unsent batches.

        Raises: AppendOutcomeUnknown, BatchTooLarge, LogUnavailable.
        """
        topic, sent = partition.topic, append.sent
        if sent is None:
            raise AppendOutcomeUnknown(topic=topic, found="it was about to be sent")
        left_s = deadline - asyncio.get_running_loop().time()
        await asyncio.wait([sent.done], timeout=max(0.0, left_s))
        if not sent.done.done():
            await self._abandon(sent.producer)
            # The topic may be deleted, or have no leader: the next call looks for it again.
            self._topics.pop(topic, None)
            waited = f"not acknowledged within {self._settings.append_timeout_s:g} s"
            raise AppendOutcomeUnknown(topic=topic, found=waited)
        try:
            stored = sent.done.result()
            base = int(stored.offset)
        except (MessageSizeTooLargeError, RecordListTooLargeError) as error:
            await self._abandon(sent.producer)
            # Another program created the topic, with a lower limit than this handle knows.
            self._limits[topic] = limit = min(self._limit(topic), sent.size - 1)
            if sent.appends > 1:
                raise LogUnavailable(found="too many appends were sent at once") from error
            raise BatchTooLarge(size=append.size, limit=limit, topic=topic) from error
        except (TopicAuthorizationFailedError, ClusterAuthorizationFailedError) as error:
            await self._abandon(sent.producer)
            raise LogUnavailable(found=_described(error)) from error
        except KafkaError as error:
            await self._abandon(sent.producer)
            raise AppendOutcomeUnknown(topic=topic, found=_described(error)) from error
        if base < 0:
            # The broker has already written the batch, but no longer knows its offset.
            raise AppendOutcomeUnknown(topic=topic, found="written at an unknown offset")
        if stored.timestamp_type == _LOG_APPEND_TIME:
            ahead_ms = self._clock.follow(stored.timestamp)
            self._metrics.clock_ahead(topic, ahead_ms / 1000)
        return base + append.first

    async def read(
        self,
        partition: Partition,
        offset: int,
        *,
        max_records: int = 1000,
        buffered_only: bool = False,
    ) -> Sequence[StoredRecord]:
        self._check_open()
        await self._require(partition)
        if offset < 0:
            raise OffsetGone(topic=partition.topic, offset=offset, start=0)

        async def read() -> Sequence[StoredRecord]:
            async with self._cursor(partition, offset) as cursor:
                if not await cursor.fill(max_records, 0):
                    if buffered_only and cursor.followed:
                        return ()
                    end = await self._end(partition, offset)
                    await self._check_seen(partition, reading=True)
                    if offset > end:
                        raise ReadPastEnd(topic=partition.topic, offset=offset, end=end)
                    if offset < end:
                        while not await cursor.fill(max_records, FETCH_WAIT_MS / 1000):
                            continue  # the call's own deadline ends this
                await self._check_seen(partition, reading=True)
                taken = cursor.take(max_records)
                self._seen.read(taken)
                return taken

        async def read_what_is_kept() -> Sequence[StoredRecord]:
            try:
                return await read()
            except OffsetOutOfRangeError:
                first = await self._first(partition)
                if offset < first:
                    raise OffsetGone(topic=partition.topic, offset=offset, start=first) from None
                return await read()  # the offset is past the end, or was when it was fetched

        return await self._bounded(read_what_is_kept)

    async def end(self, partition: Partition) -> int:
        """Return the offset that the next record will get."""
        self._check_open()
        await self._require(partition)

        async def end() -> int:
            end = await self._end(partition)
            await self._check_seen(partition)
            return end

        return await self._bounded(end)

    async def newest(
        self, partitions: Sequence[Partition]
    ) -> Mapping[Partition, StoredRecord | None]:
        """Return the newest record of each partition."""
        self._check_open()
        return await self._bounded(lambda: self._newest(partitions))

    async def wait(self, ends: Mapping[Partition, int], timeout_s: float) -> bool:
        """Wait until a partition has a record at or after the offset given for it."""
        self._check_open()
        for partition in ends:
            await self._require(partition)
        waiter = Waiter(ends)
        self._waiters[waiter] = None
        try:
            async with asyncio.TaskGroup() as group:
                fetching = [
                    group.create_task(self._fetch(partition, offset, waiter))
                    for partition, offset in ends.items()
                ]
                with suppress(LogError):  # a task group would wrap it; it is raised below
                    await waiter.woken(self._clock, timeout_s)
                for task in fetching:
                    task.cancel()
        finally:
            del self._waiters[waiter]
        if waiter.error is not None:
            raise waiter.error
        return waiter.grown

    async def close(self) -> None:
        """Close all connections; waiting calls end with LogClosed."""
        if self._closed:
            return
        self._closed = True
        for waiter in self._waiters:
            waiter.fail(LogClosed())
        producer, self._producer = self._producer, None
        if producer is not None:
            try:
                async with asyncio.timeout(self._settings.append_timeout_s), cancel_safe():
                    await producer.stop()
            except TimeoutError:
                await producer.abandon()
        idle, self._idle = self._idle, []
        for cursor in idle:
            await cursor.close()
        for close in (self._offsets.stop, self._admin.close):
            with suppress(KafkaError, OSError):
                async with cancel_safe():
                    await close()

    async def _fetch(self, partition: Partition, offset: int, waiter: Waiter) -> None:
        """Fetch from `offset` until a record arrives; keep it for the next read, wake `waiter`."""
        try:
            while True:
                try:
                    async with self._cursor(partition, offset) as cursor:
                        while not await cursor.fill(1000, FETCH_WAIT_MS / 1000):
                            # The waiter's own deadline cancels this.
                            with suppress(KafkaError):
                                await self._check_seen(partition)
                        await self._check_seen(partition)
                        waiter.see(partition, offset + 1)
                        return
                except OffsetOutOfRangeError:
                    # Retention has removed the record, or the log has lost it.
                    self._interruptions += 1
                    await self._check_seen(partition)
                    waiter.see(partition, await self._end(partition, offset))
                    await self._clock.sleep(RETRY_S)
        except KafkaError as error:
            waiter.fail(LogUnavailable(found=_described(error)))
        except LogError as error:
            waiter.fail(error)

    def _on_interruption(self) -> None:
        self._interruptions += 1

    async def _check_seen(self, partition: Partition, *, reading: bool = False) -> None:
        """After an interruption, compare the newest records that were seen with the log.

        The records of all topics that are kept forever are compared, and with `reading` also the
        record of `partition` if its topic expires.

        Raises:
            LogTruncated: one of the compared topics has lost records.
            KafkaError: the brokers cannot be reached.
        """
        await self._compare_seen(None)
        if reading and not is_kept(partition):
            await self._compare_seen(partition)
        self._seen.check(partition, reading=reading)

    async def _compare_seen(self, expiring: Partition | None) -> None:
        """Compare the known records, unless they were compared since the last interruption.

        `expiring`: the partition to compare; None: all partitions that are kept forever.
        """
        while self._compared[expiring] != self._interruptions:
            async with self._compare_locks[expiring]:
                interruptions = self._interruptions
                if self._compared[expiring] == interruptions:
                    continue
                for known in self._seen.all():
                    at = known.partition
                    if at == expiring or (expiring is None and is_kept(at)):
                        await self._compare(known)
                self._compared[expiring] = interruptions

    async def _compare(self, known: StoredRecord) -> None:
        """Compare the newest record that was seen of one partition with the log.

        `self._seen` notes a difference, and raises it at the next check.
        """
        partition, offset = known.partition, known.offset
        end, found = await self._end(partition, offset + 1), None
        about = topic_of(partition.topic)
        # The newest record of a compacted topic may be replaced at any time. A topic that this
        # client may not read is compared by its end only.
        comparable = partition.topic not in self._unreadable and not (about and about.compacted)
        if comparable and await self._first(partition) <= offset < end:
            try:
                async with self._cursor(partition, offset) as cursor:
                    while not await cursor.fill(1, FETCH_WAIT_MS / 1000):
                        continue  # the call's own deadline ends this
                    found = cursor.take(1)[0].record
            except TopicAuthorizationFailedError:
                self._unreadable.add(partition.topic)
        self._seen.compare(known, end, found)

    @asynccontextmanager
    async def _cursor(self, partition: Partition, offset: int) -> AsyncIterator[Cursor]:
        """Provide a cursor at `offset` for one call; keep it afterwards if it is usable."""
        # The most recent one first: it has the records that a wait has just fetched.
        idle = [cursor for cursor in reversed(self._idle) if cursor.partition == partition]
        there = [cursor for cursor in idle if cursor.position == offset]
        cursor = next(iter(there or [cursor for cursor in idle if cursor.behind]), None)
        usable = False
        if cursor is not None:
            self._idle.remove(cursor)
        else:
            consumer = AIOKafkaConsumer(
                group_id=None,
                enable_auto_commit=False,
                auto_offset_reset="none",
                fetch_max_wait_ms=FETCH_WAIT_MS,
                max_partition_fetch_bytes=FETCH_BYTES,
                **self._client,
            )
            watch_connections(consumer._client, self._on_interruption)
            cursor = Cursor(partition, consumer, lambda: self._interruptions)
        try:
            if cursor.position < 0:
                await cursor.start()
                self._metrics.connected()
            cursor.seek(offset)
            yield cursor
            usable = True
        except (LogError, asyncio.CancelledError):
            usable = cursor.position >= 0
            raise
        finally:
            if usable and not self._closed:
                self._idle.append(cursor)
                idle = [cursor for cursor in self._idle if cursor.partition == partition]
                if len(self._idle) > IDLE_CURSORS or len(idle) > IDLE_CURSORS_OF_PARTITION:
                    oldest = idle[0] if len(idle) > IDLE_CURSORS_OF_PARTITION else self._idle[0]
                    self._idle.remove(oldest)
                    await oldest.close()
            else:
                # The next cursor is a new client, which cannot tell that this one was interrupted.
                self._interruptions += 1
                await cursor.close()

    async def _newest(
        self, partitions: Sequence[Partition]
    ) -> Mapping[Partition, StoredRecord | None]:
        led: dict[str, set[int]] = {}
        known: set[Partition] = set()
        for found in await self._admin.describe_topics(sorted({p.topic for p in partitions})):
            topic, error = found["topic"], for_code(found["error_code"])
            if error in (UnknownTopicOrPartitionError, InvalidTopicError):
                continue
            if error not in (NoError, LeaderNotAvailableError):
                raise error(topic)
            known.update(Partition(topic, each["partition"]) for each in found["partitions"])
            led[topic] = {e["partition"] for e in found["partitions"] if e["leader"] >= 0}
        ready = [each for each in partitions if each.number in led.get(each.topic, ())]
        records = await newest_records(ready, self._client) if ready else {}
        readable = {*ready, *(each for each in partitions if each not in known)}
        return {each: records.get(each) for each in partitions if each in readable}

    async def _end(self, partition: Partition, read_to: int = 0) -> int:
        """Return the end of a partition, of which the records before `read_to` were read.

        An end before `read_to` is returned only if it is confirmed: the request has no leader
        epoch (aiokafka 0.14), so a former leader may answer it with an older end.
        """
        at = TopicPartition(partition.topic, partition.number)
        end = int((await self._offsets.end_offsets([at]))[at])
        if end < read_to:
            await self._clock.sleep(REPLACED_S)
            await self._offsets._client.force_metadata_update()
            end = int((await self._offsets.end_offsets([at]))[at])
        return end

    async def _first(self, partition: Partition) -> int:
        at = TopicPartition(partition.topic, partition.number)
        return int((await self._offsets.beginning_offsets([at]))[at])

    async def _running_producer(self) -> Producer:
        """Return the producer that all appends share; start a new one if the last was discarded."""
        async with self._producer_lock:
            if self._producer is None:
                producer = Producer(
                    acks="all",
                    enable_idempotence=True,
                    max_batch_size=MAX_BATCH_BYTES,
                    max_request_size=MAX_BATCH_BYTES,
                    **self._client,
                )
                watch_connections(producer.client, self._on_interruption)
                try:
                    await producer.start()
                except BaseException:
                    await producer.abandon()
                    raise
                self._producer = producer
                self._metrics.connected()
            return self._producer

    async def _abandon(self, producer: Producer) -> None:
        """Discard a producer; the next append starts another one."""
        self._interruptions += 1
        if self._producer is producer:
            self._producer = None
            self._metrics.abandoned()
        await producer.abandon()

    async def _require(self, partition: Partition) -> None:
        """Check that this handle is open and the partition exists.

        Raises: LogClosed, UnknownTopic, LogUnavailable.
        """
        if partition.number >= self._topics.get(partition.topic, 0):
            self._topics.pop(partition.topic, None)
            await self._bounded(lambda: self._look({partition.topic}))
        self._check_open()
        if not 0 <= partition.number < self._topics.get(partition.topic, 0):
            raise UnknownTopic(topic=partition.topic, partition=partition.number)

    async def _look(self, names: set[str]) -> None:
        """Find out which of the topics exist.

        Raises:
            LeaderNotAvailableError: a partition of an existing topic has no leader now.
            KafkaError: this client may not describe a topic.
        """
        for found in await self._admin.describe_topics(sorted(names)):
            error = for_code(found["error_code"])
            if error in (UnknownTopicOrPartitionError, InvalidTopicError):
                continue
            if error not in (NoError, LeaderNotAvailableError):
                raise error(found["topic"])
            led = [each for each in found["partitions"] if each["leader"] >= 0]
            if error is LeaderNotAvailableError or len(led) < len(found["partitions"]):
                raise LeaderNotAvailableError(found["topic"])
            self._topics[found["topic"]] = len(led)

    async def _led(self, names: set[str]) -> None:
        """Wait until each of these topics exists and all its partitions have leaders."""
        while missing := names - self._topics.keys():
            await self._look(missing)
            if names - self._topics.keys():
                await asyncio.sleep(RETRY_S)

    async def _bounded(self, call: Callable[[], Awaitable[T]]) -> T:
        """Return what `call` returns; retry until the deadline while no broker can be reached.

        Raises: LogUnavailable.
        """
        reason = f"no answer within {self._settings.call_timeout_s:g} s"
        try:
            async with asyncio.timeout(self._settings.call_timeout_s):
                while True:
                    try:
                        return await call()
                    except KafkaError as error:
                        self._interruptions += 1
                        reason = _described(error)
                        if not error.retriable:
                            raise LogUnavailable(found=reason) from error
                    self._metrics.retried()
                    await asyncio.sleep(RETRY_S)
        except TimeoutError:
            raise LogUnavailable(found=reason) from None

    def _limit(self, name: str) -> int:
        known = topic_of(name)
        return self._limits.get(name, known.max_batch_bytes if known else MIB)

    def _check_open(self) -> None:
        if self._closed:
            raise LogClosed()


def _described(error: BaseException) -> str:
    return f"{type(error).__name__} {error}".strip()
