"""The log in one SQLite file, durable, for several processes at once.

SQLite blocks, so each handle has two threads. The *writer* takes the appends that wait, all that
there are, and commits them in one transaction: one fsync for many callers, each append still whole
or not at all. The *reader* reads; and only while someone waits for records it asks SQLite every few
milliseconds whether another process has committed (a look at shared memory; SQLite has no way to
tell). What this handle itself appends wakes its waiters at once.

An append is bounded in time. What the writer had not begun by then was not written
(LogUnavailable); what it had begun may be (AppendOutcomeUnknown).
"""

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar

from yardmaster_eventlog.errors import (
    AppendOutcomeUnknown,
    BatchTooLarge,
    LogClosed,
    LogError,
    LogUnavailable,
    OffsetGone,
    UnknownTopic,
)
from yardmaster_eventlog.port import Clock, Partition, Record, StoredRecord, batch_bytes
from yardmaster_eventlog.sqlite.file import LogFile, StoredPartition, Write
from yardmaster_eventlog.waiting import Waiter
from yardmaster_schemas.topics import Topic

T = TypeVar("T")

#: Appends that may wait for the writer; one more is refused.
MAX_WAITING: Final = 10_000
#: What one transaction takes at most, in batches and (but for a single batch) in bytes.
GROUP_BATCHES: Final = 256
GROUP_BYTES: Final = 8 * 1024 * 1024
POLL_S: Final = 0.005
#: How long the writer is idle before it empties the write-ahead log of what was erased.
FORGET_AFTER_S: Final = 1.0


@dataclass(slots=True, eq=False)
class _Append:
    """A batch on its way: `begun` and `withdrawn` exclude each other, under the log's lock."""

    write: Write
    size: int
    done: asyncio.Future[int]
    begun: bool = False
    withdrawn: bool = False


@dataclass(slots=True, eq=False)
class _Job:
    """Something to do in a thread, and who waits for it."""

    work: Callable[[LogFile], object]
    done: asyncio.Future[object] = field(repr=False)


