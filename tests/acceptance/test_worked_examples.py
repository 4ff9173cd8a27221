"""The worked examples of the documents that the policies follow, live on `yard dev`.

Each example has a pool of its own, with its own nodes, and departments and projects of its own. All
pools are in one cluster. The organization is configured with `yard apply`, jobs are submitted and
cancelled through the REST API, and the running tasks are read with it. After each step the numbers
of running tasks must become those of the document, and once all steps are done they must stay so
while a task of another pool starts and ends. At the end every decision is recomputed.

Sources: Determined's two documents of its scheduler (the older one: `backfill: false`, and
`preemption: false`), Run:ai's documentation, and Run:ai's post on the two-level heap.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

from tests.support.yard_cli import Dev, running_dev, until
from yardmaster import Client

pytestmark = [pytest.mark.timeout(180), pytest.mark.xdist_group("worked_examples")]

GPU: Final = {"gpus": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Jobs to submit, by name, and jobs or tasks to cancel (`job`, or `job.index`). `running`: how
    many tasks of each job run then; jobs that are left out run none.
    """

    submit: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    cancel: tuple[str, ...] = ()
    running: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A pool's settings and the GPUs of its nodes, the quotas in it, and the steps."""

    pool: Mapping[str, Any]
    nodes: tuple[int, ...]
    #: By project: what it deserves, and its other settings. By department: what it deserves.
    projects: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    departments: Mapping[str, int] = field(default_factory=dict)
    steps: tuple[Step, ...]


def tasks(number: int, **keys: Any) -> dict[str, Any]:
    """A job of tasks of one GPU each."""
    return {"tasks": {"count": number}, "resources": GPU, **keys}


def whole(gpus: int, priority: int) -> dict[str, Any]:
    """A job of one task on whole nodes."""
    return {"resources": {"gpus": gpus}, "replicas": "auto", "priority": priority}


def determined(nodes: tuple[int, ...], *, backfill: bool) -> Example:
    """The seven steps of Determined's example of priorities."""
    search = tuple(f"search.{index}" for index in range(4, 20))
    return Example(
        pool={"policy": "priority", "option": {"backfill": backfill}},
        nodes=nodes,
        steps=(
            Step(submit={"search": tasks(20, priority=2)}, running={"search": 8}),
            Step(submit={"gang": whole(4, 1)}, running={"search": 4, "gang": 1}),
            Step(
                submit={"notebook": {"resources": GPU, "priority": 3, "preemptible": False}},
                running={"search": 4, "gang": 1},
            ),
            Step(cancel=search, running={"search": 4, "gang": 1}),
            Step(cancel=("search.0",), running={"search": 3, "gang": 1, "notebook": 1}),
            Step(cancel=("search", "gang"), running={"notebook": 1}),
            Step(submit={"large": whole(8, 1)}, running={"notebook": 1}),
            Step(
                submit={"small": whole(4, 2)},
                running={"notebook": 1, "small": 1} if backfill else {"notebook": 1},
            ),
            Step(cancel=("notebook",), running={"large": 1}),
            Step(cancel=("large",), running={"small": 1}),
        ),
    )


def fair_share(first: str, weights: tuple[int, int], running: tuple[int, int]) -> Example:
    """Demands of 10 and 30 on 8 GPUs."""
    jobs = {"ten": tasks(10, weight=weights[0]), "thirty": tasks(30, weight=weights[1])}
    other = "thirty" if first == "ten" else "ten"
    return Example(
        pool={"policy": "fair_share"},
        nodes=(8,),
        steps=(
            Step(submit={first: jobs[first]}, running={first: 8}),
            Step(
                submit={other: jobs[other]},
                running=dict(zip(("ten", "thirty"), running, strict=True)),
            ),
        ),
    )


def quotas_3_and_1(gpus: int, over_quota: str, running: tuple[int, int]) -> Example:
    """Two projects that deserve 3 and 1, with the over-quota weights 1 and 3."""
    names = ("a", "b")
    return Example(
        pool={"policy": "quota", "option": {"over_quota": over_quota}},
        nodes=(gpus,),
        projects={
            "a": {"deserved": 3, "over-quota-weight": 1},
            "b": {"deserved": 1, "over-quota-weight": 3},
        },
        steps=(
            Step(submit={"a": tasks(12, project="a")}, running={"a": gpus}),
            Step(
                submit={"b": tasks(12, project="b")},
                running=dict(zip(names, running, strict=True)),
            ),
        ),
    )


