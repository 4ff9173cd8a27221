"""What holds for the scheduler's machine whatever happens to it, and however it gets to know.

Histories of all its input events over few names, so that they meet. See `scheduling_world` for what
the cell under test has to bear, and for what is checked after every cycle.
"""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.property.scheduling_world import World
from yardmaster.core.scheduling.entities import NodeState, ReplicaState
from yardmaster.core.testing import fold
from yardmaster.schemas.events import admissions as adm
from yardmaster.schemas.events import node_events as nev
from yardmaster.schemas.events import requests as req
from yardmaster.schemas.resources import Resources

NODES = ("n1", "n2", "n3", "n4")
POOLS = ("main", "side")
PROJECTS = ("p", "q")
MOST_JOBS = 9

numbers = st.integers(0, 99)
nodes = st.sampled_from(NODES)
priorities = st.sampled_from([1, 40, 40, 42, 60])
limits_milli = st.none() | st.sampled_from([0, 1000, 3000, 6000])
seconds = st.sampled_from([0, 0, 1, 5, 29, 30, 61, 301])
resources = st.sampled_from(
    [
        Resources(gpus=1, gpu_milli=1000),
        Resources(gpus=1, gpu_milli=1000, cpu_milli=3000),
        Resources(gpus=2, gpu_milli=1000),
        Resources(gpus=3, gpu_milli=1000, memory_mib=3000),
        Resources(gpus=1, gpu_milli=500),
        Resources(gpus=1, gpu_milli=300, cpu_milli=2000),
        Resources(gpus=2, gpu_milli=500),
        Resources(cpu_milli=2000),
        Resources(gpus=9, gpu_milli=1000),
    ]
)
specs = st.fixed_dictionaries(
    {
        "priority": priorities,
        "preemptible": st.booleans() | st.just(True),
        "resources": resources,
        "replicas": st.sampled_from([1, 1, 1, 2, 3]),
        "tasks": st.sampled_from([1, 1, 2, 4]),
    },
    optional={
        "max_concurrent": st.integers(1, 2),
        "pools": st.sampled_from([("side",), ("main", "side"), ("side", "main")]),
        "node_types": st.sampled_from([("sxm",), ("sxm", "pcie"), ("none",)]),
        "max_slots_milli": st.sampled_from([1000, 4000]),
        "min_runtime_s": st.sampled_from([5, 30]),
        "time_limit_s": st.sampled_from([5, 60]),
        "max_restarts": st.integers(1, 2),
        "unschedulable": st.just(req.Unschedulable.FAIL),
        "exit_zero": st.just(req.ExitZero.FINISHED),
        "grace_s": st.sampled_from([0, 5]),
    },
)
OPEN = (ReplicaState.ALLOCATED, ReplicaState.STARTED, ReplicaState.EXITED)


