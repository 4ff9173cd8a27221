"""The cost of jobs that have ended: snapshots of both state machines with 10,000 live jobs.

The jobs of the scheduler go through their whole lives. Quota's are put into the state, because only
their ids are left of them. Of four sizes, the figures of quota grow linearly and the scheduler's do
not grow. The event loop is blocked by the dump and by each slice of its encoding; a restart loads
the snapshot.
"""

from hashlib import blake2b
from typing import Any

from pydantic_core import from_json

from bench.cells import MACHINE, admit, admitted, cell, job_id, one_gpu
from bench.core import WAVE, _apply, _lives
from bench.timing import Row, Took, collector_off, timed
from yardmaster_core.admission.machine import QuotaMachine
from yardmaster_core.admission.state import AdmissionState, Job
from yardmaster_core.rules import RULES
from yardmaster_core.testing import START_MS
from yardmaster_runtime.machine.snapshotting import encoded

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
        dumped = timed(lambda: found.append(machine.dump(state)))
        payload, slices = _encoded({"cell": "main", "state": found.pop()})
        loaded = timed(
            lambda: machine.digest(machine.load("main", from_json(payload)["state"])),
        )
    slowest = max(slices, key=lambda took: took.cpu_s)
    return [
        Row(f"{name}: snapshot", len(payload) / 1e6, "MB", "<= 100 MB"),
        Row(f"{name}: dump", dumped.wall_s, "s", "<= 0.1 s", cpu=dumped.cpu_s),
        Row(f"{name}: slowest slice", slowest.wall_s, "s", "<= 0.1 s", cpu=slowest.cpu_s),
        Row(f"{name}: load", loaded.wall_s, "s", "<= 5 s", cpu=loaded.cpu_s),
    ]


def _encoded(dump: dict[str, Any]) -> tuple[bytes, list[Took]]:
    """The snapshot's payload, and the time of each slice after which other tasks may run."""
    slices: list[Took] = []
    payload = b""
    work = encoded(dump)
    ended = False

    def advance() -> None:
        nonlocal payload, ended
        try:
            work.send(None)
        except StopIteration as stop:
            payload, ended = stop.value, True

    while not ended:
        slices.append(timed(advance))
    return payload, slices