def interactive(settings: Mapping[str, Any], training: int) -> Example:
    """Training of a project that deserves 2 holds all that it may; then an interactive task comes
    and preempts training of its project.
    """
    return Example(
        pool={"policy": "quota"},
        nodes=(4,),
        projects={"a": {"deserved": 2, **settings}, "b": {"deserved": 2}},
        steps=(
            Step(submit={"training": tasks(8, project="a")}, running={"training": training}),
            Step(
                submit={"notebook": tasks(1, project="a", kind="interactive", priority=99)},
                running={"training": training - 1, "notebook": 1},
            ),
        ),
    )


def starved_first(bob: Mapping[str, Any], nodes: tuple[int, ...], *steps: Step) -> Example:
    """Bob's job comes first; owners are projects."""
    gpus = min(sum(nodes), bob["tasks"]["count"])
    return Example(
        pool={"policy": "starved_first", "option": {"owners": "project"}},
        nodes=nodes,
        projects={"alice": {}, "bob": {}},
        steps=(Step(submit={"bob": {**bob, "project": "bob"}}, running={"bob": gpus}), *steps),
    )


HALVES: Final = {"resources": {"gpus": 0.5}}
EXAMPLES: Final[Mapping[str, Example]] = {
    "determined-one-node": determined((8,), backfill=True),
    "determined-two-nodes": determined((4, 4), backfill=True),
    "determined-older": determined((8,), backfill=False),
    "determined-no-preemption": Example(
        pool={"policy": "priority", "option": {"preemption": False}},
        nodes=(8,),
        steps=(
            Step(submit={"search": tasks(20, priority=2)}, running={"search": 8}),
            Step(submit={"gang": whole(4, 1)}, running={"search": 8}),
            Step(cancel=("search.0", "search.1", "search.2"), running={"search": 5}),
            Step(cancel=("search.3",), running={"search": 4, "gang": 1}),
        ),
    ),
    "fair-share-ten-first": fair_share("ten", (1, 1), (2, 6)),
    "fair-share-weights": fair_share("thirty", (3, 1), (4, 4)),
    "quotas-on-12": quotas_3_and_1(12, "deserved", (9, 3)),
    "quotas-on-12-by-weight": quotas_3_and_1(12, "weight", (5, 7)),
    "quotas-on-8": quotas_3_and_1(8, "deserved", (6, 2)),
    "quotas-on-8-by-weight": quotas_3_and_1(8, "weight", (4, 4)),
    "quotas-on-4": quotas_3_and_1(4, "deserved", (3, 1)),
    "interactive": interactive({}, 4),
    "interactive-over-quota-off": interactive({"over-quota": False}, 2),
    "interactive-at-limit": interactive({"limit": 2}, 2),
    "interactive-beyond-quota": Example(
        pool={"policy": "quota"},
        nodes=(4,),
        projects={"a": {"deserved": 2}},
        steps=(
            Step(
                submit={"notebook": tasks(3, project="a", kind="interactive")},
                running={"notebook": 2},
            ),
        ),
    ),
    "department-over-projects": Example(
        pool={"policy": "quota"},
        nodes=(4,),
        departments={"x": 2, "y": 2},
        projects={
            "x1": {"deserved": 2, "department": "x"},
            "y1": {"deserved": 2, "department": "y"},
        },
        steps=(
            Step(submit={"x1": tasks(8, project="x1")}, running={"x1": 4}),
            Step(submit={"y1": tasks(8, project="y1")}, running={"x1": 2, "y1": 2}),
        ),
    ),
    "consolidation": Example(
        pool={"policy": "quota", "placement": "worst_fit"},
        nodes=(2, 2),
        projects={"a": {"deserved": 4}},
        steps=(
            Step(submit={"one": tasks(2, project="a")}, running={"one": 2}),
            Step(
                submit={"two": {"resources": {"gpus": 2}, "project": "a"}},
                running={"one": 2, "two": 1},
            ),
        ),
    ),
    "consolidation-of-fractions": Example(
        pool={"policy": "quota", "placement": "worst_fit"},
        nodes=(1, 1),
        projects={"a": {"deserved": 2}},
        steps=(
            Step(submit={"half": {**HALVES, "project": "a"}}, running={"half": 1}),
            Step(
                submit={"other": {**HALVES, "project": "a"}},
                running={"half": 1, "other": 1},
            ),
            Step(
                submit={"whole": {"resources": GPU, "project": "a"}},
                running={"half": 1, "other": 1, "whole": 1},
            ),
        ),
    ),
    "starved-first-bulk": starved_first(
        tasks(20, priority=1),
        (4,),
        Step(
            submit={"alice": tasks(20, project="alice", priority=99)},
            running={"alice": 2, "bob": 2},
        ),
    ),
    "starved-first-pictures": starved_first(
        tasks(20),
        (8, 8, 8, 8),
        Step(submit={"alice": tasks(10, project="alice")}, running={"alice": 10, "bob": 20}),
        Step(
            submit={"more": tasks(10, project="alice")},
            running={"alice": 10, "more": 6, "bob": 16},
        ),
    ),
}


