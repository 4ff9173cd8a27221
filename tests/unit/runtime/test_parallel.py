"""Calls in worker processes: their results, their progress, and the effect of a failure."""

import os
import signal
import time

import pytest

from yardmaster_runtime.errors import WorkerKilled
from yardmaster_runtime.parallel import Progress, run_calls


def doubled(number: int, progress: Progress) -> int:
    progress(0.5)
    progress(1.0)
    return 2 * number


def refused(number: int, progress: Progress) -> int:
    raise ValueError(f"not {number}")


def endless(number: int, progress: Progress) -> int:
    while True:  # a report raises when another call has failed
        progress(0.0)
        time.sleep(0.01)


def killed(number: int, progress: Progress) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return number


@pytest.mark.parametrize("workers", [1, 2, 8])
def test_results_come_in_the_order_of_the_calls(workers: int) -> None:
    calls = [(doubled, (number,)) for number in range(5)]
    assert run_calls(calls, workers, lambda part: None) == [0, 2, 4, 6, 8]


def test_progress_counts_each_call_by_its_weight() -> None:
    seen: list[float] = []
    run_calls([(doubled, (1,)), (doubled, (2,))], 1, seen.append, weights=(3, 1))
    assert seen == [0.375, 0.75, 0.875, 1.0]


def test_a_call_that_fails_stops_the_others() -> None:
    with pytest.raises(ValueError, match="not 7"):
        run_calls([(endless, (1,)), (refused, (7,)), (endless, (2,))], 2, lambda part: None)


def test_a_killed_worker_is_named_with_advice() -> None:
    with pytest.raises(WorkerKilled, match="fewer workers"):
        run_calls([(killed, (1,)), (killed, (2,))], 2, lambda part: None)