class Histories(RuleBasedStateMachine):
    """Every rule is something that may happen to a cell."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.lives = 0

    @property
    def state(self) -> Any:
        return self.world.cell.state

    def _job(self, number: int) -> str | None:
        jobs = self.world.jobs
        return jobs[number % len(jobs)] if jobs else None

    # Quota's verdicts

    @initialize(gpus=st.lists(st.integers(1, 4), min_size=1, max_size=3), more=st.lists(specs))
    def some_cluster(self, gpus: list[int], more: list[dict[str, Any]]) -> None:
        for name, count in zip(NODES, gpus, strict=False):
            self._join(name, gpus=count)
        for spec in more[:4]:
            self.submit(spec, "p")
        self.cycle(0, 1000)

    @precondition(lambda self: len(self.world.jobs) < MOST_JOBS)
    @rule(spec=specs, project=st.sampled_from(PROJECTS))
    def submit(self, spec: dict[str, Any], project: str) -> None:
        name = f"job{len(self.world.jobs)}"
        self.world.jobs.append(name)
        self.world.both("submit", name, project=project, **spec)

    @rule(number=numbers, index=st.none() | st.just(0), immediate=st.booleans())
    def cancel(self, number: int, index: int | None, immediate: bool) -> None:
        if name := self._job(number):
            self.world.both("cancel", name, index, immediate=immediate)

    @rule(number=numbers, index=st.none() | st.just(0), how=st.sampled_from(["pause", "resume"]))
    def hold(self, number: int, index: int | None, how: str) -> None:
        if name := self._job(number):
            self.world.both(how, name, index)

    @rule(number=numbers, priority=priorities)
    def change_priority(self, number: int, priority: int) -> None:
        if name := self._job(number):
            self.world.both("set_priority", name, priority)

    @rule(number=numbers, weight=st.integers(1, 5))
    def change_weight(self, number: int, weight: int) -> None:
        if name := self._job(number):
            self.world.both("set_weight", name, weight)

    @rule(number=numbers, gpus=st.none() | st.integers(1, 4))
    def change_max_slots(self, number: int, gpus: int | None) -> None:
        if name := self._job(number):
            self.world.both("set_max_slots", name, gpus)

    @rule(
        pool=st.sampled_from(POOLS),
        preemption=st.booleans() | st.just(True),
        backfill=st.booleans(),
        placement=st.sampled_from(["best_fit", "worst_fit"]),
        timeout_s=st.sampled_from([30, 60]),
    )
    def configure_pool(self, pool: str, timeout_s: int, **options: Any) -> None:
        self.world.both("pool", pool, node_timeout_s=timeout_s, start_timeout_s=timeout_s, **options)

    @rule(gone=st.booleans())
    def a_pool_that_nobody_uses(self, gone: bool) -> None:
        if gone and "spare" in self.state.pools:
            self.world.both("admission", adm.PoolDeletedV1(pool="spare"))
        else:
            self.world.both("pool", "spare")

    @rule(
        project=st.sampled_from(PROJECTS),
        department=st.sampled_from(["d", "e"]),
        limit_milli=limits_milli,
        pool_milli=limits_milli,
    )
    def entitle_project(self, project: str, department: str, pool_milli: Any, **config: Any) -> None:
        quotas = {"main": req.Quota(limit_milli=pool_milli)}
        self.world.both("entitle", project, department=department, quotas=quotas, **config)

    @rule(department=st.sampled_from(["d", "e"]), main=limits_milli, side=limits_milli)
    def entitle_department(self, department: str, main: Any, side: Any) -> None:
        self.world.both("entitle_department", department, main=main, side=side)

    @rule(node=nodes, how=st.sampled_from(["cordon", "uncordon", "uncordon"]))
    def cordon(self, node: str, how: str) -> None:
        self.world.both(how, node)

    @rule(node=nodes, within_s=seconds)
    def drain(self, node: str, within_s: int) -> None:
        self.world.both("drain", node, within_s=within_s)

    # Agents

    def _join(self, name: str, **changes: Any) -> None:
        self.lives += 1
        offer = {"gpus": 4, "cpu_milli": 8000, "memory_mib": 8000, "port_last": 20_001}
        self.world.both("node", name, **{**offer, "incarnation": f"{self.lives:012x}", **changes})

    @rule(
        name=nodes,
        gpus=st.integers(0, 4),
        pool=st.sampled_from([*POOLS, "main"]),
        node_type=st.sampled_from(["any", "sxm"]),
    )
    def join(self, name: str, **offer: Any) -> None:
        self._join(name, **offer)

    @rule(name=nodes)
    def join_again(self, name: str) -> None:
        node = self.state.nodes.get(name)
        if node is not None and node.pool is not None:
            self.world.both(
                "node",
                name,
                gpus=node.gpus,
                pool=node.pool.name,
                node_type=node.node_type,
                incarnation=node.incarnation,
                cpu_milli=node.cpu_milli,
                memory_mib=node.memory_mib,
            )

    @rule(name=nodes)
    def leave(self, name: str) -> None:
        node = self.state.nodes.get(name)
        if node is not None and node.incarnation:
            self.world.claim(nev.NodeDrainedV1(node=name, incarnation=node.incarnation))

    @rule(number=numbers, all_of_them=st.booleans())
    def start(self, number: int, all_of_them: bool) -> None:
        found = self.world.replicas(ReplicaState.ALLOCATED)
        for task, replica in found if all_of_them else found[number % max(1, len(found)) :][:1]:
            about = self.world.cell._about(task, replica)
            self.world.claim(
                nev.TaskStartedV1(**about, boot_id="00000000", pid=1, process_started=1)
            )

    @rule(number=numbers, code=st.sampled_from([0, 0, 1]), done=st.booleans(), free=st.booleans())
    def exit(self, number: int, code: int, done: bool, free: bool) -> None:
        found = self.world.replicas(ReplicaState.STARTED)
        for task, replica in found[number % max(1, len(found)) :][:1]:
            about = self.world.cell._about(task, replica)
            self.world.claim(nev.TaskExitedV1(**about, exit_code=code, done=done))
            if free:
                self.world.claim(nev.SlotsReleasedV1(**about))

    @rule(number=numbers)
    def die(self, number: int) -> None:
        found = self.world.replicas(ReplicaState.STARTED)
        for task, replica in found[number % max(1, len(found)) :][:1]:
            about = self.world.cell._about(task, replica)
            self.world.claim(nev.TaskExitedV1(**about, signal=9, out_of_memory=True))
            self.world.claim(nev.SlotsReleasedV1(**about))

    @rule(number=numbers)
    def release(self, number: int) -> None:
        found = self.world.replicas(ReplicaState.ALLOCATED, ReplicaState.EXITED)
        for task, replica in found[number % max(1, len(found)) :][:1]:
            assert task.run is not None
            never = task.run.replicas[replica] == ReplicaState.ALLOCATED
            about = self.world.cell._about(task, replica)
            self.world.claim(nev.SlotsReleasedV1(**about, never_started=never))

    @rule()
    def obey(self) -> None:
        """Whatever was asked to stop does."""
        for task, replica in self.world.replicas(*OPEN):
            run = task.run
            assert run is not None
            if run.stop is None:
                continue
            about = self.world.cell._about(task, replica)
            never = run.replicas[replica] == ReplicaState.ALLOCATED
            if run.replicas[replica] == ReplicaState.STARTED:
                self.world.claim(nev.TaskExitedV1(**about, exit_code=0))
            self.world.claim(nev.SlotsReleasedV1(**about, never_started=never))

    @rule(number=numbers, step=st.integers(0, 5))
    def report(self, number: int, step: int) -> None:
        found = self.world.replicas(ReplicaState.STARTED)
        for task, replica in found[number % max(1, len(found)) :][:1]:
            about = self.world.cell._about(task, replica)
            self.world.claim(nev.CheckpointDoneV1(**about, uri=f"s3://c/{step}", step=step))
            self.world.claim(nev.TaskProgressedV1(**about, permille=step))

    @rule(name=nodes, ago_s=st.sampled_from([1, 40, 70]))
    def fall_silent(self, name: str, ago_s: int) -> None:
        if name in self.state.nodes:
            self.world.silent[name] = self.world.cell.now_ms - ago_s * 1000

    # Lies and repeats, which the twin does not hear

    @rule(number=numbers, kind=st.sampled_from(["author", "attempt", "task", "incarnation", "new"]))
    def lie(self, number: int, kind: str) -> None:
        found = self.world.replicas(*OPEN)
        if not found:
            return
        task, replica = found[number % len(found)]
        about = self.world.cell._about(task, replica)
        source = f"node/{about['node']}"
        match kind:
            case "author":
                source = "node/n9"
            case "attempt":
                about["attempt"] += 1
            case "task":
                about["task_id"] = "nobody000000.0"
            case "incarnation":
                about["incarnation"] = "f" * 12
        if kind == "new":
            ref = nev.ReplicaRef(task_id=task.id, attempt=task.attempt, replica=replica)
            self.world.cell.node("n8", running=(ref,))
            event, _ = self.world.cell._inputs.pop()
            self.world.cell.seq -= 1
            self.world.lie(event, "node/n8")
        else:
            self.world.lie(nev.SlotsReleasedV1(**about, never_started=number % 2 == 0), source)
            self.world.lie(nev.TaskExitedV1(**about, exit_code=number), source)
            self.world.lie(
                nev.TaskStartedV1(**about, boot_id="00000000", pid=1, process_started=1), source
            )
            self.world.lie(nev.CheckpointDoneV1(**about, uri="s3://x", step=number), source)
            self.world.lie(
                nev.NodeDrainedV1(node=about["node"], incarnation="f" * 12), source
            )

    @rule()
    def repeat(self) -> None:
        self.world.repeat_last()

    @rule(number=numbers)
    def repeat_claim(self, number: int) -> None:
        self.world.repeat_claim(number)

    @rule()
    def restart(self) -> None:
        self.world.cell.restart()

    # Time

    @rule(after_s=seconds, limit=st.sampled_from([1, 2, 3, 1000, 1000]))
    def cycle(self, after_s: int, limit: int) -> None:
        self.world.cycle(after_s=after_s, limit=limit)

    @rule()
    def wait_for_what_is_due(self) -> None:
        due_ms = self.world.cell.machine.due_ms(self.state)
        if due_ms is not None:
            left_ms = max(0, due_ms - self.world.cell.now_ms)
            self.world.cycle(after_s=-(-left_ms // 1000))

    @rule()
    def settle(self) -> None:
        self.world.settle()

    def teardown(self) -> None:
        if self.world.broken:
            return
        self.world.settle()
        folded = fold(self.world.twin.steps)
        assert folded.digest() == self.state.digest(), "a standby gets another state"


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=40, stateful_step_count=40)
_ = NodeState