@dataclass
class Live:
    """The cluster with all pools."""

    dev: Dev
    client: Client

    def running(self, pool: str) -> Counter[str]:
        """The number of running tasks of each job in a pool, by the names of the jobs."""
        return Counter(
            task.name.partition("/")[2]
            for task in self.client.all_tasks(phase="running")
            if task.name.startswith(f"{pool}/")
        )

    def until_running(self, pool: str, running: Mapping[str, int]) -> None:
        """Wait until these numbers of tasks run."""
        until(
            lambda: self.running(pool) == Counter(running),
            f"{pool}: {dict(running)} run",
            lambda: f"{dict(self.running(pool))}\n{self.dev.yard('ls', '-A').out}",
        )

    def a_task_comes_and_goes(self) -> None:
        """Have the scheduler decide something else."""
        words = ("--pool", "default", "--wait", "--timeout", "45s", "--", "true")
        self.dev.yard("submit", "-q", *words)


def organization() -> str:
    """The pools, departments and projects of all examples, as a file for `yard apply`."""
    pools: dict[str, Any] = {}
    departments: dict[str, Any] = {}
    projects: dict[str, Any] = {}
    for name, example in EXAMPLES.items():
        pools[name] = example.pool
        departments[name] = {}
        for department, deserved in example.departments.items():
            departments[f"{name}-{department}"] = {"quota": {name: {"deserved": deserved}}}
        for project, settings in example.projects.items():
            quota = {key: value for key, value in settings.items() if key != "department"}
            within = settings.get("department")
            projects[f"{name}-{project}"] = {
                "department": name if within is None else f"{name}-{within}",
                **({"quota": {name: quota}} if quota else {}),
            }
    return json.dumps({"pools": pools, "departments": departments, "projects": projects})


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """The cluster that all examples share."""
    folder = tmp_path_factory.mktemp("examples")
    nodes = [{"name": "spare", "pool": "default", "slots": 0, "cpus": 4}]
    for name, example in EXAMPLES.items():
        nodes += [
            {"name": f"{name}-{at}", "pool": name, "slots": gpus, "cpus": 64}
            for at, gpus in enumerate(example.nodes)
        ]
    # A JSON text is a YAML text.
    (folder / "cluster.yaml").write_text(json.dumps({"nodes": nodes}))
    (folder / "org.yaml").write_text(organization())
    flags = ("--cluster", str(folder / "cluster.yaml"))
    with (
        running_dev(folder, nodes=len(nodes), extra=flags) as dev,
        Client.from_env(dev.env) as client,
    ):
        dev.yard("apply", "-f", str(folder / "org.yaml"), "-q")
        yield Live(dev, client)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_ends_as_the_document_says(name: str, live: Live) -> None:
    example, jobs = EXAMPLES[name], dict[str, str]()
    for step in example.steps:
        for job, keys in step.submit.items():
            project = keys.get("project")
            body = {
                **keys,
                "project": "default" if project is None else f"{name}-{project}",
                "name": f"{name}/{job}",
                "pools": [name],
                "run": {"command": ["sleep", "1000"]},
            }
            jobs[job] = live.client.submit(body).job_id
        for each in step.cancel:
            job, dot, index = each.partition(".")
            ref = (jobs[job] if dot else jobs.pop(job)) + dot + index
            live.client.cancel(ref, immediate=True)
        live.until_running(name, step.running)
    live.a_task_comes_and_goes()
    assert live.running(name) == Counter(example.steps[-1].running)
    for job in jobs.values():
        live.client.cancel(job, immediate=True)
