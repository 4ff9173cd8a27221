"""The log in one SQLite file, durable, for several processes at once.

SQLite blocks, so each handle has two threads, each with a connection of its own. The *writer*
commits all pending appends in one transaction: one fsync for many callers, and each append stays
atomic. The *reader* reads. SQLite does not notify of other processes' commits. While a call of
`wait` is open, the handle therefore asks SQLite every few milliseconds whether another connection
has committed, which only reads shared memory. The handle's own appends wake its waiters at once.

An append ends within a time limit. If the writer has not begun the append by then, nothing was
written (LogUnavailable); if it has begun, the append may have been written (AppendOutcomeUnknown).
"""

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from yardmaster_eventlog.errors import (
    AppendOutcomeUnknown,
    BatchTooLarge,
    LogClosed,
    LogError,
    LogUnavailable,
)
from yardmaster_eventlog.port import Clock, Partition, Record, StoredRecord, batch_bytes
from yardmaster_eventlog.seen import SeenRecords
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
    """A thread with its own connection to the file; it runs one call after another.

    The thread is a daemon: a process that dies leaves no acknowledged append unwritten. An executor
    of one thread costs 20 us more for each call.
    """

    def __init__(self, name: str) -> None:
        self._name = f"eventlog-{name}"
        self._loop = asyncio.get_running_loop()
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]] | None]
        self._calls = queue.SimpleQueue()
        self._closed = False
        self.file: LogFile

    async def open(self, path: Path, *, create: bool, lock_timeout_s: float) -> None:
        """Open the file.

        Raises: NotOurLog, LogCorrupt, LogUnavailable.
        """
        threading.Thread(target=self._run, name=self._name, daemon=True).start()
        try:
            self.file = await self._call(
                lambda: LogFile(path, create=create, lock_timeout_s=lock_timeout_s)
            )
        except BaseException:
            self._end()
            raise

    async def run(self, work: Callable[[LogFile], T]) -> T:
        """Return what `work` returns, run in the thread.

        Raises: LogClosed.
        """
        return await self._call(lambda: work(self.file))

    async def close(self) -> None:
        """Close the file and end the thread, after all earlier calls have ended."""
        done = self._call(self.file.close)
        self._end()
        await done

    def _call(self, work: Callable[[], T]) -> asyncio.Future[T]:
        if self._closed:
            raise LogClosed()
        done: asyncio.Future[T] = self._loop.create_future()
        self._calls.put((work, done))
        return done

    def _end(self) -> None:
        self._closed = True
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            work, done = call
            result, error = None, None
            try:
                result = work()
            except Exception as raised:  # noqa: BLE001 raised in the caller
                error = raised
            with suppress(RuntimeError):  # the loop is closed: no caller is left
                self._loop.call_soon_threadsafe(_resolve, done, result, error)


def _resolve(done: asyncio.Future[Any], result: Any, error: Exception | None = None) -> None:
    if done.done():  # its caller was cancelled, or has timed out
        return
    if error is None:
        done.set_result(result)
    else:
        done.set_exception(error)


