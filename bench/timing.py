"""Timing: the best of several runs with the collector off, after one warm-up run."""

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One figure: what was measured, its value, our aim, the peer's value.

    `cpu` is the same figure by the processor time of this process alone, which is more reliable
    than the clock on a shared machine.
    """

    name: str
    value: float
    unit: str
    aim: str = ""
    peer: float | None = None
    cpu: float | None = None


@dataclass(frozen=True, slots=True)
class Took:
    """Wall-clock and processor seconds of one run."""

    wall_s: float
    cpu_s: float


@contextmanager
def collector_off() -> Iterator[None]:
    """Turn garbage collection off and freeze live objects inside this context."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


def timed(work: Callable[[], object]) -> Took:
    """Measure one run of `work`."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return Took(time.perf_counter() - wall, time.process_time() - cpu)


def best(work: Callable[[], object], *, runs: int = 5) -> Took:
    """The shortest of `runs` runs of `work`, after one warm-up run."""
    work()
    with collector_off():
        return shortest([timed(work) for _ in range(runs)])


def shortest(runs: Sequence[Took]) -> Took:
    """The minimum wall-clock and the minimum processor time, perhaps of different runs."""
    return Took(min(t.wall_s for t in runs), min(t.cpu_s for t in runs))


def quantile(values: Sequence[float], share: float) -> float:
    """The quantile `share` (0 to 1) of the values."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]
