"""The log in one SQLite file, durable, for several processes at once.

SQLite blocks, so each handle has two threads, each with a connection of its own. The *writer*
commits all pending appends in one transaction: one fsync for many callers, and each append stays
atomic. The *reader* reads. SQLite does not notify of other processes' commits; while a call of
`wait` is open, the handle asks SQLite every few milliseconds whether another connection has
committed, which is a look at shared memory. Its own appends wake its waiters at once.

An append is bounded in time. An append that the writer had not begun by then was not written
(LogUnavailable); one that it had begun may have been (AppendOutcomeUnknown).
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from yardmaster_eventlog.errors import (
    AppendOutcomeUnknown,
    BatchTooLarge,
    LogClosed,
    LogError,
    LogUnavailable,
)
from yardmaster_eventlog.port import Clock, Partition, Record, StoredRecord, batch_bytes
from yardmaster_eventlog.sqlite.file import LogFile, StoredPartition, Write
from yardmaster_eventlog.waiting import Waiter
from yardmaster_schemas.topics import Topic

T = TypeVar("T")

#: Appends that may be pending; one more is refused.
MAX_PENDING: Final = 10_000
#: The most that one transaction takes, in batches and (except for a single batch) in bytes.
GROUP_BATCHES: Final = 256
GROUP_BYTES: Final = 8 * 1024 * 1024
POLL_S: Final = 0.005
#: How long the writer is idle before it empties the write-ahead log of erased records.
TRUNCATE_AFTER_S: Final = 1.0


@dataclass(slots=True, eq=False)
class _Append:
    """A batch on its way to the file."""

    write: Write
    size: int
    done: asyncio.Future[int]
    begun: bool = False


class _Worker:
    """A thread with its own connection to the file; it runs one call after another."""

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(1, f"eventlog-{name}")
        self.file: LogFile

    async def open(self, path: Path, *, create: bool, lock_timeout_s: float) -> None:
        """Open the file.

        Raises: NotOurLog, LogCorrupt, LogUnavailable.
        """

        def work() -> None:
            self.file = LogFile(path, create=create, lock_timeout_s=lock_timeout_s)

        try:
            await asyncio.wrap_future(self._thread.submit(work))
        except BaseException:
            self._thread.shutdown(wait=False)
            raise

    async def run(self, work: Callable[[LogFile], T]) -> T:
        """Return what `work` returns, run in the thread.

        Raises: LogClosed.
        """
        try:
            done = self._thread.submit(work, self.file)
        except RuntimeError:  # the thread was shut down
            raise LogClosed() from None
        return await asyncio.wrap_future(done)

    async def close(self) -> None:
        """Close the file and end the thread, after the calls before."""
        done = self._thread.submit(self.file.close)
        self._thread.shutdown(wait=False)
        await asyncio.wrap_future(done)


class SqliteLog:
    """A log in one file; see `EventLog` for its contract. Made by `open`."""

    def __init__(self, clock: Clock, append_timeout_s: float) -> None:
        self._clock = clock
        self._append_timeout_s = append_timeout_s
        self._known: dict[Partition, StoredPartition] = {}
        self._closed = False
        self._writer = _Worker("writer")
        self._reader = _Worker("reader")
        self._pending: deque[_Append] = deque()
        #: Pending appends and those in the transaction under way; a gauge.
        self.appends_waiting = 0
        self._writing: asyncio.Task[None] | None = None
        self._truncation: asyncio.TimerHandle | None = None
        self._waiters: dict[Waiter, Sequence[StoredPartition]] = {}
        self._polling: asyncio.Task[None] | None = None
        #: Used by the event loop, for `data_version` alone.
        self._watched: LogFile

    @classmethod
    async def open(
        cls,
        path: Path,
        clock: Clock,
        *,
        create: bool = True,
        append_timeout_s: float = 10.0,
        lock_timeout_s: float = 5.0,
    ) -> "SqliteLog":
        """Open the log at `path`; with `create`, create it if the path is free (in its folder).

        An append ends within `append_timeout_s`; of that, it waits for other processes at most
        `lock_timeout_s`.

        Raises:
            NotOurLog: the path holds something else, or nothing though `create` is false.
            LogCorrupt: the file is damaged or cut short.
            LogUnavailable: the file cannot be opened, or stays locked.
        """
        log = cls(clock, append_timeout_s)
        await log._writer.open(path, create=create, lock_timeout_s=lock_timeout_s)
        try:
            await log._reader.open(path, create=False, lock_timeout_s=lock_timeout_s)
        except BaseException:
            await log._writer.close()
            raise
        try:
            log._watched = await log._reader.run(
                lambda file: LogFile(file.path, create=False, lock_timeout_s=0)
            )
        except BaseException:
            await log._reader.close()
            await log._writer.close()
            raise
        return log

    async def create_topics(self, topics: Sequence[Topic], partitions: int = 1) -> None:
        """Create missing topics."""
        self._check_open()
        wanted = tuple(topics)
        await self._writer.run(lambda file: file.create_topics(wanted, partitions))

    # --- appending ------------------------------------------------------------------------------

    async def append(self, partition: Partition, batch: Sequence[Record]) -> int:
        """Append `batch` atomically; return its first offset when it is durable."""
        self._check_open()
        stored = await self._find(partition)
        if not batch:
            raise ValueError("a batch without records")
        size = batch_bytes(batch)
        if size > stored.max_batch_bytes:
            raise BatchTooLarge(size=size, limit=stored.max_batch_bytes, topic=partition.topic)
        if self.appends_waiting >= MAX_PENDING:
            raise LogUnavailable(found=f"{MAX_PENDING} appends wait for the disk already")
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        append = _Append(Write(stored, tuple(batch)), size, done)
        self._pending.append(append)
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write())
        self.appends_waiting += 1
        try:
            async with asyncio.timeout(self._append_timeout_s):
                return await done
        except TimeoutError:
            found = f"the disk took longer than {self._append_timeout_s:g} s"
            if append.begun:
                raise AppendOutcomeUnknown(topic=partition.topic, found=found) from None
            self._pending.remove(append)
            raise LogUnavailable(found=found) from None
        finally:
            self.appends_waiting -= 1

    async def _write(self) -> None:
        """Commit pending appends, in groups, until none is pending."""
        if self._truncation is not None:
            self._truncation.cancel()
        while self._pending:
            await self._commit(self._next_group())
        if self._writer.file.erased and not self._closed:
            self._truncation = asyncio.get_running_loop().call_later(
                TRUNCATE_AFTER_S, self._truncate_later
            )

    def _next_group(self) -> list[_Append]:
        group: list[_Append] = []
        size = 0
        while self._pending and len(group) < GROUP_BATCHES:
            size += self._pending[0].size
            if group and size > GROUP_BYTES:
                break
            group.append(self._pending.popleft())
            group[-1].begun = True
        return group

    async def _commit(self, group: Sequence[_Append]) -> None:
        writes, now_ms = [append.write for append in group], self._clock.now_ms()
        try:
            offsets = await self._writer.run(lambda file: file.append(writes, now_ms))
        except LogError as error:
            for append in group:
                fields = error.fields
                if isinstance(error, AppendOutcomeUnknown):
                    fields = {**fields, "topic": append.write.to.partition.topic}
                _fail(append.done, type(error)(**fields))
        except Exception as error:  # noqa: BLE001 a record that cannot be stored
            if len(group) == 1:
                _fail(group[0].done, error)
                return
            for append in group:
                await self._commit([append])
        else:
            for append, offset in zip(group, offsets, strict=True):
                if not append.done.done():
                    append.done.set_result(offset)
                for waiter in self._waiters:
                    waiter.see(append.write.to.partition, offset + len(append.write.batch))

    def _truncate_later(self) -> None:
        self._truncation = None
        if not self._closed and (self._writing is None or self._writing.done()):
            self._writing = asyncio.create_task(self._truncate())

    async def _truncate(self) -> None:
        with suppress(LogError):  # a reader may be in the way: tried again later
            await self._writer.run(LogFile.truncate_wal)
        await self._write()

    # --- reading --------------------------------------------------------------------------------

    async def read(
        self,
        partition: Partition,
        offset: int,
        *,
        max_records: int = 1000,
        buffered_only: bool = False,
    ) -> Sequence[StoredRecord]:
        """Return records from `offset` on."""
        self._check_open()
        stored = await self._find(partition)
        return await self._reader.run(lambda file: file.read(stored, offset, max_records))

    async def end(self, partition: Partition) -> int:
        """Return the offset that the next record will get."""
        self._check_open()
        stored = await self._find(partition)
        return await self._reader.run(lambda file: file.end(stored))

    async def newest(
        self, partitions: Sequence[Partition]
    ) -> Mapping[Partition, StoredRecord | None]:
        """Return the newest record of each partition."""
        self._check_open()
        return await self._reader.run(lambda file: {each: file.newest(each) for each in partitions})

    async def wait(self, ends: Mapping[Partition, int], timeout_s: float) -> bool:
        """Wait until a partition has a record at or after the offset given for it."""
        self._check_open()
        stored = [await self._find(partition) for partition in ends]
        waiter = Waiter(ends)
        self._waiters[waiter] = stored
        try:
            if self._polling is None or self._polling.done():
                self._polling = asyncio.create_task(self._poll())
            await self._look([waiter])
            return await waiter.woken(self._clock, timeout_s)
        finally:
            del self._waiters[waiter]

    async def _look(self, waiters: Iterable[Waiter]) -> None:
        """Tell waiters how far their partitions are."""
        wanted = {stored for waiter in waiters for stored in self._waiters[waiter]}
        ends = await self._reader.run(lambda file: {each: file.end(each) for each in wanted})
        for waiter in waiters:
            for stored, end in ends.items():
                waiter.see(stored.partition, end)

    async def _poll(self) -> None:
        """While calls wait, look whenever another connection has committed."""
        version = -1
        while self._waiters and not self._closed:
            try:
                newer = self._watched.data_version()
                if newer != version:
                    version = newer
                    await self._look(list(self._waiters))
            except LogError as error:
                for waiter in self._waiters:
                    waiter.fail(error)
                return
            await asyncio.sleep(POLL_S)

    # --- the handle -----------------------------------------------------------------------------

    async def close(self) -> None:
        """Close this handle after the appends begun before; waiting calls end with LogClosed."""
        if self._closed:
            return
        self._closed = True
        for waiter in self._waiters:
            waiter.fail(LogClosed())
        if self._truncation is not None:
            self._truncation.cancel()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._append_timeout_s):
                running = [task for task in (self._writing, self._polling) if task is not None]
                if running:
                    await asyncio.wait(running)
                self._watched.close()
                await self._writer.close()
                await self._reader.close()

    def _check_open(self) -> None:
        if self._closed:
            raise LogClosed()

    async def _find(self, partition: Partition) -> StoredPartition:
        stored = self._known.get(partition)
        if stored is None:
            stored = await self._reader.run(lambda file: file.find(partition))
            self._known[partition] = stored
            self._check_open()
        return stored


def _fail(done: asyncio.Future[int], error: Exception) -> None:
    if not done.done():  # its caller may have been cancelled, or have timed out
        done.set_exception(error)
