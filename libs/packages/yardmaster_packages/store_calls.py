"""Blocking calls of a store in threads, each with a deadline; the store of snapshots uses it too.

A call of a store that hangs, for example because an NFS server is down, cannot be ended: its thread
continues. A limit on such calls keeps a hanging store from taking all threads of the process.
"""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, Final, ParamSpec, TypeVar

from yardmaster_packages.limits import MIB

T = TypeVar("T")
P = ParamSpec("P")

#: Seconds after which a call counts as unanswered; a call transfers at most a few MiB.
DEADLINE_S: Final = 30.0
#: No call begins while this many calls have been given up and have not ended.
MAX_HUNG: Final = 16
#: Bytes that one call of a store reads or writes.
CALL_BYTES: Final = MIB


class StoreCalls:
    """Runs the blocking calls of one store.

    Args:
        name: the name of the threads.
        deadline_s: seconds after which a call counts as unanswered.
        max_hung: no call begins while this many calls have been given up and have not ended.
        executor: runs the calls; None: each call has a thread of its own.
        unavailable: makes the error of a call that failed or was given up, from its cause.
        passed_on: errors of a call that are raised as they are.
    """

    def __init__(
        self,
        name: str,
        *,
        deadline_s: float,
        max_hung: int,
        executor: Executor | None,
        unavailable: Callable[[str], Exception],
        passed_on: tuple[type[Exception], ...],
    ) -> None:
        self._deadline_s = deadline_s
        self._max_hung = max_hung
        self._executor: Executor = _Threads(name) if executor is None else executor
        self._unavailable = unavailable
        self._passed_on = passed_on
        #: Number of calls that were given up and have not ended.
        self._hung = 0

    async def run(self, work: Callable[[], T]) -> T:
        """Return what `work` returns.

        Raises:
            The error of `unavailable`: the call failed, takes longer than the deadline, or too many
                calls hang.
        """
        if self._hung >= self._max_hung:
            raise self._unavailable(f"{self._hung} earlier calls have not ended")
        call = asyncio.get_running_loop().run_in_executor(self._executor, work)
        try:
            # `asyncio.wait` leaves the call alone if its time is over or the caller is cancelled.
            await asyncio.wait({call}, timeout=self._deadline_s)
        finally:
            if not call.done():
                self._hung += 1
                call.add_done_callback(self._ended)
        if not call.done():
            raise self._unavailable(f"no answer within {self._deadline_s:g} s")
        try:
            return call.result()
        except self._passed_on:
            raise
        except Exception as error:  # an object store's library has errors of its own
            found = str(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
            raise self._unavailable(found) from error

    async def read(self, opened: Callable[[], Any]) -> AsyncGenerator[bytes, None]:
        """Yield the content of the file that `opened` returns, in pieces of `CALL_BYTES`.

        A caller that may stop before the end closes the generator (`contextlib.aclosing`).

        Raises:
            The errors of `run`.
        """
        file = await self.run(opened)
        answered = False
        try:
            while True:
                piece = await self.run(partial(file.read, CALL_BYTES))
                answered = True
                if not piece:
                    return
                yield piece
                answered = False
        finally:
            # A call that was given up may still use the file.
            if answered:
                await self.run(file.close)

    def _ended(self, call: "asyncio.Future[Any]") -> None:
        self._hung -= 1
        if not call.cancelled():
            call.exception()  # nothing else retrieves the error of a call that was given up


class _Threads(Executor):
    """Runs each call in a daemon thread, so that one that hangs does not keep the process alive."""

    def __init__(self, name: str) -> None:
        self._name = name

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001 - it is raised where the result is awaited
                future.set_exception(error)

        threading.Thread(target=run, name=self._name, daemon=True).start()
        return future
