"""Garbage collection in a process whose objects mostly live long."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

#: Thresholds of `gc.set_threshold`; Python's defaults are 700, 10, 10.
GC_THRESHOLDS: Final = (50_000, 20, 100)


def tune_gc() -> None:
    """Exclude the current objects from garbage collection and collect rarely; call after a restore.

    A cell's state has millions of long-lived objects. Each full collection walks all of them; under
    load, collections take 30 to 60 % of the time, in pauses of up to seconds. Therefore the current
    objects are frozen (`gc.freeze`), and GC_THRESHOLDS makes collections rare, so that later
    objects cost little too. Reference cycles, such as an error with its traceback, are still
    collected. Frozen objects are collected once more first, so the state of an old term is freed.

    This changes the whole process, so only the owner of the process may call it.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


@contextmanager
def tuned_gc() -> Iterator[None]:
    """Freeze objects and make collections rare during a block.

    The process must have no frozen objects before it.
    """
    thresholds = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
