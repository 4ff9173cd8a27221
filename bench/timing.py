"""Timing: the best of several runs with the collector off, after one that does not count."""

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Row:
    """One figure: what was measured, how much of it, and what a peer takes for the same work."""

    name: str
    value: float
    unit: str
    aim: str = ""
    peer: str = ""
    note: str = ""
    more: dict[str, Any] = field(default_factory=dict)


def best_ms(work: Callable[[], object], *, runs: int = 3) -> float:
    """The shortest of `runs` runs of `work`, in milliseconds."""
    work()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        times = []
        for _ in range(runs):
            start = time.perf_counter()
            work()
            times.append(time.perf_counter() - start)
    finally:
        gc.enable()
        gc.unfreeze()
    return min(times) * 1000