def _settle(done: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    if done.done():
        return  # who asked has been cancelled, or has given up
    if error is None:
        done.set_result(result)
    else:
        done.set_exception(error)


class _Thread:
    """A thread with its own connection to the file, doing one thing after another.

    A daemon: a process that dies leaves nothing undone that was promised.
    """

    name: ClassVar[str]

    def __init__(self, open_file: Callable[[], LogFile]) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[_Append | _Job | None] = queue.SimpleQueue()
        self._open_file = open_file
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._ended: asyncio.Future[None] = self._loop.create_future()

    async def start(self) -> None:
        """Open the file.

        Raises: NotOurLog, LogCorrupt, LogUnavailable.
        """
        threading.Thread(target=self._live, name=self.name, daemon=True).start()
        await self._opened

    async def do(self, work: Callable[[LogFile], T]) -> T:
        """What `work` gives, done in the thread."""
        job = _Job(work, self._loop.create_future())
        self._queue.put(job)
        return await job.done  # type: ignore[return-value]

    async def stop(self) -> None:
        """End when all that waits is done."""
        self._queue.put(None)
        await self._ended

    def _live(self) -> None:
        try:
            file = self._open_file()
        except Exception as error:  # noqa: BLE001 it is for who opens
            self._post(_settle, self._opened, None, error)
            return
        self._post(_settle, self._opened, None, None)
        try:
            self._run(file)
        finally:
            file.close()
            self._post(_settle, self._ended, None, None)

    def _run(self, file: LogFile) -> None:
        raise NotImplementedError

    def _do(self, job: _Job, file: LogFile) -> None:
        try:
            result = job.work(file)
        except Exception as error:  # noqa: BLE001 it is the caller's, not the thread's
            self._post(_settle, job.done, None, error)
        else:
            self._post(_settle, job.done, result, None)

    def _post(self, call: Callable[..., object], *arguments: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody is left to be told
            self._loop.call_soon_threadsafe(call, *arguments)


class _Writer(_Thread):
    """Appends, in groups."""

    name = "eventlog-writer"

    def __init__(
        self,
        open_file: Callable[[], LogFile],
        clock: Clock,
        grown: Callable[[Partition, int], None],
    ) -> None:
        self._clock = clock
        self._grown = grown
        self._lock = threading.Lock()
        self._next: _Append | _Job | None = None
        self._has_next = False
        super().__init__(open_file)

    def put(self, append: _Append) -> None:
        """Take an append into the queue."""
        self._queue.put(append)

    def withdraw(self, append: _Append) -> bool:
        """Whether it could be taken back: it is not written, and will not be."""
        with self._lock:
            append.withdrawn = not append.begun
            return append.withdrawn

    def _run(self, file: LogFile) -> None:
        while True:
            try:
                item = self._take(FORGET_AFTER_S if file.erased else None)
            except queue.Empty:
                with suppress(LogError):  # a reader is in the way, say: again in a while
                    file.forget()
                continue
            if item is None:
                return
            if isinstance(item, _Job):
                self._do(item, file)
            else:
                self._commit(self._group(item), file)

    def _take(self, timeout_s: float | None) -> _Append | _Job | None:
        if self._has_next:
            self._has_next = False
            return self._next
        return self._queue.get(timeout=timeout_s)

    def _group(self, append: _Append) -> list[_Append]:
        group = [append]
        size = append.size
        while len(group) < GROUP_BATCHES:
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                break
            if not isinstance(item, _Append) or size + item.size > GROUP_BYTES:
                self._next, self._has_next = item, True
                break
            group.append(item)
            size += item.size
        return group

    def _commit(self, group: list[_Append], file: LogFile) -> None:
        with self._lock:
            group = [append for append in group if not append.withdrawn]
            for append in group:
                append.begun = True
        if not group:
            return
        try:
            offsets = file.append([append.write for append in group], self._clock.now_ms())
        except LogError as error:
            self._post(self._failed, group, error)
        except Exception as error:  # noqa: BLE001 a record that cannot be stored
            if len(group) == 1:
                self._post(_settle, group[0].done, None, error)
                return
            for append in group:
                self._commit([append], file)
        else:
            self._post(self._appended, group, offsets)

    def _appended(self, group: list[_Append], offsets: list[int]) -> None:
        for append, offset in zip(group, offsets, strict=True):
            _settle(append.done, offset, None)
            self._grown(append.write.to.partition, offset + len(append.write.batch))

    def _failed(self, group: list[_Append], error: LogError) -> None:
        for append in group:
            fields = error.fields
            if isinstance(error, AppendOutcomeUnknown):
                fields = {**fields, "topic": append.write.to.partition.topic}
            _settle(append.done, None, type(error)(**fields))


class _Reader(_Thread):
    """Reads, and watches for what other processes append."""

    name = "eventlog-reader"

    def __init__(self, open_file: Callable[[], LogFile]) -> None:
        self._watched: dict[Waiter, Sequence[StoredPartition]] = {}
        self._version = 0
        super().__init__(open_file)

    async def watch(self, waiter: Waiter, partitions: Sequence[StoredPartition]) -> None:
        """Tell `waiter` how far the partitions are, now and whenever they grow, until `unwatch`."""

        def work(file: LogFile) -> None:
            self._watched[waiter] = partitions
            self._tell(waiter, {stored: file.end(stored) for stored in partitions})

        await self.do(work)

    def unwatch(self, waiter: Waiter) -> None:
        """The waiter is gone."""

        def work(_: LogFile) -> None:
            self._watched.pop(waiter, None)

        self._queue.put(_Job(work, self._loop.create_future()))

    def _run(self, file: LogFile) -> None:
        look_at = 0.0
        while True:
            with suppress(queue.Empty):
                job = self._queue.get(timeout=POLL_S if self._watched else None)
                if not isinstance(job, _Job):
                    return
                self._do(job, file)
            if self._watched and time.monotonic() >= look_at:
                self._look(file)
                look_at = time.monotonic() + POLL_S

    def _look(self, file: LogFile) -> None:
        try:
            version = file.data_version()
            if version == self._version:
                return
            self._version = version
            ends: dict[StoredPartition, int] = {}
            for waiter, partitions in self._watched.items():
                for stored in partitions:
                    if stored not in ends:
                        ends[stored] = file.end(stored)
                self._tell(waiter, {stored: ends[stored] for stored in partitions})
        except LogError as error:
            for waiter in self._watched:
                self._post(waiter.fail, error)
            self._watched.clear()

    def _tell(self, waiter: Waiter, ends: Mapping[StoredPartition, int]) -> None:
        for stored, end in ends.items():
            if waiter.waits_below(stored.partition, end):
                self._post(waiter.see, stored.partition, end)


class SqliteLog:
    """A log in one file; see `EventLog` for what its methods promise. Made by `open`."""

    def __init__(
        self,
        path: Path,
        clock: Clock,
        *,
        create: bool = True,
        append_timeout_s: float = 10.0,
        lock_timeout_s: float = 5.0,
    ) -> None:
        self._clock = clock
        self._append_timeout_s = append_timeout_s
        self._known: dict[Partition, StoredPartition] = {}
        self._waiters: dict[Waiter, None] = {}
        self._closed = False
        #: Appends that wait for the writer, at most MAX_WAITING; a gauge.
        self.appends_waiting = 0
        self._writer = _Writer(
            lambda: LogFile(path, create=create, lock_timeout_s=lock_timeout_s), clock, self._grown
        )
        self._reader = _Reader(lambda: LogFile(path, create=False, lock_timeout_s=lock_timeout_s))

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
        """Open the log at `path`; with `create`, make it if nothing is there (its folder must be).

        An append ends within `append_timeout_s`; of that, it waits for other processes at most
        `lock_timeout_s`.

        Raises:
            NotOurLog: something else is there, or nothing though `create` is false.
            LogCorrupt: it is damaged or cut short.
            LogUnavailable: it may not be opened, or stays locked.
        """
        log = cls(
            path,
            clock,
            create=create,
            append_timeout_s=append_timeout_s,
            lock_timeout_s=lock_timeout_s,
        )
        await log._writer.start()
        try:
            await log._reader.start()
        except LogError:
            await log._writer.stop()
            raise
        return log

    async def create_topics(self, topics: Sequence[Topic], partitions: int = 1) -> None:
        """Make topics that are not there yet."""
        self._open()
        wanted = tuple(topics)
        await self._writer.do(lambda file: file.create_topics(wanted, partitions))

    async def append(self, partition: Partition, batch: Sequence[Record]) -> int:
        """Append `batch` whole; return the offset of its first record when it is safe on disk."""
        self._open()
        stored = await self._find(partition)
        if not batch:
            raise ValueError("a batch without records")
        size = batch_bytes(batch)
        if size > stored.max_batch_bytes:
            raise BatchTooLarge(size=size, limit=stored.max_batch_bytes, topic=partition.topic)
        if self.appends_waiting >= MAX_WAITING:
            raise LogUnavailable(found=f"{MAX_WAITING} appends wait for the disk already")
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        append = _Append(Write(stored, tuple(batch)), size, done)
        self.appends_waiting += 1
        self._writer.put(append)
        try:
            async with asyncio.timeout(self._append_timeout_s):
                return await done
        except TimeoutError:
            found = f"the disk took longer than {self._append_timeout_s:g} s"
            if self._writer.withdraw(append):
                raise LogUnavailable(found=found) from None
            raise AppendOutcomeUnknown(topic=partition.topic, found=found) from None
        finally:
            self.appends_waiting -= 1

    async def read(
        self,
        partition: Partition,
        offset: int,
        *,
        max_records: int = 1000,
        buffered_only: bool = False,
    ) -> Sequence[StoredRecord]:
        """Records from `offset` on."""
        self._open()
        stored = await self._find(partition)
        return await self._reader.do(lambda file: file.read(stored, offset, max_records))

    async def _newest(self, partition: Partition) -> StoredRecord | None:
        try:
            end = await self.end(partition)
            found = await self.read(partition, end - 1, max_records=1) if end else ()
        except (UnknownTopic, OffsetGone):
            return None
        return found[0] if found else None

    async def end(self, partition: Partition) -> int:
        """The offset that the next record will get."""
        self._open()
        stored = await self._find(partition)
        return await self._reader.do(lambda file: file.end(stored))

    async def newest(
        self, partitions: Sequence[Partition]
    ) -> Mapping[Partition, StoredRecord | None]:
        """The newest record of each partition."""
        return {place: await self._newest(place) for place in partitions}

    async def wait(self, ends: Mapping[Partition, int], timeout_s: float) -> bool:
        """Wait until a partition has a record at or after the offset given for it."""
        self._open()
        partitions = [await self._find(partition) for partition in ends]
        waiter = Waiter(ends)
        self._waiters[waiter] = None
        try:
            await self._reader.watch(waiter, partitions)
            return await waiter.woken(self._clock, timeout_s)
        finally:
            del self._waiters[waiter]
            self._reader.unwatch(waiter)

    async def close(self) -> None:
        """Close this handle, when what it has begun is done; calls that wait end with LogClosed."""
        if self._closed:
            return
        self._closed = True
        for waiter in self._waiters:
            waiter.fail(LogClosed())
        with suppress(TimeoutError):
            async with asyncio.timeout(self._append_timeout_s):
                await self._writer.stop()
                await self._reader.stop()

    def _open(self) -> None:
        if self._closed:
            raise LogClosed()

    async def _find(self, partition: Partition) -> StoredPartition:
        stored = self._known.get(partition)
        if stored is None:
            stored = await self._reader.do(lambda file: file.find(partition))
            self._known[partition] = stored
            self._open()
        return stored

    def _grown(self, partition: Partition, end: int) -> None:
        for waiter in self._waiters:
            waiter.see(partition, end)
