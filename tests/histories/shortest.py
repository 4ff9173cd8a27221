"""Cut a history that breaks a property to a short one that breaks the same property."""

import gc
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.histories.inputs import Input
from tests.histories.player import HistoryPlayer
from tests.histories.properties import CheckedPlayer

#: The most plays of one cut.
MOST_PLAYS: Final = 1500
#: CPU seconds of a play after which it counts as endless. The longest of 80 needed 0.6 s. A full
#: collection of garbage in a process with 12 million objects of other tests took 1.2 s, so that
#: none is done during a play; and another thread that computed doubled the time of the process.
ENDLESS_S: Final = 2.0
#: 0 would stop the timer.
SHORTEST_TIMER_S: Final = 0.01


@dataclass(frozen=True, slots=True)
class Broken:
    """A broken property: where the check is in the code, and what it says."""

    where: str
    text: str


class Endless(Exception):
    """The play of a history does not end."""


def broken_in(
    inputs: Sequence[Input], player: Callable[[], HistoryPlayer] = CheckedPlayer
) -> Broken | None:
    """Play a history; return the property that it breaks, or None."""
    try:
        with _at_most(ENDLESS_S):
            player().play(inputs)
    except Exception as error:  # noqa: BLE001 - also an error of the core is a finding
        if isinstance(error, Endless):
            return Broken("endless", f"no end after {ENDLESS_S:.0f} s")
        at = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(at.filename).name}:{at.lineno} {at.name}"
        return Broken(where, f"{type(error).__name__}: {error}")
    return None


def shortest(
    inputs: Sequence[Input], where: str, player: Callable[[], HistoryPlayer] = CheckedPlayer
) -> list[Input]:
    """Return a part of the history that breaks the property checked at `where`.

    Drops ever smaller runs of inputs, as long as the rest breaks the property.
    """
    plays = 0

    def breaks(some: Sequence[Input]) -> bool:
        nonlocal plays
        plays += 1
        found = broken_in(some, player)
        return found is not None and found.where == where

    return _cut(list(inputs), breaks, lambda: plays < MOST_PLAYS)


def _cut(
    left: list[Input], breaks: Callable[[Sequence[Input]], bool], may_play: Callable[[], bool]
) -> list[Input]:
    size = len(left) // 2
    while size:
        at, cut = 0, False
        while at < len(left) and may_play():
            rest = left[:at] + left[at + size :]
            if breaks(rest):
                left, cut = rest, True
            else:
                at += size
        if not cut or size > 1:
            size //= 2
        if not may_play():
            break
    return left


@contextmanager
def _at_most(cpu_s: float) -> Iterator[None]:
    """Raise `Endless` after this CPU time of the present thread, without collections of garbage."""
    begun_s = time.thread_time()

    def stop(*_: object) -> None:
        # The timer counts other threads of the process too.
        left_s = cpu_s - (time.thread_time() - begun_s)
        if left_s <= 0:
            raise Endless
        signal.setitimer(signal.ITIMER_VIRTUAL, max(left_s, SHORTEST_TIMER_S))

    collected = gc.isenabled()
    before = signal.signal(signal.SIGVTALRM, stop)
    gc.disable()
    signal.setitimer(signal.ITIMER_VIRTUAL, cpu_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
        if collected:
            gc.enable()
