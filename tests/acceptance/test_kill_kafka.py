"""kill -9 of every service, of the broker and of Redis, with hundreds of tasks on real Kafka.

SAFETY: S1 to S10 over the log; at most one start of a replica of an attempt; no slot held twice.
LIVENESS: every acknowledged task ends.
"""

import os
import random
import time
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.cluster import KAFKA, REDIS, Cluster
from tests.support.promises import (
    Promise,
    Users,
    assert_resumed_where_saved,
    proof_of,
    steps,
    went_on,
    workload,
)
from tests.support.witness import assert_witness_clean
from tests.support.witness import command as witness_command
from yardmaster.client import ApiError
from yardmaster_core.scheduling.state.phases import Phase
from yardmaster_eventlog.port import Partition
from yardmaster_schemas.envelope import Event
from yardmaster_schemas.events.decisions import PreemptionRequestedV1, TaskEndedV1

#: Open tasks at each kill, at least.
TASKS = 200
#: Jobs of the lowest priority with BULK tasks each, which keep that many tasks open.
BULK_JOBS = 4
BULK = 75
BULK_TASK_S = 4
#: Tasks of a job of the highest priority: one for each slot.
URGENT = 12
#: How long the broker is away: longer than a request to it may take.
AWAY_S = 30.0

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600), pytest.mark.xdist_group("kill_kafka")]


def _seed() -> int:
    """A new seed for each run; `YARDMASTER_KILL_SEED` repeats the moments of an earlier run."""
    given = os.environ.get("YARDMASTER_KILL_SEED")
    return int(given) if given else random.SystemRandom().randrange(1 << 32)


