"""When garbage is collected, where most of what is made lives on."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

#: Objects made and not freed before the youngest generation is collected; how many such collections
#: until the next generation is, and so on. Python's own are 700, 10, 10.
GC_THRESHOLDS: Final = (50_000, 20, 100)


def tune_gc() -> None:
    """Keep the garbage collector from walking the state over and over; to call after a restore.

    A cell's state is millions of objects that live on. The collector cannot know that: each full
    collection walks all of them, and under load there are so many that they take 30 to 60 % of the
    time, in pauses of up to seconds. So what lives now is set aside (`gc.freeze`), and collections
    are made so rare (`GC_THRESHOLDS`) that what comes after stays cheap too. Cycles, such as those
    of an error and its traceback, still go, and so does the state of a term that is over: what was
    set aside before is looked at once more.

    It is the process that is changed, so only whoever owns the process may ask for it.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


@contextmanager
def tuned_gc() -> Iterator[None]:
    """The same for as long as something runs, for a process that has set nothing aside before."""
    thresholds = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
