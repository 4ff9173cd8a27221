"""Teams share a cluster under `quota`, and users under `starved_first`: live, and by commands.

Each test runs in the embedded mode, and with services on real Kafka.

The tests type what a platform team and its users type, and read the outcome with the command line
and through the REST API. All tests of a mode share one cluster; each has a pool of its own, or
empties it. At the end every decision is recomputed, and the views on Kafka are compared with the
log.

The tasks are shell programs. A file ends them, and a file lets a stopped task exit, so that each
step is stable while a test checks it.
"""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.cluster import Cluster
from tests.support.yard_cli import CommandResult, run_yard, running_dev, until
from yardmaster import Client
from yardmaster_schemas.api import Attempt, Task

pytestmark = pytest.mark.timeout(180)

#: The nodes of each pool, and their GPUs.
NODES: Final = {
    **{"n1": ("default", 4), "n2": ("default", 4), "n3": ("default", 4)},
    **{"n4": ("pair", 2), "n5": ("pair", 2)},
    **{"n6": ("four", 4), "n7": ("hall", 4)},
}
#: Works until the file `end` exists. When it is asked to stop, it saves a checkpoint with the next
#: step, and exits when the file `leave` exists.
WORK: Final = """
finish() {
    note="$YARD_CHECKPOINT_FILE" step=$((${YARD_CHECKPOINT_STEP:-0} + 1))
    echo "{\\"uri\\": \\"file:///saved/$YARD_TASK_ID/$step\\", \\"step\\": $step}" > "$note.part"
    mv "$note.part" "$note"
    until [ -e "$0/leave" ]; do sleep 0.1; done
    exit 0
}
trap finish TERM
echo "starts at step ${YARD_CHECKPOINT_STEP:-0}"
until [ -e "$0/end" ]; do sleep 0.2 & wait $!; done
"""


@dataclass
class Jobs:
    """Jobs of one test that end when the test allows it."""

    site: "Site"
    folder: Path

    def submit(self, project: str, pool: str, *options: str, user: str | None = None) -> str:
        """Submit a job with `yard submit`, as its operator or as a user; return its id."""
        words = ["submit", "-p", project, "--pool", pool, "--grace", "60s", *options]
        return self.site.yard(*words, "--", *self._command, user=user).out.strip()

    def submit_file(self, project: str, pool: str, **keys: Any) -> str:
        """Submit a job file with `yard submit`; return the job's id."""
        file = self.folder / "job.yaml"
        # A JSON text is a YAML text.
        file.write_text(json.dumps(self._body(project, pool, keys)))
        return self.site.yard("submit", str(file)).out.strip()

    def post(self, project: str, pool: str, **keys: Any) -> str:
        """Submit a job through the REST API; return its id."""
        return self.site.client.submit(self._body(project, pool, keys)).job_id

    @property
    def _command(self) -> list[str]:
        return ["sh", "-c", WORK, str(self.folder)]

    def _body(self, project: str, pool: str, keys: Mapping[str, Any]) -> dict[str, Any]:
        run = {"command": self._command}
        return {"project": project, "pools": [pool], "run": run, "stop": {"grace": "60s"}, **keys}

    def let_leave(self) -> None:
        """Let tasks that were asked to stop exit."""
        (self.folder / "leave").touch()

    def end(self) -> None:
        """Let all tasks end."""
        self.let_leave()
        (self.folder / "end").touch()


