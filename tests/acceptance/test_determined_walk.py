"""Determined's documented example of priorities, step by step, on live services over real Kafka.

Eight GPUs. (1) A search of 20 one-GPU tasks takes all of them. (2) A gang of 4 with a higher
priority preempts four search tasks, which save a checkpoint. (3) A notebook waits until the
remaining search tasks leave a GPU idle. (4) Gang and search end. (5) A gang of 8 waits for the GPU
of the notebook. (6) A gang of 4 with a lower priority is submitted: the documentation since 0.16
backfills it, the older documentation lets it wait. (7) The notebook is killed and the gang of 8
starts; with backfilling, it starts after the backfilled gang has saved and exited.

The tasks are processes. Files control when a task ends and when a stopped task exits, so that each
step is stable while the test checks it. The holders of GPUs are read from the decisions in the log.
"""

import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import Cluster
from tests.support.yard_cli import CommandResult, run_yard
from yardmaster.client import ApiError
from yardmaster_schemas.api import Phase, PoolWait
from yardmaster_schemas.events.decisions import (
    PreemptionRequestedV1,
    SlotsAllocatedV1,
    TaskEndedV1,
    TaskRequeuedV1,
)
from yardmaster_schemas.events.node_events import CheckpointDoneV1
from yardmaster_schemas.events.requests import Kind, Role

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300), pytest.mark.xdist_group("kafka")]

NEWER, OLDER = "newer", "older"

#: Records its first step and counts steps until the file `end-NAME` or `end-TASK` exists. After
#: SIGTERM it saves a checkpoint, and exits when the file `leave-NAME` exists.
_WORK = """
import json, os, pathlib, signal, sys, time
signs, name = pathlib.Path(sys.argv[1]), sys.argv[2]
stops = []
signal.signal(signal.SIGTERM, lambda *_: stops.append(True))
task, first = os.environ["YARD_TASK_ID"], os.environ.get("YARD_REPLICA", "0") == "0"
step = int(os.environ.get("YARD_CHECKPOINT_STEP") or 0)
if first:
    with open(signs / "starts", "a") as file:
        file.write(f"{task} {os.environ['YARD_ATTEMPT']} {step}\\n")
ends = [signs / f"end-{word}" for word in (name, task)]
while not stops and not any(end.exists() for end in ends):
    step += 1
    time.sleep(0.02)
if stops:
    if first:
        note = pathlib.Path(os.environ["YARD_CHECKPOINT_FILE"])
        part = note.with_suffix(".part")
        part.write_text(json.dumps({"uri": f"file:///checkpoints/{task}/{step}", "step": step}))
        part.rename(note)
    while not (signs / f"leave-{name}").exists():
        time.sleep(0.02)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two nodes of eight GPUs, each in a separate pool with separate policy options."""
    pools = {
        "agent-n1": {"YARD_AGENT_POOL": NEWER},
        "agent-n2": {"YARD_AGENT_POOL": OLDER},
    }
    folder = tmp_path_factory.mktemp("walk")
    with Cluster(folder, quotas=1, schedulers=1, views=1, agents=2, slots=8, env=pools) as cluster:
        yield cluster
        cluster.prove()


