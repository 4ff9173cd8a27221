"""The policies on the benchmarks of three peers, and cycles after one event.

Determined's planning pass: 1,000 nodes of 8 GPUs, full of 8,000 tasks of one GPU; 1,000 tasks of 1
to 16 GPUs are pending. Its 500 jobs, each with 16 running and two pending tasks, are 500 projects
here, because the tasks of our jobs are equal; under `fair_share` the projects are the claimants. K1
and K3 are KAI's, A7 is Armada's: see README.md. A measured pass makes all decisions on a prepared
state: it computes the digest, creates every event and rolls everything back.

In the parts "jobs", each job is a claimant: 8,000 running jobs and all pending ones, all different.
"""

from collections.abc import Iterator
from random import Random
from typing import Any, Final

from bench.cells import MACHINE, Events, admit, admitted, cell, commit, left, one_gpu, started
from bench.core import CYCLES, NO_LIMIT, cycles_after
from bench.timing import Row, Took, best, collector_off, timed
from yardmaster_core.scheduling.state.cluster import ClusterState
from yardmaster_core.scheduling.state.phases import Phase
from yardmaster_core.testing import START_MS
from yardmaster_schemas.events.admissions import PoolConfiguredV1, TaskAdmittedV1
from yardmaster_schemas.events.requests import Layout
from yardmaster_schemas.resources import Resources

#: GPUs of the pending tasks in Determined's pass, in turn.
SIZES: Final = (1, 1, 1, 2, 4, 8, 16)
GROUPS: Final = 500
#: Priorities of the groups, chosen at random.
PRIORITIES: Final = (10, 30, 42, 50, 70)
FAIR: Final[dict[str, Any]] = {"policy": "fair_share", "among": "project"}


def _row(name: str, state: ClusterState, peer_ms: float, *, share: float = 1) -> list[Row]:
    """The cost of a whole pass on a state, compared with the peer's; the aim is `share` of that."""
    MACHINE.digest(state)
    events = len(MACHINE.decide(state, limit=NO_LIMIT).decisions)
    took = best(lambda: MACHINE.decide(state, limit=NO_LIMIT))
    dump = MACHINE.dump(state)
    built = best(lambda: MACHINE.load("main", dump), runs=2)
    return [
        Row(
            f"{name}: {events:,} events",
            took.wall_s * 1000,
            "ms",
            aim=f"<= {peer_ms * share:,.0f}",
            peer=peer_ms,
            cpu=took.cpu_s * 1000,
        ),
        _ms(f"{name}: its state from a snapshot", built),
    ]


def _ms(name: str, took: Took) -> Row:
    return Row(name, took.wall_s * 1000, "ms", cpu=took.cpu_s * 1000)


# Determined's planning pass


