"""Runs calls in worker processes, reports how far they are, and stops all when one fails."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, CancelledError, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context
from signal import SIG_BLOCK, SIG_SETMASK, SIGINT, pthread_sigmask
from typing import Any, Final

from yardmaster_runtime.errors import WorkerKilled

#: Receives the completed part of a call or of all calls, from 0 to 1.
Progress = Callable[[float], None]
#: A function of a module and its arguments, which must be picklable; a `Progress` is added to them.
Call = tuple[Callable[..., Any], tuple[Any, ...]]

#: Seconds between two reports of progress.
REPORT_INTERVAL_S: Final = 0.2
#: Starts workers that inherit no memory of this process, alike on every operating system.
_CONTEXT: Final = get_context("spawn")


def unreported(part: float) -> None:
    """Report nothing."""


def run_calls(
    calls: Sequence[Call],
    workers: int,
    progress: Progress,
    *,
    weights: Sequence[float] | None = None,
) -> list[Any]:
    """Run calls in at most `workers` processes; return their results in the order of the calls.

    One worker is this process. `weights`: how long each call takes compared with the others, for
    `progress`; None: all take equally long. If a call fails or the user interrupts, the other calls
    are stopped at their next report.

    Raises:
        WorkerKilled: a worker process was killed.
        and the error of the first call that was seen to fail.
    """
    shares = [1.0] * len(calls) if weights is None else weights
    whole = sum(shares)

    def tell(done: Iterable[float]) -> None:
        progress(sum(part * share for part, share in zip(done, shares, strict=True)) / whole)

    if min(workers, len(calls)) == 1:
        done = [0.0] * len(calls)

        def report(at: int, part: float) -> None:
            done[at] = part
            tell(done)

        return [
            function(*arguments, lambda part, at=at: report(at, part))
            for at, (function, arguments) in enumerate(calls)
        ]
    parts = _CONTEXT.Array("d", len(calls), lock=False)
    stopped = _CONTEXT.Value("b", lock=False)
    with ProcessPoolExecutor(
        min(workers, len(calls)),
        mp_context=_CONTEXT,
        initializer=_share,
        initargs=(parts, stopped),
    ) as pool:
        try:
            with _uninterrupted():
                running = [
                    pool.submit(_run_in_worker, at, function, arguments)
                    for at, (function, arguments) in enumerate(calls)
                ]
            while wait(running, REPORT_INTERVAL_S, FIRST_EXCEPTION).not_done:
                for each in running:
                    if each.done():
                        each.result()
                tell(parts)
            return [each.result() for each in running]
        except BrokenProcessPool:
            raise WorkerKilled from None
        except BaseException:
            # `cancel_futures` does not stop calls that a worker has already received.
            stopped.value = True
            pool.shutdown(cancel_futures=True)
            raise


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Block SIGINT in processes that are started inside this context.

    A terminal sends SIGINT to all of its processes. A worker that dies of it would make the pool
    kill the other workers in the middle of writing their logs.
    """
    before = pthread_sigmask(SIG_BLOCK, (SIGINT,))
    try:
        yield
    finally:
        pthread_sigmask(SIG_SETMASK, before)


#: Set in a worker process: the progress of all calls, and whether all calls must stop.
_parts: Any = None
_stopped: Any = None


def _share(parts: Any, stopped: Any) -> None:
    """Set the variables that this worker process shares with the process that started it."""
    global _parts, _stopped
    _parts, _stopped = parts, stopped


def _run_in_worker(at: int, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Run call number `at` in a worker process; its progress reports also look for a stop."""

    def record(part: float) -> None:
        if _stopped.value:
            raise CancelledError
        _parts[at] = part

    record(0.0)
    return function(*arguments, record)