@dataclass
class Walk:
    """The example in one pool: jobs by their names in the example."""

    cluster: Cluster
    pool: str
    signs: Path
    jobs: dict[str, list[str]] = field(default_factory=dict)

    def yard(self, *words: str) -> CommandResult:
        """A command as a user types it."""
        env = {k: v for k, v in os.environ.items() if not k.startswith("YARD_")} | {
            "YARD_SERVER": self.cluster.server,
            "YARD_TOKEN": self.cluster.token(),
            "XDG_CONFIG_HOME": str(self.signs / "config"),
            "NO_COLOR": "1",
        }
        said = run_yard(words, env, self.signs)
        assert said.code == 0, f"yard {' '.join(words)}: {said}"
        return said

    def submit(self, name: str, **spec: Any) -> None:
        """Submit a job that works until its end file exists."""
        command = [sys.executable, "-S", "-c", _WORK, str(self.signs), name]
        self.jobs[name] = self.cluster.submit(
            command, name=name, pools=[self.pool], stop={"grace": "60s"}, **spec
        )

    def gang(self, name: str, gpus: int, priority: int) -> None:
        """Submit a gang of replicas of two GPUs each."""
        self.submit(name, priority=priority, replicas=gpus // 2, resources={"gpus": 2})

    def let(self, sign: str) -> None:
        """Create a file that the tasks wait for."""
        (self.signs / sign).touch()

    # --- the log --------------------------------------------------------------------------------

    @property
    def name_of(self) -> dict[str, str]:
        """The job's name, by task."""
        return {task: name for name, tasks in self.jobs.items() for task in tasks}

    def decisions(self) -> list[Any]:
        """The decisions about the tasks of the example, in order."""
        names = self.name_of
        decided = self.cluster.events("decisions")
        return [e for e in decided if getattr(e, "task_id", None) in names]

    def held(self) -> dict[str, int]:
        """Held GPUs by job; a stopping task holds its GPUs until they are released."""
        runs: dict[str, SlotsAllocatedV1] = {}
        for each in self.decisions():
            match each:
                case SlotsAllocatedV1():
                    runs[each.task_id] = each
                case TaskRequeuedV1() | TaskEndedV1():
                    runs.pop(each.task_id, None)
        total: Counter[str] = Counter()
        for run in runs.values():
            assert run.pool == self.pool
            milli = sum(place.gpu_milli * len(place.slots) for place in run.placements)
            total[self.name_of[run.task_id]] += milli // 1000
        return dict(total)

    def starts(self, name: str) -> list[SlotsAllocatedV1]:
        """The starts of a job's tasks, in order."""
        mine = set(self.jobs[name])
        return [e for e in self.decisions() if isinstance(e, SlotsAllocatedV1) if e.task_id in mine]

    def stopped(self, name: str) -> list[PreemptionRequestedV1]:
        """The preemptions for the first task of a job, in order."""
        (first, *_) = self.jobs[name]
        stops = [e for e in self.decisions() if isinstance(e, PreemptionRequestedV1)]
        return [stop for stop in stops if stop.stop.for_task == first]

    # --- waiting --------------------------------------------------------------------------------

    def until_held(self, **held: int) -> None:
        """Wait until exactly these jobs hold these numbers of GPUs."""
        seen: list[dict[str, int]] = []

        def there() -> bool:
            seen.append(self.held())
            return seen[-1] == held

        self.cluster.until(there, f"these GPUs are held: {held}", 60, look_s=0.2)

    def until_waits(self, name: str, code: str, index: int = 0, **numbers: int) -> PoolWait:
        """Wait until a task has the wait code `code`; check these of its numbers."""
        task = self.jobs[name][index]

        def there() -> PoolWait | None:
            with suppress(ApiError):  # until the views show the task
                found = self.cluster.client().explain(task).pools
                return found[0] if found and found[0].code == code else None
            return None

        wait = self.cluster.until(there, f"{name} waits: {code}", 60)
        assert {key: wait.numbers[key] for key in numbers} == numbers
        return wait

    def until_saved(self, tasks: Mapping[str, int]) -> dict[str, int]:
        """Wait until these attempts have saved a checkpoint; return their steps."""

        def there() -> dict[str, int] | None:
            saved = {
                each.task_id: each.step
                for each in self.cluster.events("node-events")
                if isinstance(each, CheckpointDoneV1)
                if tasks.get(each.task_id) == each.attempt
            }
            return saved if saved.keys() == tasks.keys() else None

        found = self.cluster.until(there, f"{len(tasks)} tasks have saved", 60, look_s=0.2)
        assert min(found.values()) > 0
        return found

    def until_working(self, name: str, attempt: int) -> None:
        """Wait until every started task of a job has a process of this attempt."""
        tasks = {e.task_id for e in self.starts(name) if e.attempt == attempt}
        self.cluster.until(
            lambda: {task for task, number, _ in self.processes() if number == attempt} >= tasks,
            f"{name} works",
            60,
        )

    def processes(self) -> list[tuple[str, int, int]]:
        """The started processes: task, attempt and first step."""
        path = self.signs / "starts"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(task, int(number), int(step)) for task, number, step in map(str.split, lines)]

    def assert_resumed(self, saved: Mapping[str, int]) -> None:
        """The second attempts of these tasks were assigned, and resumed from, the saved steps."""
        given = {
            e.task_id: e.checkpoint.step if e.checkpoint else 0
            for e in self.decisions()
            if isinstance(e, SlotsAllocatedV1) and e.attempt == 2
        }
        found = {task: step for task, attempt, step in self.processes() if attempt == 2}
        assert {task: given.get(task) for task in saved} == saved
        assert {task: found.get(task) for task in saved} == saved


