"""Properties of the scheduler's state machine under every sequence of inputs and faults.

Histories of all its input events over few names, so that events conflict. See `scheduling_world`
for the faults that the cell under test must tolerate, and for the checks after every cycle.
"""

from dataclasses import fields
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.property.scheduling_world import World
from yardmaster_core.scheduling.planner.placement import PLACEMENTS
from yardmaster_core.scheduling.planner.policy import Policy
from yardmaster_core.scheduling.policies import POLICIES
from yardmaster_core.scheduling.state.cluster import ClusterState
from yardmaster_core.scheduling.state.phases import ReplicaState
from yardmaster_core.testing import fold
from yardmaster_schemas import plain
from yardmaster_schemas.events import admissions as adm
from yardmaster_schemas.events import node_events as nev
from yardmaster_schemas.events import requests as req
from yardmaster_schemas.events.node_events import ExecutorKind
from yardmaster_schemas.reasons import StartFailure
from yardmaster_schemas.resources import Resources

NODES = ("n1", "n2", "n3")
#: GPUs of nodes over which a gang may spread.
EQUAL = [[2, 2, 2], [3, 3], [2, 2, 3]]
MOST_JOBS = 20
OPEN = (ReplicaState.ALLOCATED, ReplicaState.STARTED, ReplicaState.EXITED)

LIES = ("author", "attempt", "task", "incarnation", "place", "new")

numbers = st.integers(0, 99)
nodes = st.sampled_from(NODES)
indexes = st.sampled_from([None, None, 0])
priorities = st.sampled_from([10, 40, 40, 42, 60, 60])
limits_milli = st.sampled_from([None, None, None, 0, 1000, 3000, 6000])
seconds = st.sampled_from([0, 0, 0, 0, 1, 5, 29, 61])
WHOLE = (
    Resources(gpus=1, gpu_milli=1000),
    Resources(gpus=2, gpu_milli=1000),
    Resources(gpus=1, gpu_milli=1000, cpu_milli=3000),
    Resources(gpus=3, gpu_milli=1000, memory_mib=3000),
)
SHARED = (
    Resources(gpus=1, gpu_milli=500),
    Resources(gpus=1, gpu_milli=300, cpu_milli=2000),
    Resources(gpus=2, gpu_milli=500),
    Resources(cpu_milli=2000),
)
plain_specs = st.fixed_dictionaries(
    {
        "priority": priorities,
        "preemptible": st.sampled_from([True, True, False]),
        "resources": st.sampled_from([*WHOLE, *WHOLE, *SHARED, Resources(gpus=9, gpu_milli=1000)]),
        "replicas": st.sampled_from([1, 1, 1, 1, 2, 3]),
        "tasks": st.sampled_from([1, 1, 2, 4]),
    }
)
#: A job has at most two of these; with more, hardly any job would start.
unusual = st.one_of(
    st.just({}),
    st.just({}),
    st.fixed_dictionaries({"max_concurrent": st.integers(1, 2)}),
    st.fixed_dictionaries(
        {"pools": st.sampled_from([("side",), ("main", "side"), ("side", "main")])}
    ),
    st.fixed_dictionaries({"node_types": st.sampled_from([("sxm",), ("sxm", "any"), ("none",)])}),
    st.fixed_dictionaries({"max_slots_milli": st.sampled_from([1000, 4000])}),
    st.fixed_dictionaries({"min_runtime_s": st.sampled_from([5, 30])}),
    st.fixed_dictionaries({"time_limit_s": st.sampled_from([5, 60])}),
    st.fixed_dictionaries({"max_restarts": st.integers(1, 2)}),
    st.just({"unschedulable": req.Unschedulable.FAIL}),
    st.just({"image": True}),
    st.just({"exit_zero": req.ExitZero.FINISHED}),
    st.fixed_dictionaries({"avoid_nodes": st.sampled_from([("n1",), ("n1", "n2"), ("n2", "n3")])}),
    st.builds(
        lambda gpus, cpu_milli: {
            "layout": req.Layout.WHOLE_NODES,
            "replicas": 1,
            "resources": Resources(gpus=gpus, gpu_milli=1000, cpu_milli=cpu_milli),
        },
        st.sampled_from([2, 3, 4, 4, 6, 9]),
        st.sampled_from([0, 0, 3000]),
    ),
    st.fixed_dictionaries({"grace_s": st.sampled_from([0, 5])}),
)
specs = st.builds(
    lambda *parts: {k: v for part in parts for k, v in part.items()}, plain_specs, unusual, unusual
)