def _full(pending: int, **policy: Any) -> ClusterState:
    """Determined's state: 8,000 tasks run on 8,000 GPUs, and `pending` tasks wait in 1,000 jobs."""
    chance = Random(1)
    priorities = [chance.choice(PRIORITIES) for _ in range(GROUPS)]
    state = cell(1_000, 8, **policy)
    admit(state, _group_tasks(priorities, range(GROUPS), 16, (1,)))
    _run_all(state)
    MACHINE.begin_cycle(state, 3, START_MS)
    jobs = range(GROUPS, GROUPS + 1_000)
    admit(state, _group_tasks(priorities, jobs, pending // 1_000, SIZES))
    return state


def _group_tasks(
    priorities: list[int], jobs: range, tasks: int, sizes: tuple[int, ...]
) -> Iterator[TaskAdmittedV1]:
    for at, number in enumerate(jobs):
        group = at % GROUPS
        gpus = sizes[at % len(sizes)]
        spec = one_gpu(
            resources=Resources(gpus=gpus, gpu_milli=1000),
            layout=Layout.WHOLE_NODES,
            priority=priorities[group],
            tasks=tasks,
        )
        yield admitted(number, spec, project=f"g{group}")


def _run_all(state: ClusterState) -> None:
    """Place all pending tasks and start them."""
    commit(state, MACHINE.decide(state, limit=NO_LIMIT))
    MACHINE.begin_cycle(state, 2, START_MS)
    for task in list(state.tasks.values()):
        assert task.run is not None
        for event, record in started(task, 0):
            MACHINE.apply(state, event, record)
    commit(state, MACHINE.decide(state, limit=NO_LIMIT))


def determined(label: str, peer_ms: float, share: float, policy: dict[str, Any]) -> list[Row]:
    """One whole pass on the prepared state."""
    name = f"Determined, 1,000 x 8 full, 1,000 pending, {label}"
    return _row(name, _full(1_000, **policy), peer_ms, share=share)


def determined_cycles(label: str, pending: int, policy: dict[str, Any]) -> list[Row]:
    """Cycles after one event on the same state with `pending` tasks.

    Measured before and after the tasks that the pass preempts have released their slots.
    """
    state = _full(pending, **policy)
    size = f"{label}, {pending:,} pending"
    commit(state, MACHINE.decide(state, limit=NO_LIMIT))
    MACHINE.digest(state)
    rows = []
    stopping = sum(pool.stopping for pool in state.pools.values())
    if stopping:
        rows += _after(state, f"{size}, {stopping:,} stop", pending, 50)
    _run_until_idle(state)
    return rows + _after(state, size, pending + 50, CYCLES)


def _run_until_idle(state: ClusterState) -> None:
    """Release the slots of stopping tasks, cycle by cycle, until there are no more decisions."""
    for _ in range(1_000):
        cycle = state.cycle + 1
        MACHINE.begin_cycle(state, cycle, START_MS + cycle)
        for task in [t for t in state.tasks.values() if t.phase is Phase.STOPPING]:
            for event, record in left(task, cycle):
                MACHINE.apply(state, event, record)
        verdict = MACHINE.decide(state, limit=NO_LIMIT)
        commit(state, verdict)
        if not verdict.decisions and not state.cycle_due:
            MACHINE.digest(state)
            return
    raise AssertionError("the scheduler still makes decisions after 1,000 cycles")


def _after(state: ClusterState, size: str, number: int, cycles: int) -> list[Row]:
    """The median of `cycles` cycles after one submission, and after one release."""
    rows = []
    with collector_off():
        first = state.cycle + 1
        submits: list[Events] = [
            [(admitted(10_000 + number + i, one_gpu(priority=90), project="g0"), "")]
            for i in range(cycles)
        ]
        rows.append(cycles_after("submit", state, submits, first, size))
        running = [t for t in state.tasks.values() if t.phase in (Phase.STARTING, Phase.RUNNING)]
        ends = [left(task, first + i) for i, task in enumerate(running[:: len(running) // cycles])]
        rows.append(cycles_after("release", state, ends[:cycles], first + cycles, size))
    return rows


# KAI's


def _kai_queues(jobs: int) -> Iterator[TaskAdmittedV1]:
    for i in range(jobs):
        yield admitted(i, one_gpu(), project=f"q{i % 4}", department=f"d{i % 2}")


def k1(nodes: int, jobs: int, peer_ms: float, share: float) -> list[Row]:
    """Jobs of one GPU in 4 queues under 2 departments, on empty nodes; all are placed."""
    state = cell(nodes, 8, **FAIR)
    admit(state, _kai_queues(jobs))
    return _row(f"K1, {nodes:,} nodes, {jobs:,} jobs", state, peer_ms, share=share)


def k1_cycles(pending: int) -> list[Row]:
    """Cycles after one event in K1's cell, when it is full and `pending` more jobs are pending."""
    state = cell(1_000, 8, **FAIR)
    admit(state, _kai_queues(8_000 + pending))
    commit(state, MACHINE.decide(state, limit=NO_LIMIT))
    _run_until_idle(state)
    return _after(state, f"K1, {pending:,} pending", 8_000 + pending, CYCLES)


def k3() -> list[Row]:
    """100 gangs of 4 on 50 nodes: 400 replicas placed."""
    state = cell(50, 8, **FAIR)
    gang = one_gpu(replicas_min=4, replicas_max=4)
    admit(state, (admitted(i, gang, project=f"q{i % 4}") for i in range(100)))
    return _row("K3, 50 nodes, 100 gangs of 4", state, 47)


# Armada's


def _steady(nodes: int, pending: int) -> ClusterState:
    """10 equal queues; every GPU of `nodes` x 32 runs a task, `pending` tasks are pending."""
    state = cell(nodes, 32, **FAIR)
    jobs = nodes * 32 + pending
    admit(state, (admitted(i, one_gpu(), project=f"q{i % 10}") for i in range(jobs)))
    commit(state, MACHINE.decide(state, limit=NO_LIMIT))
    _run_until_idle(state)
    return state


def a7(nodes: int, pending: int, peer_ms: float, share: float) -> list[Row]:
    """A round of a full cell that considers every task again and decides nothing."""
    state = _steady(nodes, pending)
    pool = state.pools["main"]
    assert pool.config is not None
    MACHINE.begin_cycle(state, state.cycle + 1, state.now_ms)
    again = PoolConfiguredV1(pool="main", revision=2, config=pool.config)
    MACHINE.apply(state, again, "")
    return _row(f"A7, {nodes:,} nodes, {pending:,} queued", state, peer_ms, share=share)


def a7_cycles(pending: int) -> list[Row]:
    """Cycles after one event in A7's cell, with `pending` tasks pending."""
    state = _steady(1_000, pending)
    return _after(state, f"A7, {pending:,} pending", 32_000 + pending, CYCLES)


# Among jobs


def among_jobs(label: str, variant: str, pending: int) -> list[Row]:
    """One whole pass in which 8,000 jobs of one GPU start and `pending` get a reason; then cycles
    after one event.
    """
    state = cell(1_000, 8, policy="fair_share", variant=variant)
    jobs = 8_000 + pending
    admit(state, (admitted(i, one_gpu(), project=f"q{i % 10}") for i in range(jobs)))
    MACHINE.digest(state)
    with collector_off():
        took = timed(lambda: MACHINE.decide(state, limit=NO_LIMIT))
    verdict = MACHINE.decide(state, limit=NO_LIMIT)
    commit(state, verdict)
    _run_until_idle(state)
    size = f"{label}, {pending:,} pending"
    whole = _ms(f"{size}: {len(verdict.decisions):,} events", took)
    return [whole, *_after(state, size, jobs, CYCLES)]