def begin(cluster: Cluster, pool: str, folder: Path, *, backfill: bool) -> Walk:
    """Create an empty pool of eight GPUs."""
    walk = Walk(cluster, pool, folder)
    walk.yard("pools", "create", pool, f"option.backfill={str(backfill).lower()}")
    cluster.until(
        lambda: [n for n in cluster.client().nodes().items if n.pool == pool and n.gpus == 8],
        f"the node of {pool} is there",
    )
    return walk


def steps_1_to_4(walk: Walk) -> None:
    """The steps that both documentations describe equally; at the end only the notebook runs."""
    # 1: eight search tasks take all GPUs, in order.
    walk.submit("search", priority=2, tasks={"count": 20})
    search = walk.jobs["search"]
    walk.until_held(search=8)
    assert [e.task_id for e in walk.starts("search")] == search[:8]
    walk.until_waits("search", "insufficient_free", 8, asked_milli=1000, free_milli=0)
    walk.until_working("search", 1)

    # 2: the youngest four are preempted for the gang, save and exit before it starts.
    walk.gang("gang", 4, priority=1)
    walk.until_waits("gang", "waiting_for_victims", victims=4, asked_milli=4000)
    victims = walk.stopped("gang")
    assert {e.task_id for e in victims} == set(search[4:8])
    assert {(e.stop.code, e.stop.rule) for e in victims} == {("priority", "better_priority")}
    for each in victims:
        sides = {"priority": 2, "for_priority": 1}
        assert each.stop.numbers == {**sides, "held_milli": 1000, "asked_milli": 4000}
    saved = walk.until_saved({e.task_id: 1 for e in victims})
    assert walk.held() == {"search": 8}
    walk.let("leave-search")
    walk.until_held(search=4, gang=4)
    (gang,) = walk.starts("gang")
    assert len(gang.placements) == 2
    requeued = [e for e in walk.decisions() if isinstance(e, TaskRequeuedV1)]
    assert {(e.task_id, e.code) for e in requeued} == {(task, "priority") for task in search[4:8]}
    walk.until_working("gang", 1)

    # 3: no task of lower priority passes the pending search tasks; the last ones leave a GPU.
    walk.let("leave-notebook")
    walk.submit("notebook", priority=3, kind=Kind.INTERACTIVE, role=Role.NOTEBOOK)
    ahead = walk.until_waits("notebook", "backfill_not_allowed", priority=3, priority_ahead=2)
    assert ahead.about in search[4:]
    assert walk.held() == {"search": 4, "gang": 4}
    for task in search[:17]:
        walk.let(f"end-{task}")
    walk.until_held(search=3, gang=4, notebook=1)
    order = [e.task_id for e in walk.decisions() if isinstance(e, SlotsAllocatedV1)]
    assert order[-1] == walk.jobs["notebook"][0], "it started before the last search task"
    assert order[9:13] == search[4:8], "a preempted task keeps its place in the queue"
    walk.assert_resumed(saved)
    walk.until_working("notebook", 1)

    # 4
    walk.let("end-gang")
    walk.let("end-search")
    walk.until_held(notebook=1)
    assert {e.outcome for e in walk.decisions() if isinstance(e, TaskEndedV1)} == {"succeeded"}