@dataclass
class Site:
    """A running cluster, and the terminal and the client of its operator."""

    folder: Path
    env: Mapping[str, str]
    client: Client
    verify: Callable[[], None]
    made: list[Jobs] = field(default_factory=list)
    #: The token of each user.
    tokens: dict[str, str] = field(default_factory=dict)

    def yard(self, *words: str, code: int | None = 0, user: str | None = None) -> CommandResult:
        """Run a command as its operator types it, or a user."""
        token = {} if user is None else {"YARD_TOKEN": self.tokens[user]}
        said = run_yard(words, {**self.env, **token}, self.folder)
        assert code is None or said.code == code, f"yard {' '.join(words)}: {said}"
        return said

    def add_user(self, user: str) -> None:
        """Add a user who may submit jobs in the project `default`."""
        added = self.yard("users", "add", user, "--role", "user", "-p", "default", "-q")
        self.tokens[user] = added.out.strip()
        until(lambda: self.yard("whoami", user=user, code=None).code == 0, f"{user} is known")

    def jobs(self) -> Jobs:
        """The jobs of one test."""
        folder = self.folder / f"jobs-{len(self.made)}"
        folder.mkdir()
        self.made.append(Jobs(self, folder))
        return self.made[-1]

    # --- REST -----------------------------------------------------------------------------------

    def tasks(self, job: str) -> list[Task]:
        """The tasks of a job, by index."""
        found = [task for task in self.client.all_tasks() if task.job_id == job]
        return sorted(found, key=lambda task: task.index)

    def phases(self, job: str) -> Counter[str]:
        """The number of a job's tasks in each phase."""
        return Counter(str(task.phase) for task in self.tasks(job))

    def until_phases(self, job: str, **counts: int) -> None:
        """Wait until these numbers of tasks of a job are in these phases, and none in others."""
        until(
            lambda: self.phases(job) == Counter(counts),
            f"{job}: {counts}",
            lambda: f"{self.phases(job)}\n{self.listed()}",
        )

    def attempts(self, job: str) -> list[Attempt]:
        """All attempts of a job's tasks."""
        return [one for task in self.tasks(job) for one in self.client.attempts(task.task_id).items]

    def stops(self, job: str) -> list[Attempt]:
        """The attempts of a job's tasks that were asked to stop."""
        return [attempt for attempt in self.attempts(job) if attempt.stop is not None]

    # --- the command line -----------------------------------------------------------------------

    def listed(self, *options: str) -> str:
        """The active tasks as a table."""
        return self.yard("ls", "-A", "--phase", "active", *options).out

    def runs(self, pool: str) -> Counter[str]:
        """The GPUs of the running tasks of each project of a pool, as `yard ls` lists them."""
        words = ("ls", "-A", "--pool", pool, "--phase", "running", "-o", "json")
        found: Counter[str] = Counter()
        for task in self.yard(*words).json["items"]:
            found[task["project"]] += task["gpu_milli"]
        return Counter({project: milli // 1000 for project, milli in found.items()})

    def runs_of(self, pool: str) -> Counter[str]:
        """The number of running tasks of each user of a pool, as `yard ls` lists them."""
        words = ("ls", "-A", "--pool", pool, "--phase", "running", "-o", "json")
        return Counter(task["user"] for task in self.yard(*words).json["items"])

    def used(self, pool: str) -> dict[str, str]:
        """The used GPUs of each node of a pool, as `yard nodes` lists them."""
        lines = self.yard("nodes", "ls", "--pool", pool, "--columns", "name,used").lines
        return dict(line.split() for line in lines[1:])

    def shares(self, pool: str) -> dict[str, tuple[str, str]]:
        """The deserved GPUs and the share of each queue of a pool, as `yard shares` lists them."""
        words = ("shares", "--pool", pool, "--columns", "queue,deserved,share", "--no-headers")
        rows = [line.split() for line in self.yard(*words).lines]
        return {name: (deserved, share) for name, deserved, share in rows}

    def why(self, task: str) -> str:
        """The output of `yard explain`, with single spaces."""
        return " ".join(self.yard("explain", task).out.split())

    def until_printed(self, task: str, line: str) -> None:
        """Wait until `yard logs` shows this line of a task's last attempt."""
        until(
            lambda: line in self.yard("logs", task).lines,
            f"{task} prints: {line}",
            lambda: self.yard("logs", task).out,
        )

    def until_started(self, job: str) -> None:
        """Wait until the programs of all running tasks of a job can save a checkpoint."""
        for task in self.tasks(job):
            if str(task.phase) == "running":
                self._until_starts(task.task_id)

    def _until_starts(self, task: str) -> None:
        until(lambda: "starts at step" in self.yard("logs", task).out, f"{task} starts")

    def waits(self, task: str, code: str) -> str:
        """Wait until a task waits with this code; return `yard explain`."""
        until(
            lambda: (wait := self.client.task(task).wait) is not None and wait.code == code,
            f"{task} waits: {code}",
            lambda: self.yard("explain", task).out,
        )
        return self.why(task)


@contextmanager
def embedded(folder: Path) -> Iterator[Site]:
    """`yard dev` with all pools."""
    file = folder / "cluster.yaml"
    nodes = [
        f"- {{name: {name}, pool: {pool}, slots: {slots}, cpus: 64}}"
        for name, (pool, slots) in NODES.items()
    ]
    file.write_text("\n".join(["nodes:", *nodes, ""]))
    flags = ("--cluster", str(file))
    # `running_dev` verifies the log after the end too.
    with (
        running_dev(folder, nodes=len(NODES), extra=flags) as dev,
        Client.from_env(dev.env) as client,
    ):
        yield Site(folder, dev.env, client, lambda: verified(dev.yard("replay", "verify").out))


@contextmanager
def on_kafka(folder: Path) -> Iterator[Site]:
    """Every service as a process, on a real broker and Redis."""
    env: dict[str, Mapping[str, str]] = {
        f"agent-{name}": {
            **{"YARD_AGENT_POOL": pool, "YARD_AGENT_GPUS": str(slots)},
            "YARD_AGENT_CPU_MILLI": "64000",
        }
        for name, (pool, slots) in NODES.items()
    }
    with Cluster(
        folder, quotas=1, schedulers=1, views=1, agents=len(NODES), slots=4, env=env
    ) as cluster:
        user = {k: v for k, v in os.environ.items() if not k.startswith("YARD_")} | {
            "YARD_SERVER": cluster.server,
            "YARD_TOKEN": cluster.token(),
            "XDG_CONFIG_HOME": str(folder / "config"),
            "NO_COLOR": "1",
        }

        def verify() -> None:
            verified(cluster.yard("replay", "verify"))
            verified(
                cluster.yard("replay", "verify", "--views", "--redis", cluster.fleet.redis.url)
            )

        yield Site(folder, user, cluster.client(), verify)
        cluster.prove()


def verified(said: str) -> None:
    """Fail unless `yard replay verify` found that all is as it must be."""
    assert said.splitlines()[-1].startswith("ok: "), said


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(embedded, id="dev", marks=pytest.mark.xdist_group("share_dev")),
        pytest.param(
            on_kafka, id="kafka", marks=[pytest.mark.kafka, pytest.mark.xdist_group("share_kafka")]
        ),
    ],
)
def site(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    """The cluster that all tests of a mode share."""
    with request.param(tmp_path_factory.mktemp("share")) as site:
        for pool, *keys in (("four",), ("hall",), ("pair", "placement=worst_fit")):
            site.yard("pools", "create", pool, "policy=quota", *keys)
        for user in ("alice", "bob"):
            site.add_user(user)
        yield site
        site.verify()


@pytest.fixture
def jobs(site: Site) -> Iterator[Jobs]:
    """The jobs of one test; after it none is left."""
    jobs = site.jobs()
    yield jobs
    jobs.end()
    site.yard("cancel", "-A", "--phase", "active", "--now", "--yes", "-q")
    until(lambda: not site.listed("-o", "name"), "no task is left", site.listed)


def test_quotas_3_and_1_divide_12_gpus_into_9_and_3_and_weights_low_and_high_into_5_and_7(
    site: Site, jobs: Jobs
) -> None:
    org = site.folder / "org.yaml"
    org.write_text(
        "{departments: {lab: }, projects: {alpha: {department: lab}, beta: {department: lab}}}\n"
    )
    site.yard("apply", "-f", str(org))
    alpha = jobs.submit("alpha", "default", "--gpus", "1", "--tasks", "12")
    site.yard("wait", alpha, "--for", "running", "--timeout", "45s")
    site.until_started(alpha)
    beta = jobs.submit("beta", "default", "--gpus", "1", "--tasks", "12")
    site.until_phases(beta, pending=12)
    jobs.let_leave()

    # The day on which the quotas take effect: beta gets what it deserves and its part of the rest.
    org.write_text(
        "pools: {default: {policy: quota}}\n"
        "departments: {lab: {}}\n"
        "projects:\n"
        "  alpha: {department: lab, quota: {default: {deserved: 3}}}\n"
        "  beta: {department: lab, quota: {default: {deserved: 1}}}\n"
    )
    assert "pool default policy priority quota" in " ".join(
        site.yard("diff", "-f", str(org), code=1).out.split()
    )
    site.yard("apply", "-f", str(org))
    site.until_phases(beta, running=3, pending=9)
    site.until_phases(alpha, running=9, pending=3)
    assert site.runs("default") == {"alpha": 9, "beta": 3}
    assert site.used("default") == {"n1": "4.0", "n2": "4.0", "n3": "4.0"}
    assert site.shares("default") == {"lab": ("4", "12"), "alpha": ("3", "9"), "beta": ("1", "3")}
    fair = {queue.name: queue.fair_share.gpu_milli for queue in site.client.shares("default").items}
    assert fair == {"lab": 12_000, "alpha": 9000, "beta": 3000}
    stopped = site.stops(alpha)
    assert [one.stop.rule for one in stopped if one.stop] == ["over_fair_share"] * 3
    assert site.stops(beta) == []
    why = site.why(stopped[0].task_id)
    assert "insufficient_free 1 gpus, free 0, short 1, fair share 9, used 9, deserved 3" in why
    assert "rule over_fair_share (alpha), for " + beta in why
    assert "fair share 9, used 10, for fair share 3, for used 2, deserved 3" in why
    assert "Started rule over_quota: fair share 3, used 2, deserved 1" in site.why(f"{beta}.0")

    # Low and High divide the 8 GPUs that are left 1 to 3: 2 and 6.
    site.yard("quotas", "set", "alpha", "--pool", "default", "--over-quota-weight", "low")
    site.yard("quotas", "set", "beta", "--pool", "default", "--over-quota-weight", "high")
    site.yard("pools", "set", "default", "option.over_quota=weight")
    site.until_phases(beta, running=7, pending=5)
    site.until_phases(alpha, running=5, pending=7)
    assert site.runs("default") == {"alpha": 5, "beta": 7}
    assert len(site.stops(alpha)) == 7
    assert site.stops(beta) == []

    # Nothing is lost: stopped tasks continue from their checkpoints.
    again = {one.task_id for one in site.stops(alpha)}
    jobs.end()
    site.yard("wait", alpha, beta, "--timeout", "60s", "-q")
    for task in site.tasks(alpha):
        step = 1 if task.task_id in again else 0
        site.until_printed(task.task_id, f"starts at step {step}")
        assert task.attempt == 1 + step


def test_a_project_at_0_of_deserved_2_gets_both_after_one_grace_period(
    site: Site, jobs: Jobs
) -> None:
    site.yard("departments", "create", "house")
    site.yard("projects", "create", "guest", "department=house", "quota.four.deserved=2")
    site.yard("projects", "create", "owner", "department=house")
    site.yard("quotas", "set", "owner", "--pool", "four", "--gpu", "2")
    guest = jobs.submit("guest", "four", "--gpus", "1", "--tasks", "4")
    site.yard("wait", guest, "--for", "running", "--timeout", "45s")
    owner = jobs.submit("owner", "four", "--gpus", "1", "--tasks", "2")

    # Both tasks wait at once for the same grace period, each for a reserved GPU.
    site.until_phases(guest, running=2, stopping=2)
    first, second = (one for one in site.stops(guest) if one.stop is not None)
    assert first.stop is not None
    assert second.stop is not None
    assert first.stop.requested_at == second.stop.requested_at
    assert first.stop.deadline_at == second.stop.deadline_at
    waits = [site.waits(f"{owner}.{index}", "waiting_for_victims") for index in range(2)]
    assert sorted(why.split("Waits for ")[1].split(",")[0] for why in waits) == [
        "slot 2 of n6",
        "slot 3 of n6",
    ]
    slots = site.yard("nodes", "slots", "n6", "--columns", "slot,reserved", "--no-headers").out
    assert slots.split() == ["0", "-", "1", "-", "2", f"{owner}.1", "3", f"{owner}.0"]
    assert site.runs("four") == {"guest": 2}

    jobs.let_leave()
    site.yard("wait", owner, "--for", "running", "--timeout", "45s")
    site.until_phases(guest, running=2, pending=2)
    assert site.runs("four") == {"owner": 2, "guest": 2}
    assert {one.stop.for_task for one in site.stops(guest) if one.stop} == {
        f"{owner}.0",
        f"{owner}.1",
    }
    assert "Started rule within_deserved" in site.why(f"{owner}.0")
    assert [task.attempt for task in site.tasks(guest)] == [1, 1, 1, 1]


def test_a_task_of_2_gpus_starts_after_one_move_and_all_three_run(site: Site, jobs: Jobs) -> None:
    site.yard("projects", "create", "duo", "quota.pair.deserved=4")
    ones = jobs.submit("duo", "pair", "--gpus", "1", "--tasks", "2")
    site.yard("wait", ones, "--for", "running", "--timeout", "45s")
    site.until_started(ones)
    assert site.used("pair") == {"n4": "1.0", "n5": "1.0"}
    two = jobs.submit("duo", "pair", "--gpus", "2")
    until(lambda: site.stops(ones), "a task is moved")

    # The moved task has its next place before it stops.
    (moved,) = site.stops(ones)
    stays = f"{ones}.{1 - int(moved.task_id[-1])}"
    (target,) = site.client.task(stays).nodes
    assert moved.stop is not None
    assert (moved.stop.rule, moved.stop.for_task) == ("moved", f"{two}.0")
    reserved = site.client.task(moved.task_id).reserved
    assert reserved is not None
    assert [one.node for one in reserved.slots] == [target]

    jobs.let_leave()
    site.yard("wait", ones, two, "--for", "running", "--timeout", "45s")
    site.until_phases(ones, running=2)
    assert site.used("pair") == {"n4": "2.0", "n5": "2.0"}
    assert site.client.task(moved.task_id).nodes == [target]
    assert [(one.task_id, one.attempt) for one in site.stops(ones)] == [(moved.task_id, 1)]
    assert site.stops(two) == []
    site.until_printed(moved.task_id, "starts at step 1")
    why = site.why(moved.task_id)
    assert f"Last stop quota, rule moved, for {two}.0" in why


def test_two_halves_share_a_gpu_and_a_third_half_runs_on_another(site: Site, jobs: Jobs) -> None:
    site.yard("projects", "create", "halves", "quota.hall.deserved=2")
    three = {"count": 3}
    job = jobs.submit_file("halves", "hall", resources={"gpus": 0.5}, tasks=three)
    site.yard("wait", job, "--for", "running", "--timeout", "45s")
    slots = site.yard("nodes", "slots", "n7", "--columns", "used,tasks", "--no-headers").lines
    assert [line.split() for line in slots] == [
        ["1.0", f"{job}.0,{job}.1"],
        ["0.5", f"{job}.2"],
        ["0.0", "-"],
        ["0.0", "-"],
    ]


def test_an_interactive_task_at_deserved_waits_and_training_does_not(
    site: Site, jobs: Jobs
) -> None:
    site.yard("projects", "create", "desk", "quota.hall.deserved=1")
    options = ("--gpus", "1", "--kind", "interactive")
    first = jobs.submit("desk", "hall", *options)
    site.yard("wait", first, "--for", "running", "--timeout", "45s")
    more = jobs.submit("desk", "hall", *options)
    large = jobs.submit("desk", "hall", "--gpus", "2", "--kind", "interactive")
    why = site.waits(f"{more}.0", "at_deserved")
    assert "hall at_deserved 1 desk deserved 1, used 1" in why
    assert "Starts when tasks of the same owner that cannot be preempted end" in why
    why = site.waits(f"{large}.0", "exceeds_deserved")
    assert "hall never: exceeds_deserved 2 desk deserved 1" in why

    training = jobs.submit("desk", "hall", "--gpus", "1", "--tasks", "2")
    site.yard("wait", training, "--for", "running", "--timeout", "45s")
    assert "Started rule over_quota: " in site.why(f"{training}.0")
    assert site.runs("hall") == {"desk": 3}
    assert site.used("hall") == {"n7": "3.0"}
    # One GPU is free, and both wait although.
    queue = site.client.queue("hall").items
    assert [(one.position, one.first.job_id) for one in queue] == [(1, more), (2, large)]
    listed = site.yard("ls", "--queue", "hall", "--columns", "position,id,reason").lines
    assert [line.split() for line in listed[1:]] == [
        ["1", f"{more}.0", "at_deserved"],
        ["2", f"{large}.0", "never:", "exceeds_deserved"],
    ]

    # The next one starts when the first one has ended.
    site.yard("cancel", first, "--now")
    site.yard("wait", more, "--for", "running", "--timeout", "45s")
    assert site.runs("hall") == {"desk": 3}


def test_a_department_that_deserves_2_keeps_2_for_two_projects_that_deserve_2_each(
    site: Site, jobs: Jobs
) -> None:
    for department, projects in (("left", ("l1", "l2")), ("right", ("r1",))):
        site.yard("departments", "create", department)
        site.yard("quotas", "set", department, "--department", "--pool", "four", "--gpu", "2")
        for project in projects:
            site.yard("projects", "create", project, f"department={department}")
            site.yard("quotas", "set", project, "--pool", "four", "--gpu", "2")
    jobs.let_leave()
    of: dict[str, str] = {}
    for project, runs in (("l1", 4), ("l2", 2), ("r1", 2)):
        of[project] = jobs.post(project, "four", resources={"gpus": 1}, tasks={"count": 4})
        site.until_phases(of[project], running=runs, **({"pending": 4 - runs} if runs < 4 else {}))

    # Each project alone is within what it deserves; the department is not.
    until(lambda: len(site.stops(of["l1"]) + site.stops(of["l2"])) == 4, "four tasks are stopped")
    until(lambda: site.runs("four").total() == 4, "four tasks run", site.listed)
    runs_in = site.runs("four")
    assert (runs_in["l1"] + runs_in["l2"], runs_in["r1"]) == (2, 2)
    words = ("departments", "ls", "--pool", "four", "--columns", "name,deserved,used,pending")
    rows = {line.split()[0]: line.split()[1:] for line in site.yard(*words).lines}
    assert rows["left"] == ["2", "2", "6"]
    assert rows["right"] == ["2", "2", "2"]
    assert site.stops(of["r1"]) == []


def test_a_live_pool_switched_to_quota_and_back_loses_nothing(site: Site, jobs: Jobs) -> None:
    site.yard("pools", "set", "hall", "policy=priority")
    site.yard("projects", "create", "old", "quota.hall.deserved=1")
    site.yard("projects", "create", "new", "quota.hall.deserved=3")
    old = jobs.submit("old", "hall", "--gpus", "1", "--tasks", "5")
    site.until_phases(old, running=4, pending=1)
    site.until_started(old)
    new = jobs.submit("new", "hall", "--gpus", "1", "--tasks", "5")
    site.waits(f"{new}.0", "insufficient_free")

    # Quotas that were stored before take effect with the switch.
    site.yard("pools", "set", "hall", "policy=quota")
    site.until_phases(old, running=1, stopping=3, pending=1)
    waiting = [site.waits(f"{new}.{index}", "waiting_for_victims") for index in range(3)]
    assert all("Waits for slot" in why for why in waiting)

    # The way back, while tasks stop and others have reservations: the earlier job gets all GPUs.
    site.yard("pools", "set", "hall", "policy=priority")
    jobs.let_leave()
    site.until_phases(old, running=4, pending=1)
    site.until_phases(new, pending=5)
    shown = site.yard("pools", "show", "hall", "-o", "json").json["config"]["policy"]
    assert shown["name"] == "priority"
    stops = Counter(one.task_id for job in (old, new) for one in site.stops(job))
    jobs.end()
    site.yard("wait", old, new, "--timeout", "60s", "-q")
    for task in (*site.tasks(old), *site.tasks(new)):
        assert task.attempt == 1 + stops[task.task_id]
        # A later task that is stopped as it starts has saved nothing.
        step = 0 if task.checkpoint is None else task.checkpoint.step
        assert step == stops[task.task_id] or (step == 0 and task.job_id == new)
        site.until_printed(task.task_id, f"starts at step {step}")
    site.yard("pools", "set", "hall", "policy=quota")


@pytest.mark.parametrize(
    "bobs",
    [
        pytest.param(("--tasks", "4"), id="bob_holds_all"),
        pytest.param(("--tasks", "54", "--priority", "1"), id="bob_asks_for_more_and_first"),
    ],
)
def test_under_starved_first_alice_gets_2_of_the_4_gpus_that_bob_holds(
    bobs: tuple[str, ...], site: Site, jobs: Jobs
) -> None:
    site.yard("pools", "set", "four", "policy=starved_first")
    jobs.let_leave()
    bob = jobs.submit("default", "four", "--gpus", "1", *bobs, user="bob")
    until(lambda: site.runs_of("four") == {"bob": 4}, "bob holds all GPUs", site.listed)
    alice = jobs.submit("default", "four", "--gpus", "1", "--tasks", "2", user="alice")
    site.until_phases(alice, running=2)
    until(lambda: site.runs_of("four") == {"bob": 2, "alice": 2}, "each has 2", site.listed)

    # Another job ends, so the scheduler had a cycle to decide more, and did not.
    site.yard("submit", "--pool", "four", "--wait", "--timeout", "45s", "--", "true")
    assert site.runs_of("four") == {"bob": 2, "alice": 2}
    assert site.used("four") == {"n6": "4.0"}
    stops = site.stops(bob)
    assert [(one.stop.code, one.stop.rule) for one in stops if one.stop] == [
        ("starved_first", "above_equal_part")
    ] * 2
    assert {one.stop.for_task for one in stops if one.stop} == {f"{alice}.0", f"{alice}.1"}
    assert site.stops(alice) == []
    why = site.why(stops[0].task_id)
    assert "Last stop starved_first, rule above_equal_part, for " in why
    assert "Started rule within_equal_part" in site.why(f"{alice}.0")
    site.yard("pools", "set", "four", "policy=quota")
