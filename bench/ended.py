"""The cost of jobs that have ended: snapshots of both state machines with 10,000 live jobs.

The jobs of the scheduler go through their whole lives. Quota's are put into the state, because only
their ids are left of them. Of four sizes, the figures of quota grow linearly and the scheduler's do
not grow.
"""

from hashlib import blake2b
from typing import Any

from pydantic_core import from_json, to_json

from bench.cells import MACHINE, admit, admitted, cell, job_id, one_gpu
from bench.core import WAVE, _apply, _lives
from bench.timing import Row, collector_off, timed
from yardmaster_core.admission.machine import QuotaMachine
from yardmaster_core.admission.state import AdmissionState, Job
from yardmaster_core.rules import RULES
from yardmaster_core.testing import START_MS

LIVE = 10_000
QUOTA = QuotaMachine()


def quota(ended: int) -> list[Row]:
    """A snapshot of quota with `ended` ended jobs."""
    state = AdmissionState("main")
    state.rules = RULES
    body = blake2b(digest_size=32).digest()
    for number in range(LIVE):
        state.put_job(job_id(number), Job("nlp", ("main",), 1, 42, 1, body, user="ada"))
    for number in range(LIVE, LIVE + ended):
        state.judged_ids.add(job_id(number), body)
    return _measured(QUOTA, state, f"quota, {ended:,} ended jobs")


def scheduler(ended: int) -> list[Row]:
    """A snapshot of the scheduler after the whole lives of `ended` jobs."""
    state = cell(1000, 32)
    for cycle, first in enumerate(range(0, ended, WAVE), 2):
        _apply(state, _lives(first))
        state.digest()
        MACHINE.end_cycle(state, complete=True)
        MACHINE.begin_cycle(state, cycle, START_MS + cycle)
    admit(state, (admitted(ended + n, one_gpu()) for n in range(LIVE)))
    assert len(state.jobs) == LIVE, len(state.jobs)
    return _measured(MACHINE, state, f"scheduler, {ended:,} ended jobs")


def _measured(machine: Any, state: Any, name: str) -> list[Row]:
    found: list[Any] = []
    with collector_off():
        # Encoding, which follows, lets other tasks run after each slice.
        dumped = timed(lambda: found.append(machine.dump(state)))
        found[0] = to_json(found[0])
        loaded = timed(
            lambda: machine.digest(machine.load("main", from_json(found[0]))),
        )
    return [
        Row(f"{name}: snapshot", len(found[0]) / 1e6, "MB", "<= 100 MB"),
        Row(f"{name}: dump", dumped.wall_s, "s", "<= 0.1 s", cpu=dumped.cpu_s),
        Row(f"{name}: load", loaded.wall_s, "s", "<= 5 s", cpu=loaded.cpu_s),
    ]