def step_5(walk: Walk) -> None:
    """A gang of all GPUs waits while the notebook, which is not preemptible, holds one."""
    walk.gang("all", 8, priority=1)
    walk.until_waits(
        "all", "insufficient_free", asked_milli=8000, free_milli=7000, short_milli=1000
    )
    assert walk.held() == {"notebook": 1}
    assert walk.stopped("all") == []


def end(walk: Walk) -> None:
    """Let the last gang end; check the outcomes of all tasks."""
    walk.until_working("late", walk.starts("late")[-1].attempt)
    walk.let("end-late")
    walk.until_held()
    walk.cluster.until_phases(walk.name_of, Phase.SUCCEEDED, Phase.CANCELLED, limit_s=30)
    ended = {e.task_id: e.outcome for e in walk.decisions() if isinstance(e, TaskEndedV1)}
    (notebook,) = walk.jobs["notebook"]
    assert ended == {**dict.fromkeys(walk.name_of, "succeeded"), notebook: "cancelled"}


def test_the_seven_steps_of_the_newer_documentation_with_backfill(
    cluster: Cluster, tmp_path: Path
) -> None:
    walk = begin(cluster, NEWER, tmp_path, backfill=True)
    steps_1_to_4(walk)
    step_5(walk)

    # 6: the GPUs that the gang of 8 cannot use yet are backfilled.
    walk.gang("late", 4, priority=2)
    walk.until_held(notebook=1, late=4)
    assert [e.start.rule for e in walk.starts("late")] == ["backfill"]
    walk.until_waits("all", "insufficient_free")
    walk.until_working("late", 1)

    # 7: after the end of the notebook, the backfilled gang is preempted, with a checkpoint.
    walk.yard("cancel", *walk.jobs["notebook"])
    walk.until_waits("all", "waiting_for_victims", victims=1, asked_milli=8000)
    (stop,) = walk.stopped("all")
    (late,) = walk.jobs["late"]
    assert (stop.task_id, stop.stop.code, stop.stop.rule) == (late, "priority", "better_priority")
    saved = walk.until_saved({late: 1})
    walk.until_held(late=4)
    walk.let("leave-late")
    walk.until_held(all=8)
    walk.until_waits("late", "insufficient_free", asked_milli=4000, free_milli=0)
    walk.let("end-all")
    walk.until_held(late=4)
    walk.until_working("late", 2)
    walk.assert_resumed(saved)
    end(walk)
    assert [len(walk.starts(name)) for name in ("all", "late")] == [1, 2]


def test_the_seven_steps_of_the_older_documentation_without_backfill(
    cluster: Cluster, tmp_path: Path
) -> None:
    walk = begin(cluster, OLDER, tmp_path, backfill=False)
    steps_1_to_4(walk)
    step_5(walk)

    # 6: it waits for its turn, although three more GPUs are idle than it requests.
    walk.gang("late", 4, priority=2)
    ahead = walk.until_waits("late", "backfill_not_allowed", priority=2, priority_ahead=1)
    assert [ahead.about] == walk.jobs["all"]
    assert walk.held() == {"notebook": 1}

    # 7: the gang of 8 starts at once, and no task is preempted.
    walk.yard("cancel", *walk.jobs["notebook"])
    walk.until_held(all=8)
    assert walk.stopped("all") == []
    walk.until_waits("late", "insufficient_free", asked_milli=4000, free_milli=0)
    walk.let("end-all")
    walk.until_held(late=4)
    end(walk)
    assert [len(walk.starts(name)) for name in ("all", "late")] == [1, 1]
