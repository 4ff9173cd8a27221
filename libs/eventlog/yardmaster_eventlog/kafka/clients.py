"""aiokafka's clients as `log` needs them: a discardable producer, a consumer at one offset."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.client import AIOKafkaClient
from aiokafka.conn import CloseReason
from aiokafka.errors import CorruptRecordException, KafkaError, ProducerClosed, for_code
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.structs import ConsumerRecord

from yardmaster_eventlog.kafka.records import UnreadableBatch, records
from yardmaster_eventlog.port import Partition, StoredRecord, stored_record
from yardmaster_schemas.topics import MIB

#: How long a broker delays an empty fetch response; it answers at once when a record arrives.
FETCH_WAIT_MS: Final = 500
#: Bytes that a cursor reads ahead.
FETCH_BYTES: Final = 2 * MIB
#: How long a discarded client's own tasks may take to end.
ABANDON_S: Final = 2.0


class _Connections(dict[object, object]):
    """A client's connections; calls `on_change` when a node's connection is replaced."""

    def __init__(self, on_change: Callable[[], object]) -> None:
        super().__init__()
        self._known: set[object] = set()
        self._on_change = on_change

    def __setitem__(self, node: object, connection: object) -> None:
        if node in self._known:
            self._on_change()
        self._known.add(node)
        super().__setitem__(node, connection)


def watch_connections(client: AIOKafkaClient, on_change: Callable[[], object]) -> None:
    """Call `on_change` when a client loses a connection, and when it has reconnected.

    aiokafka (0.14) reconnects silently and has no callback for that. The call after a reconnection
    comes before anything is sent or received through the new connection. Use this function before
    the client connects.
    """
    closed = client._on_connection_closed

    def on_closed(connection: object, reason: CloseReason | None) -> None:
        if reason in (CloseReason.CONNECTION_BROKEN, CloseReason.CONNECTION_TIMEOUT):
            on_change()
        closed(connection, reason)

    client._on_connection_closed = on_closed
    client._conns = _Connections(on_change)


@asynccontextmanager
async def cancel_safe() -> AsyncIterator[None]:
    """Close a client in the block; raise CancelledError after it only if the caller was cancelled.

    aiokafka (0.14) cancels its own tasks when it closes, and confuses their cancellation with that
    of the caller. It may suppress the cancellation of the caller, so that a caller that retries
    would never end. It may also raise the cancellation of one of its tasks, which would end a
    caller that was not cancelled.
    """
    task = asyncio.current_task()
    assert task is not None, "coroutines run in tasks"
    before = task.cancelling()
    try:
        with suppress(asyncio.CancelledError):
            yield
    finally:
        if task.cancelling() > before:
            raise asyncio.CancelledError


class Producer(AIOKafkaProducer):  # type: ignore[misc]
    """aiokafka's producer, which can also be discarded.

    aiokafka's `stop` waits until all batches are sent, possibly forever. aiokafka has no public
    method that does less, so `abandon` uses aiokafka's internals; the lock file fixes the version
    of aiokafka, and a test calls `abandon` after it has killed a broker.
    """

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._abandoned = False
        self._requests: dict[asyncio.Task[Any], None] = {}
        send = self._sender._send_produce_req

        async def tracked(node_id: int, batches: object) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._requests[task] = None
            try:
                await send(node_id, batches)
            finally:
                del self._requests[task]

        self._sender._send_produce_req = tracked

    async def abandon(self) -> None:
        """Close all connections and drop unacknowledged batches; their futures fail."""
        if self._abandoned:
            return
        self._closed = self._abandoned = True
        accumulator = self._message_accumulator
        batches = [batch for queue in accumulator._batches.values() for batch in queue]
        batches += accumulator._pending_batches
        accumulator.fail_all(ProducerClosed())
        for batch in batches:
            batch.future.exception()  # callers have futures of their own; mark this one as read
        tasks = [*self._requests]
        if self._sender.sender_task is not None:
            tasks.append(self._sender.sender_task)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=ABANDON_S)
        with suppress(KafkaError, OSError, TimeoutError):
            async with asyncio.timeout(ABANDON_S), cancel_safe():
                await self.client.close()


async def newest_records(
    partitions: Sequence[Partition], client: Mapping[str, Any]
) -> dict[Partition, StoredRecord]:
    """Return the newest record of each non-empty partition, read by one consumer.

    Each of the partitions must have a leader.

    Raises: KafkaError.
    """
    found: dict[Partition, StoredRecord] = {}
    consumer = AIOKafkaConsumer(group_id=None, enable_auto_commit=False, **client)
    await consumer.start()
    try:
        places = {TopicPartition(each.topic, each.number): each for each in partitions}
        consumer.assign([*places])
        first = await consumer.beginning_offsets([*places])
        end = await consumer.end_offsets([*places])
        wanted = {at for at in places if first[at] < end[at]}
        consumer.assign([*wanted])
        for at in wanted:
            consumer.seek(at, end[at] - 1)
        while wanted:
            for at, records in (await consumer.getmany(timeout_ms=FETCH_WAIT_MS)).items():
                found[places[at]] = _stored(places[at], records[-1])
                wanted.discard(at)
    finally:
        with suppress(KafkaError, OSError, TimeoutError):
            async with asyncio.timeout(ABANDON_S), cancel_safe():
                await consumer.stop()
    return found


def _stored(partition: Partition, record: ConsumerRecord) -> StoredRecord:
    return stored_record(
        partition,
        record.offset,
        record.timestamp,
        record.key or b"",
        record.value,
        tuple((name, value or b"") for name, value in record.headers),
    )


class Cursor:
    """One consumer at one offset; `position` is the offset of the next record to return."""

    def __init__(
        self,
        partition: Partition,
        consumer: AIOKafkaConsumer,
        interruptions: Callable[[], int] = lambda: 0,
    ) -> None:
        """`interruptions`: how often connections to the brokers were interrupted."""
        self.partition = partition
        self.position = -1
        #: Whether the last `seek` was to the current position, so that a fetch is under way there.
        self.followed = False
        self._at = TopicPartition(partition.topic, partition.number)
        self._consumer = consumer
        self._ahead: list[StoredRecord] = []
        self._interruptions = interruptions
        self._filled_after = 0

    async def start(self) -> None:
        """Connect; call `seek` next."""
        await self._consumer.start()
        self._consumer.assign([self._at])

    def seek(self, offset: int) -> None:
        """Go to `offset`; a fetch raises OffsetOutOfRangeError if it does not exist."""
        self.followed = offset == self.position
        if not self.followed:
            self._consumer.seek(self._at, offset)
            self.position = offset
            self._ahead = []

    async def fill(self, max_records: int, timeout_s: float) -> bool:
        """Tell whether records are buffered; if not, fetch for up to `timeout_s` first."""
        if self._filled_after != (interruptions := self._interruptions()):
            # Records that were fetched before the interruption may no longer be in the log.
            self._filled_after, self._ahead = interruptions, []
            self._consumer.seek(self._at, self.position)
        if not self._ahead:
            try:
                found = await self._consumer.getmany(
                    self._at, timeout_ms=int(timeout_s * 1000), max_records=max_records
                )
            except (CorruptRecordException, UnicodeDecodeError) as error:
                await self._fetch_leniently(error)
                return bool(self._ahead)
            self._ahead = [_stored(self.partition, record) for record in found.get(self._at, ())]
        return bool(self._ahead)

    async def _fetch_leniently(self, error: Exception) -> None:
        """Fetch the records that aiokafka refused with `error`, and decode them with `records`.

        Raises: `error`, if the batch cannot be decoded; KafkaError.
        """
        client = self._consumer._client
        request = FetchRequest(
            FETCH_WAIT_MS,
            1,
            FETCH_BYTES,
            0,
            [(self._at.topic, [(self._at.partition, self.position, FETCH_BYTES)])],
            rack_id="",
        )
        response = await client.send(client.cluster.leader_for_partition(self._at), request)
        ((_, ((_, code, *_, data),)),) = response.topics
        if code:
            raise for_code(code)()
        try:
            self._ahead = list(records(self.partition, self.position, data))
        except UnreadableBatch:
            raise error from None
        if self._ahead:
            self._consumer.seek(self._at, self._ahead[-1].offset + 1)

    def take(self, max_records: int) -> Sequence[StoredRecord]:
        """Return the buffered records, and move past them."""
        taken, self._ahead = self._ahead[:max_records], self._ahead[max_records:]
        if taken:
            self.position = taken[-1].offset + 1
        return taken

    @property
    def behind(self) -> bool:
        """Whether the partition has more records, so that the cursor can seek without a delay.

        At the end of the partition a fetch is pending at the broker, which answers the requests of
        a connection in order.
        """
        end = self._consumer.highwater(self._at)
        return end is not None and self.position < end

    async def close(self) -> None:
        """Close the consumer's connections."""
        with suppress(KafkaError, OSError, TimeoutError):
            async with asyncio.timeout(ABANDON_S), cancel_safe():
                await self._consumer.stop()