#: Options that accept only some values of their type.
BOUNDED: dict[str, st.SearchStrategy[Any]] = {
    "s_milli": st.sampled_from([0, 500, 4000]),
    "p": st.sampled_from([1, 2, None]),
}


def _configured(policy: Policy) -> st.SearchStrategy[dict[str, Any]]:
    options: Any = policy.options
    chosen = st.builds(
        options, **{each.name: BOUNDED.get(each.name, ...) for each in fields(options)}
    )
    return chosen.map(lambda made: {"policy": policy.name, **plain.dump(made)})


#: A policy with any of its options; the properties hold for all of them.
policies = st.sampled_from(list(POLICIES.values())).flatmap(_configured)


class Histories(RuleBasedStateMachine):
    """Every rule is an event in the life of a cell; Hypothesis omits some rules in each run."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.lives = 0
        self.enrolled: set[str] = set()
        self.closed = False

    @property
    def state(self) -> ClusterState:
        return self.world.cell.state

    @initialize(
        gpus=st.lists(st.integers(1, 3), min_size=1, max_size=3) | st.sampled_from(EQUAL),
        options=policies,
        jobs=st.lists(specs, min_size=2, max_size=5),
    )
    def some_cluster(
        self, gpus: list[int], options: dict[str, Any], jobs: list[dict[str, Any]]
    ) -> None:
        self.world.both("pool", "side")
        self.world.both("pool", "main", **options)
        for name, count in zip(NODES, gpus, strict=False):
            self._join(name, gpus=count)
        for spec in jobs:
            self.submit(spec, "p", at_once=False)

    def _enrol(self, name: str, gpus: int) -> None:
        # All slots at first, or no task of the cell could start.
        for one, most in ({name: gpus} if self.closed else dict.fromkeys(NODES, 3)).items():
            self.enrolled.add(one)
            self.world.both("enroll", one, gpus=most)
        self.closed = True

    # Quota's verdicts

    @rule(spec=specs, project=st.sampled_from(["p", "p", "q"]), at_once=st.booleans())
    def submit(self, spec: dict[str, Any], project: str, at_once: bool) -> None:
        if len(self.world.jobs) >= MOST_JOBS:
            return
        name = f"job{chr(ord('a') + len(self.world.jobs))}"
        self.world.jobs.append(name)
        self.world.both("submit", name, project=project, **spec)
        if at_once:
            self.world.cycle()

    @rule(
        resources=st.sampled_from(WHOLE),
        replicas=st.sampled_from([1, 1, 2]),
        priority=st.integers(1, 9),
        low=st.integers(0, 4),
    )
    def submit_something_urgent(
        self, resources: Resources, replicas: int, priority: int, low: int
    ) -> None:
        """Tasks run, more tasks wait, and a job arrives that may preempt them."""
        if self.world.start():
            self.world.cycle()
        urgent = {"resources": resources, "replicas": replicas, "priority": priority}
        self.submit(urgent, "p", at_once=True)
        if low:
            self.submit({"priority": 60 + low, "tasks": low}, "q", at_once=True)

    @rule(
        number=numbers,
        index=indexes,
        how=st.sampled_from(["cancel", "kill", "erase", "pause", "pause", "resume", "resume"]),
    )
    def stop_or_resume(self, number: int, index: int | None, how: str) -> None:
        jobs = self.world.jobs
        if not jobs:
            return
        name = jobs[number % len(jobs)]
        if how == "erase":
            self.world.both("erase", name)
        elif how == "kill":
            self.world.both("cancel", name, index, immediate=True)
        else:
            self.world.both(how, name, index)

    @rule(
        number=numbers,
        change=st.one_of(
            st.tuples(st.just("set_priority"), priorities),
            st.tuples(st.just("set_priority"), priorities),
            st.tuples(st.just("set_weight"), st.integers(1, 5)),
            st.tuples(st.just("set_max_slots"), st.none() | st.integers(1, 4)),
        ),
    )
    def change_job(self, number: int, change: tuple[str, Any]) -> None:
        jobs = self.world.jobs
        if jobs:
            self.world.both(change[0], jobs[number % len(jobs)], change[1])

    @rule(
        pool=st.sampled_from(["main", "side"]),
        options=policies,
        placement=st.sampled_from(sorted(PLACEMENTS)),
        seed=st.integers(0, 2),
        unequal_gangs=st.booleans(),
        gpuless_per_node=st.sampled_from([None, None, 0, 1, 2]),
        timeout_s=st.sampled_from([30, 60]),
    )
    def configure_pool(
        self, pool: str, timeout_s: int, options: dict[str, Any], **settings: Any
    ) -> None:
        timeouts = {"node_timeout_s": timeout_s, "start_timeout_s": timeout_s}
        self.world.both("pool", pool, **timeouts, **settings, **options)

    @rule(
        name=st.sampled_from(["p", "q", "department d", "department e", "spare pool"]),
        department=st.sampled_from(["d", "e"]),
        limit_milli=limits_milli,
        main=limits_milli,
    )
    def entitle(self, name: str, department: str, limit_milli: Any, main: Any) -> None:
        if name == "spare pool":
            pool = self.state.pools.get("spare")
            if pool is not None and pool.config is not None:
                self.world.both("admission", adm.PoolDeletedV1(pool="spare"))
            else:
                self.world.both("pool", "spare")
        elif name.startswith("department"):
            self.world.both("entitle_department", name[-1], main=main, side=limit_milli)
        else:
            config = {"quotas": {"main": req.Quota(limit_milli=main)}, "limit_milli": limit_milli}
            self.world.both("entitle", name, department=department, **config)

    # Nodes

    def _join(self, name: str, **changes: Any) -> None:
        self.lives += 1
        offer = {"gpus": 3, "cpu_milli": 8000, "memory_mib": 8000, "port_last": 20_001}
        self.world.both("node", name, **{**offer, "incarnation": f"{self.lives:012x}", **changes})

    @rule(
        name=nodes,
        gpus=st.integers(0, 3),
        pool=st.sampled_from(["main", "main", "side"]),
        node_type=st.sampled_from(["any", "sxm"]),
        executors=st.sampled_from([tuple(ExecutorKind), (ExecutorKind.PROCESS,)]),
    )
    def join(self, name: str, **offer: Any) -> None:
        self._join(name, **offer)

    @rule(
        name=nodes,
        how=st.sampled_from(
            [
                *("again", "leave", "cordon", "uncordon", "uncordon", "drain", "silent"),
                *("enrol", "enrol", "revoke", "disable", "disable", "empty", "enable"),
            ]
        ),
        for_s=st.sampled_from([1, 40, 70]),
    )
    def change_node(self, name: str, how: str, for_s: int) -> None:
        node = self.state.nodes.get(name)
        if how in ("cordon", "uncordon"):
            self.world.both(how, name)
        elif how == "drain":
            self.world.both("drain", name, within_s=for_s)
        elif how in ("disable", "empty", "enable"):
            slots = {1: (0,), 40: (1, 2), 70: (2, 7)}[for_s] if how != "enable" else ()
            self.world.both("disable", name, *slots, stop=how == "empty")
        elif how == "enrol":
            self._enrol(name, gpus={1: 1, 40: 2, 70: 3}[for_s])
        elif how == "revoke":
            if name in self.enrolled:
                self.enrolled.discard(name)
                self.world.both("revoke", name)
        elif node is None or node.pool_name is None:
            return
        elif how == "silent":
            self.world.silent[name] = self.world.cell.now_ms - for_s * 1000
        elif how == "leave":
            self.world.claim(nev.NodeDrainedV1(node=name, incarnation=node.incarnation))
        else:
            self.world.both(
                "node",
                name,
                **{"gpus": node.gpus, "pool": node.pool_name, "node_type": node.node_type},
                **{"cpu_milli": node.cpu_milli, "memory_mib": node.memory_mib},
                incarnation=node.incarnation,
            )

    # Agents

    def _one_of(self, number: int, *states: ReplicaState) -> list[tuple[Any, dict[str, Any]]]:
        found = self.world.replicas(*states)
        some = found[number % len(found) :][:1] if found else []
        return [(task, self.world.cell._about(task, replica)) for task, replica in some]

    @rule(number=numbers, how_many=st.sampled_from(["all", "all", "one"]))
    def start(self, number: int, how_many: str) -> None:
        self.world.start(number if how_many == "one" else None)
        self.world.cycle()

    @rule(
        number=numbers,
        how=st.sampled_from([{"exit_code": 0}, {"exit_code": 0}, {"exit_code": 3}, {"signal": 9}]),
        done=st.booleans(),
        free=st.sampled_from([True, True, False]),
    )
    def exit(self, number: int, how: dict[str, Any], done: bool, free: bool) -> None:
        for _, about in self._one_of(number, ReplicaState.STARTED):
            oom = "signal" in how and done
            self.world.claim(nev.TaskExitedV1(**about, **how, done=done, out_of_memory=oom))
            if free:
                self.world.claim(nev.SlotsReleasedV1(**about))

    @rule(number=numbers, failure=st.sampled_from([None, *[StartFailure.OTHER] * 3, *StartFailure]))
    def release(self, number: int, failure: StartFailure | None) -> None:
        for task, about in self._one_of(number, ReplicaState.ALLOCATED, ReplicaState.EXITED):
            never = task.run.replicas[about["replica"]] == ReplicaState.ALLOCATED
            why = failure if never else None
            self.world.claim(nev.SlotsReleasedV1(**about, never_started=never, failure=why))

    @rule()
    def obey(self) -> None:
        """End every replica that has a stop request."""
        self.world.obey()
        self.world.cycle()

    @rule(number=numbers, step=st.integers(0, 5))
    def report(self, number: int, step: int) -> None:
        for _, about in self._one_of(number, ReplicaState.STARTED):
            self.world.claim(nev.CheckpointDoneV1(**about, uri=f"s3://c/{step}", step=step))
            self.world.claim(nev.TaskProgressedV1(**about, permille=step))

    # Faults that only the cell under test receives

    @rule(number=numbers, kind=st.sampled_from(LIES))
    def lie(self, number: int, kind: str) -> None:
        for task, about in self._one_of(number, *OPEN):
            source = "node/n9" if kind == "author" else f"node/{about['node']}"
            if kind == "new":
                self.world.join_with_tasks("n8", task)
                return
            if kind == "attempt":
                about["attempt"] += 1
            elif kind == "task":
                about["task_id"] = "nobody000000.0"
            elif kind == "place":
                others = [n for n in self.state.nodes.values() if n.name != about["node"]]
                if not others:
                    return
                other = others[number % len(others)]
                about |= {"node": other.name, "incarnation": other.incarnation or "f" * 12}
                source = f"node/{other.name}"
                if any(p.node == other.name for p in task.run.placements):
                    return
            elif kind == "incarnation":
                about["incarnation"] = "f" * 12
            started: dict[str, Any] = {"boot_id": "00000000", "pid": 1, "process_started": 1}
            self.world.lie(nev.SlotsReleasedV1(**about, never_started=number % 2 == 0), source)
            self.world.lie(nev.TaskExitedV1(**about, exit_code=number), source)
            self.world.lie(nev.TaskStartedV1(**about, **started), source)
            self.world.lie(nev.CheckpointDoneV1(**about, uri="s3://x", step=number), source)
            left = nev.NodeDrainedV1(node=about["node"], incarnation="f" * 12)
            self.world.lie(left, source)

    @rule(number=numbers, what=st.sampled_from(["last", "claim"]))
    def repeat(self, number: int, what: str) -> None:
        if what == "last":
            self.world.repeat_last()
        else:
            self.world.repeat_claim(number)

    @rule()
    def restart(self) -> None:
        before = self.state.digest()
        self.world.cell.restart()
        assert self.state.digest() == before, "a snapshot differs from its state"

    # Time

    @rule(after_s=seconds, limit=st.sampled_from([1, 1, 2, 3, 1000]))
    def cycle(self, after_s: int, limit: int) -> None:
        self.world.cycle(after_s=after_s, limit=limit)

    @rule()
    def wait_for_what_is_due(self) -> None:
        due_ms = self.world.cell.machine.due_ms(self.state)
        if due_ms is not None:
            left_ms = max(0, due_ms - self.world.cell.now_ms)
            self.world.cycle(after_s=-(-left_ms // 1000))

    @rule()
    def run_until_idle(self) -> None:
        self.world.run_until_idle()

    def teardown(self) -> None:
        if self.world.broken:
            return
        self.world.come_to_rest()
        folded = fold(self.world.twin.steps)
        assert folded.digest() == self.state.digest(), "a standby has another state"


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=100, stateful_step_count=50)