class SqliteLog:
    """A log in one file; see `EventLog` for its contract. Made by `open`."""

    def __init__(self, clock: Clock, append_timeout_s: float) -> None:
        self._clock = clock
        self._append_timeout_s = append_timeout_s
        self._known: dict[Partition, StoredPartition] = {}
        self._seen = SeenRecords()
        self._closed = False
        self._writer = _Worker("writer")
        self._reader = _Worker("reader")
        self._pending: deque[_Append] = deque()
        #: Pending appends and those in the transaction under way; a gauge.
        self.appends_waiting = 0
        self._writing: asyncio.Task[None] | None = None
        self._truncation: asyncio.TimerHandle | None = None
        self._waiters: dict[Waiter, Sequence[StoredPartition]] = {}
        self._polling: asyncio.TimerHandle | None = None
        #: A connection that the event loop uses for reads of shared memory: `data_version`, `end`.
        self._watched: LogFile
        self._version = -1

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
            NotOurLog: the path holds something else, or it holds nothing and `create` is false.
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
            # Only the host's clock knows for how long the file was closed.
            clock.resume(await log._reader.run(LogFile.newest_ms))
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
        self._seen.check(partition)
        if not batch:
            raise ValueError("a batch without records")
        size = batch_bytes(batch)
        if size > stored.max_batch_bytes:
            raise BatchTooLarge(size=size, limit=stored.max_batch_bytes, topic=partition.topic)
        if self.appends_waiting >= MAX_PENDING:
            raise LogUnavailable(found=f"{MAX_PENDING} appends wait for the disk already")
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        append = _Append(Write(stored, tuple(batch)), size, done)
        before = self._seen.known_end(partition)
        self._pending.append(append)
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write())
        self.appends_waiting += 1
        try:
            async with asyncio.timeout(self._append_timeout_s):
                offset = await done
        except TimeoutError:
            found = f"the disk took longer than {self._append_timeout_s:g} s"
            if append.begun:
                raise AppendOutcomeUnknown(topic=partition.topic, found=found) from None
            self._pending.remove(append)
            raise LogUnavailable(found=found) from None
        finally:
            self.appends_waiting -= 1
        self._seen.appended(partition, offset, batch, before)
        return offset

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
        """Write a group of appends in one transaction, and give each its offset or its error.

        If a record of the group cannot be stored, the appends are written one by one.
        """
        writes, now_ms = [append.write for append in group], self._clock.now_ms()

        def write(file: LogFile) -> list[int]:
            for each in writes:
                self._compare(file, each.to)
            return file.append(writes, now_ms)

        try:
            offsets = await self._writer.run(write)
        except LogError as error:
            for append in group:
                fields = error.fields
                if isinstance(error, AppendOutcomeUnknown):
                    fields = {**fields, "topic": append.write.to.partition.topic}
                _resolve(append.done, None, type(error)(**fields))
        except Exception as error:  # noqa: BLE001 a record that cannot be stored
            if len(group) == 1:
                _resolve(group[0].done, None, error)
                return
            for append in group:
                await self._commit([append])
        else:
            for append, offset in zip(group, offsets, strict=True):
                _resolve(append.done, offset)
                # `wake`, not `see`: since the commit, a waiter may have read later records, so this
                # end may be out of date.
                for waiter in self._waiters:
                    waiter.wake(append.write.to.partition, offset + len(append.write.batch))

    def _truncate_later(self) -> None:
        self._truncation = None
        if not self._closed and (self._writing is None or self._writing.done()):
            self._writing = asyncio.create_task(self._truncate())

    async def _truncate(self) -> None:
        """Empty the write-ahead log, then write the appends that have arrived meanwhile."""
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
        self._check_open()
        stored = await self._find(partition)

        def read(file: LogFile) -> Sequence[StoredRecord]:
            try:
                return file.read(stored, offset, max_records)
            finally:
                self._compare(file, stored, reading=True)

        found = await self._reader.run(read)
        self._seen.read(found)
        return found

    async def end(self, partition: Partition) -> int:
        """Return the offset that the next record will get."""
        self._check_open()
        stored = await self._find(partition)

        def end(file: LogFile) -> int:
            self._compare(file, stored)
            return file.end(stored)

        return await self._reader.run(end)

    def _compare(self, file: LogFile, stored: StoredPartition, *, reading: bool = False) -> None:
        """Compare the newest record that was seen with the file.

        Raises: LogTruncated.
        """
        known = self._seen.newest(stored.partition)
        if known is not None:
            self._seen.compare(known, *file.record_at(stored, known.offset))
        self._seen.check(stored.partition, reading=reading)

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
            if self._polling is None:
                self._poll()
            for each in stored:
                self._seen.check(each.partition)
            # The ends are read after the waiter is registered, so that no append is missed and no
            # end is out of date.
            ends_now = await self._reader.run(lambda file: [file.end(each) for each in stored])
            for partition, end in zip(ends, ends_now, strict=True):
                waiter.see(partition, end)
            return await waiter.woken(self._clock, timeout_s)
        finally:
            del self._waiters[waiter]

    def _poll(self) -> None:
        """While calls wait, look regularly whether another connection has committed."""
        if not self._waiters or self._closed:
            self._polling = None
            return
        self._polling = asyncio.get_running_loop().call_later(POLL_S, self._poll)
        try:
            version = self._watched.data_version()
            if version == self._version:
                return
            self._version = version
            wanted = {stored for each in self._waiters.values() for stored in each}
            ends = [(stored.partition, self._watched.end(stored)) for stored in wanted]
        except LogUnavailable:
            self._version = -1  # locked for a moment: look again
            return
        except LogError as error:
            for waiter in self._waiters:
                waiter.fail(error)
            return
        for waiter in self._waiters:
            for partition, end in ends:
                waiter.see(partition, end)

    # --- the handle -----------------------------------------------------------------------------

    async def close(self) -> None:
        """Close this handle after the appends under way; waiting calls end with LogClosed."""
        if self._closed:
            return
        self._closed = True
        for waiter in self._waiters:
            waiter.fail(LogClosed())
        if self._truncation is not None:
            self._truncation.cancel()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._append_timeout_s):
                if self._writing is not None:
                    await asyncio.wait([self._writing])
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
