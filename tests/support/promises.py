"""Users that retry whatever happens to the server, their jobs, and the proof of what they got.

`Users` submit through the API with idempotency keys and retry with the same key until they get an
answer. `proof_of` checks that the log keeps each promise made to them.
"""

import asyncio
import random
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import httpx

from tests.support import witness
from tests.support.audit import audit_log
from yardmaster_core.scheduling.machine import SchedulerMachine
from yardmaster_eventlog.codec import decode
from yardmaster_eventlog.port import EventLog, Partition
from yardmaster_eventlog.sqlite.log import SqliteLog
from yardmaster_runtime.clock import SystemClock
from yardmaster_runtime.errors import BeforeFirstCycle
from yardmaster_runtime.replay import rebuild
from yardmaster_schemas.envelope import Event
from yardmaster_schemas.events.admissions import TaskAdmittedV1, TaskRejectedV1
from yardmaster_schemas.events.decisions import SlotsAllocatedV1, TaskEndedV1
from yardmaster_schemas.events.requests import TaskSubmittedV1

#: Longest wait for a submission to be acknowledged, or for all tasks to end.
DEADLINE_S = 120.0


async def events(log: EventLog, topic: str) -> list[Event]:
    """All events of a topic."""
    found: list[Event] = []
    while stored := await log.read(Partition(topic), len(found)):
        found += [decode(each.record).data for each in stored]
    return found


def all_ended(log: Path, wanted: set[str]) -> bool:
    """Whether the log has an end for each of these tasks."""

    async def look() -> bool:
        opened = await SqliteLog.open(log, SystemClock(), create=False)
        try:
            decided = await events(opened, "decisions")
        finally:
            await opened.close()
        return wanted <= {e.task_id for e in decided if isinstance(e, TaskEndedV1)}

    return asyncio.run(look())


@dataclass
class Promise:
    """A submission and its answer."""

    key: str
    body: dict[str, Any]
    #: Cancelled once it was acknowledged.
    cancel: bool = False
    job_id: str = ""
    task_ids: list[str] = field(default_factory=list)
    tries: int = 0


class Served(Protocol):
    """A server that `Users` call."""

    @property
    def server(self) -> str:
        """The URL at which it serves."""

    def token(self) -> str:
        """The bearer token of callers."""


