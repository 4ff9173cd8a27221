"""Timing: the best of several runs with the collector off, after one that does not count."""

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One figure: what was measured, how much of it, what is aimed at, what a peer takes.

    `cpu` is the same figure by the processor time of this process alone: on a machine that others
    use too it says more than the clock.
    """

    name: str
    value: float
    unit: str
    aim: str = ""
    peer: float | None = None
    cpu: float | None = None


@dataclass(frozen=True, slots=True)
class Took:
    """Seconds of one run: by the clock, and of the processor."""

    wall_s: float
    cpu_s: float


@contextmanager
def collector_off() -> Iterator[None]:
    """Inside, no garbage is collected; what lives now is set aside."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


def timed(work: Callable[[], object]) -> Took:
    """How long `work` took."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return Took(time.perf_counter() - wall, time.process_time() - cpu)


def best(work: Callable[[], object], *, runs: int = 5) -> Took:
    """The shortest of `runs` runs of `work`, after one that does not count."""
    work()
    with collector_off():
        return shortest([timed(work) for _ in range(runs)])


def shortest(runs: Sequence[Took]) -> Took:
    """The least time by the clock and the least of the processor, each of its own run."""
    return Took(min(t.wall_s for t in runs), min(t.cpu_s for t in runs))


def quantile(values: Sequence[float], share: float) -> float:
    """The value that `share` of the values do not exceed."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]