class KillRun:
    """A cluster under load, its kills, and the check that no task was lost."""

    def __init__(self, cluster: Cluster, folder: Path, seed: int) -> None:
        self.cluster = cluster
        self.chance = random.Random(seed)
        self.moments: list[int] = []
        self.outages: list[str] = []
        self._witness = folder
        # Jobs of a higher priority preempt some of these tasks, which resume from a checkpoint.
        long = steps(folder, 4 * BULK_TASK_S)
        self._bulk = self._body(long, BULK, priority=99, stop={"grace": "10s"})
        self.bulk = [Promise(f"bulk-{number}", self._bulk) for number in range(BULK_JOBS)]
        #: Jobs that the test submits in addition to the users' jobs, to keep enough tasks open.
        self.added: list[Promise] = []
        self._read = 0
        self._counts: Counter[str] = Counter()
        self.users = Users(
            cluster, iter([*self.bulk, *islice(workload(folder, self.chance), 120)]), every_s=0.35
        )
        self.users.start()
        cluster.until(
            lambda: self.bulk[-1].task_ids and self.count_in("pending") > TASKS,
            f"{TASKS} tasks are pending",
            look_s=0.5,
        )

    def _body(self, command: list[str], tasks: int, **spec: Any) -> dict[str, Any]:
        return {
            "project": "default",
            "tasks": {"count": tasks},
            "resources": {"gpus": 1},
            "run": {"command": witness_command(self._witness, *command)},
            **spec,
        }

    def _add(self, body: dict[str, Any]) -> None:
        promise = Promise(f"added-{len(self.added)}", body)
        promise.task_ids = self.cluster.submit(key=promise.key, **body)
        promise.job_id = promise.task_ids[0].partition(".")[0]
        self.added.append(promise)

    def decided(self, kind: type[Event]) -> int:
        """The number of decisions of a type in the log."""
        found, self._read = self.cluster.events_from(Partition("decisions"), self._read)
        self._counts.update(event.TYPE for event in found)
        return self._counts[kind.TYPE]

    def open_tasks(self) -> int:
        """The number of acknowledged tasks without an end in the log."""
        acknowledged = sum(len(each.task_ids) for each in [*self.users.made, *self.added])
        return acknowledged - self.decided(TaskEndedV1)

    def stop_some(self) -> None:
        """Preempt some bulk tasks for urgent ones; return when their stop is requested."""
        before = self.decided(PreemptionRequestedV1)
        self._add(self._body(["sleep", "0.2"], URGENT, priority=1))
        self.cluster.until(
            lambda: self.decided(PreemptionRequestedV1) > before, "some tasks are preempted"
        )

    def until_resumed(self) -> None:
        """Wait until a task has resumed from its checkpoint."""

        def there() -> bool:
            if went_on(self._witness):
                return True
            # The tasks preempted so far may have had no checkpoint.
            self.stop_some()
            return False

        self.cluster.until(there, "a task resumes from its checkpoint", look_s=5.0)

    def count_in(self, phase: str) -> int:
        """The number of tasks in a phase, according to the gateway."""
        try:
            return sum(task.phase == phase for task in self.cluster.tasks().values())
        except ApiError:
            return 0

    def note(self, what: str) -> None:
        """Record the moment of a kill."""
        assert self.users.failed is None, self.users.failed
        self.moments.append(time.time_ns() // 1_000_000)
        self.outages.append(what)

    def kill(
        self, *names: str, away_s: float = 0.0, stopping: bool = False, running: bool = False
    ) -> None:
        """Kill `names` with SIGKILL, restart them after `away_s` and wait until they are ready.

        The kill comes at a random moment, during stops, or while tasks run.
        """
        while self.open_tasks() < TASKS + BULK:
            self._add(self._bulk)
        if stopping:
            self.stop_some()
        elif running:
            self.cluster.until(lambda: self.count_in("running"), "some tasks run")
        else:
            time.sleep(self.chance.uniform(0.2, 1.2))  # a kill at any moment of the work
        self.note("+".join(names))
        for name in names:
            self.cluster.kill9(name)
        time.sleep(away_s)
        for name in names:
            self.cluster.start(name, wait=False)
        for name in names:
            self.cluster.until_ready(name)

    def prove(self) -> None:
        """Wait for all ends; check that nothing was lost or repeated and that verify succeeds."""
        cluster = self.cluster
        promises = self.users.done()
        # Only now: earlier, a resuming bulk task would wait for all later jobs of the users.
        self.until_resumed()
        promises = [*promises, *self.added]
        more = [promise for promise in self.added if promise.body is self._bulk]
        for promise in [*self.bulk[BULK_JOBS // 2 :], *more]:
            try:
                cluster.client().cancel(promise.job_id, immediate=True)
            except ApiError as error:
                if error.status != 409:  # on a slow machine it may have ended by now
                    raise
        wanted = [task for promise in promises for task in promise.task_ids]
        ended = cluster.until_ended(wanted)
        found = cluster.on_log(lambda log: proof_of(log, promises, self.moments))
        cluster.prove()
        testimony = assert_witness_clean(self._witness)
        resumed = assert_resumed_where_saved(self._witness, found.allocated)
        open_tasks = [_open(phases) for phases in found.phases]
        at_kills: Counter[str] = sum(found.phases, Counter())
        print(
            f"killed: {self.outages}; {len(promises)} jobs, {len(wanted)} tasks, "
            f"{sum(p.tries for p in promises)} calls, {len(testimony.starts)} starts, {resumed} "
            f"resumed, open at the kills: {open_tasks}, in phases {dict(at_kills)}, "
            f"ends: {dict(Counter(str(e.outcome) for e in ended.values()))}"
        )
        # The kills met tasks in every phase.
        assert min(open_tasks) >= TASKS, open_tasks
        assert {"pending", "running", "stopping"} <= set(at_kills), at_kills
        assert resumed > 0


def _open(phases: Counter[str]) -> int:
    return sum(phases[phase.name.lower()] for phase in Phase if not phase.final)


def test_services_killed_one_after_another_and_two_at_once_lose_nothing(tmp_path: Path) -> None:
    seed = _seed()
    print(f"YARDMASTER_KILL_SEED={seed}")
    with Cluster(tmp_path, slots=4) as cluster:
        run = KillRun(cluster, tmp_path / "witness", seed)
        services = [name for name in cluster.names if name not in (KAFKA, REDIS)]
        for number, name in enumerate(run.chance.sample(services, len(services))):
            run.kill(name, stopping=number == 0, running=number == 1)
        for pair in (
            ("scheduler-1", "scheduler-2"),
            ("quota-1", "agent-n1"),
            ("scheduler-1", "agent-n2"),
            ("quota-2", "scheduler-2"),
            ("gateway-1", "views-1"),
        ):
            run.kill(*pair)
        run.prove()


def test_the_broker_and_redis_killed_or_away_for_half_a_minute_lose_nothing(
    tmp_path: Path,
) -> None:
    seed = _seed()
    print(f"YARDMASTER_KILL_SEED={seed}")
    with Cluster(tmp_path, slots=4) as cluster:
        run = KillRun(cluster, tmp_path / "witness", seed)
        run.kill(REDIS, stopping=True)
        run.kill(KAFKA)
        run.kill(KAFKA, "scheduler-1")
        pids = {name: cluster.pid(name) for name in cluster.names if name != KAFKA}
        running = httpx.get(f"{cluster.health_url('agent-n1')}/livez", timeout=5).status_code
        assert running == 200
        run.kill(KAFKA, away_s=AWAY_S, running=True)
        run.kill(KAFKA, REDIS)
        same = {name: cluster.pid(name) for name in pids if name not in (REDIS, "scheduler-1")}
        assert same == {name: pids[name] for name in same}, (
            "a service ended because the broker was away"
        )
        run.prove()