class Users(threading.Thread):
    """Submit one job after another until `done` is called, whatever happens to the server."""

    def __init__(self, dev: Served, jobs: Iterator[Promise], every_s: float) -> None:
        super().__init__(daemon=True)
        self.dev = dev
        self.jobs = jobs
        self.every_s = every_s
        self.made: list[Promise] = []
        self.failed: BaseException | None = None
        self.enough = threading.Event()

    def run(self) -> None:
        try:
            with httpx.Client(trust_env=False, timeout=10.0) as client:
                while not self.enough.wait(self.every_s):
                    promise = next(self.jobs, None)
                    if promise is None:
                        return
                    self.made.append(promise)
                    self._submit(client, promise)
                    if promise.cancel:
                        self._post(client, f"/v1/jobs/{promise.job_id}/cancel", promise, {})
                    if len(self.made) % 5 == 0:
                        # Simulate a lost answer: send the same submission again.
                        self._submit(client, self.made[len(self.made) // 2])
        except BaseException as error:  # noqa: BLE001 the test's own thread raises it
            self.failed = error

    def done(self) -> list[Promise]:
        """Stop after the current submission; return all acknowledged jobs."""
        self.enough.set()
        self.join(DEADLINE_S)
        if self.failed is not None:
            raise self.failed
        assert not self.is_alive(), f"a job was not acknowledged: {self.made[-1]}"
        return self.made

    def _submit(self, client: httpx.Client, promise: Promise) -> None:
        found = self._post(client, "/v1/jobs", promise, promise.body)
        assert promise.job_id in ("", found["job_id"]), f"one key, two jobs: {promise} {found}"
        promise.job_id, promise.task_ids = found["job_id"], found["task_ids"]

    def _post(
        self, client: httpx.Client, path: str, promise: Promise, body: dict[str, Any]
    ) -> dict[str, Any]:
        """Retry with the same key until there is an answer."""
        deadline = time.monotonic() + DEADLINE_S
        said = ""
        while time.monotonic() < deadline:
            promise.tries += 1
            try:
                answer = client.post(
                    self.dev.server + path,
                    json=body,
                    headers={
                        "Authorization": f"Bearer {self.dev.token()}",
                        "Idempotency-Key": promise.key + path[8:],
                    },
                )
            except httpx.TransportError as error:
                said = repr(error)
            else:
                if answer.status_code == 202:
                    found: dict[str, Any] = answer.json()
                    return found
                said = f"{answer.status_code} {answer.text}"
                # The task may have ended before its cancel arrived; a view may lag behind its job.
                if path != "/v1/jobs" and answer.status_code == 409:
                    return {}
                late = path != "/v1/jobs" and answer.status_code == 404
                assert late or answer.status_code in (429, 503, 504), f"{promise}: {said}"
            time.sleep(0.03)
        raise AssertionError(f"never acknowledged: {promise}: {said}")


#: Counts to $1, one step per quarter of a second (the polling interval of an agent), writes a
#: checkpoint per step, resumes from the last one; stops slowly, so that kills hit stopping tasks.
_STEPS = """
at=${YARD_CHECKPOINT_STEP:-0}
echo "$YARD_TASK_ID $YARD_ATTEMPT $at" >> "$2"
trap 'trap "" TERM; sleep 1; exit 0' TERM
while [ "$at" -lt "$1" ]; do
  sleep 0.25
  at=$((at + 1))
  printf '{"uri": "file:///checkpoints/%s/%s", "step": %s}' \
    "$YARD_TASK_ID" "$at" "$at" > "$YARD_CHECKPOINT_FILE.part"
  mv "$YARD_CHECKPOINT_FILE.part" "$YARD_CHECKPOINT_FILE"
done
"""


def steps(folder: Path, count: int) -> list[str]:
    """A command of `count` steps, each a quarter of a second, that resumes from its checkpoint."""
    return ["sh", "-c", _STEPS, "steps", str(count), str(folder / "resumed")]


def went_on(folder: Path) -> int:
    """The number of started commands of `steps` that resumed from a checkpoint."""
    noted = folder / "resumed"
    lines = noted.read_text().splitlines() if noted.exists() else []
    return sum(int(line.split()[2]) > 0 for line in lines)


def workload(folder: Path, chance: random.Random) -> Iterator[Promise]:
    """Yield jobs of every kind, with a witness in `folder`, without end."""

    def sleep(seconds: float) -> list[str]:
        return ["sleep", f"{seconds:.2f}"]

    number = 0
    while True:
        number += 1
        body: dict[str, Any] = {"project": "default", "priority": 50, "resources": {"gpus": 1}}
        what = sleep(0.3)
        cancel = False
        # The first of each kind come early, the rest are random.
        match number if number <= 8 else chance.choice([1, 1, 1, 2, 3, 3, 3, 4, 5, 6, 7, 8, 9, 10]):
            case 1 | 2:
                what = steps(folder, chance.randrange(6, 16))
                body |= {"priority": 90, "stop": {"grace": "10s"}}
            case 3:
                body |= {"replicas": 2, "priority": 5, "resources": {"gpus": 2}}
                what = sleep(0.8)
            case 4:
                body |= {"tasks": {"count": 5, "max_concurrent": 3}}
            case 5:
                body |= {"replicas": 2, "stop": {"grace": "10s"}}
                what = sleep(1.0)
            case 6:
                what, cancel = sleep(60), True
            case 7:
                body |= {"resources": {"gpus": 0.5}, "tasks": {"count": 3}}
            case 8:
                what = ["sh", "-c", "exit 3"]
                body |= {"max_restarts": 1}
            case 9:
                body |= {"priority": 1, "replicas": 3}
            case _:
                what = sleep(chance.uniform(0.0, 1.0))
        body["run"] = {"command": witness.command(folder, *what)}
        yield Promise(f"key-{number}", body, cancel)


@dataclass(frozen=True, slots=True)
class Proof:
    """The records of the log about acknowledged submissions."""

    #: How many tasks were in each phase, at each requested moment.
    phases: list[Counter[str]]
    decided: list[Event]
    allocated: dict[tuple[str, int], SlotsAllocatedV1]


async def proof_of(log: EventLog, promises: Iterable[Promise], moments: Iterable[int]) -> Proof:
    """Check that the log keeps each promise; return the events and the phases at `moments` (ms)."""
    requests = await events(log, "requests")
    verdicts = await events(log, "admissions")
    decided = await events(log, "decisions")
    findings = await audit_log(log)
    submitted = Counter(e.job_id for e in requests if isinstance(e, TaskSubmittedV1))
    admitted = Counter(e.job_id for e in verdicts if isinstance(e, TaskAdmittedV1))
    ended = Counter(e.task_id for e in decided if isinstance(e, TaskEndedV1))
    for promise in promises:
        assert submitted[promise.job_id] >= 1, f"acknowledged and lost: {promise}"
        assert admitted[promise.job_id] == 1, f"not judged exactly once: {promise}"
        for task in promise.task_ids:
            assert ended[task] == 1, f"{task} ended {ended[task]} times: {promise}"
    assert not [e for e in verdicts if isinstance(e, TaskRejectedV1)]
    assert findings == (), "\n".join(map(str, findings[:20]))
    allocated = {(e.task_id, e.attempt): e for e in decided if isinstance(e, SlotsAllocatedV1)}
    return Proof([await _phases(log, at_ms) for at_ms in moments], decided, allocated)


async def _phases(log: EventLog, at_ms: int) -> Counter[str]:
    try:
        then = await rebuild.state_at(log, SchedulerMachine(), "main", time_ms=at_ms)
    except BeforeFirstCycle:
        # The first process may be killed before its first cycle: there was no task yet.
        return Counter()
    return Counter(task.phase.name.lower() for task in then.state.tasks.values())


def assert_resumed_where_saved(folder: Path, allocated: dict[Any, SlotsAllocatedV1]) -> int:
    """Check that each task found its allocated checkpoint; return how many resumed from one."""
    for line in (folder / "resumed").read_text().splitlines():
        task, attempt, step = line.split()
        given = allocated[task, int(attempt)].checkpoint
        assert int(step) == (given.step if given is not None else 0), line
    return went_on(folder)
