"""The core alone, without log and encoding. A1, A2, A4, A6 repeat Armada's own benchmarks, in GPUs.

A1, A2: place jobs of one GPU as one batch on empty nodes (A2: nodes with one free GPU), make all
decisions, roll them back. A4: build the index of nodes from nodes full of running tasks. A6: equal
queues on an empty cluster, one round until it is full. Peer figures: Go, 2 cores.
"""

from bench.cells import (
    MACHINE,
    Events,
    admit,
    admitted,
    cell,
    commit,
    job_id,
    left,
    one_gpu,
    started,
)
from bench.timing import Row, Took, best, collector_off, quantile, shortest, timed
from yardmaster_core.scheduling.planner.draft import Draft
from yardmaster_core.scheduling.planner.plan import plan
from yardmaster_core.scheduling.policies import REGISTRY
from yardmaster_core.scheduling.state import snapshot
from yardmaster_core.scheduling.state.cluster import ClusterState
from yardmaster_core.testing import START_MS
from yardmaster_schemas.events.admissions import CancelAcceptedV1
from yardmaster_schemas.resources import Resources

NO_LIMIT = 10**9
#: Tasks that go through one step of their lives together, as in a cell under load.
WAVE = 1_000
#: Number of cycles after one event, whose median is reported.
CYCLES = 200


def placed_and_rolled_back(state: ClusterState) -> int:
    """Decide which tasks start, create all events, roll back; return the number of events."""
    with Draft(state, NO_LIMIT) as draft:
        plan(draft, REGISTRY)
        return len(draft.decisions)


def a1(nodes: int, jobs: int) -> Took:
    """`jobs` one-GPU jobs placed on `nodes` empty nodes of 32 GPUs, and rolled back."""
    state = cell(nodes, 32)
    admit(state, (admitted(i, one_gpu()) for i in range(jobs)))
    assert placed_and_rolled_back(state) == jobs
    return best(lambda: placed_and_rolled_back(state))


def a2(nodes: int) -> Took:
    """The same with one GPU free on each of `nodes` nodes of 32, and as many jobs."""
    state = cell(nodes, 32)
    full = one_gpu(resources=Resources(gpus=31, gpu_milli=1000))
    admit(state, (admitted(i, full) for i in range(nodes)))
    commit(state, MACHINE.decide(state, limit=NO_LIMIT))
    MACHINE.begin_cycle(state, 2, START_MS)
    admit(state, (admitted(nodes + i, one_gpu()) for i in range(nodes)))
    assert placed_and_rolled_back(state) == nodes
    return best(lambda: placed_and_rolled_back(state))


def a4(nodes: int) -> Took:
    """Rebuild the capacities and indexes of `nodes` nodes with 32 one-GPU tasks each."""
    state = cell(nodes, 32)
    admit(state, (admitted(i, one_gpu()) for i in range(32 * nodes)))
    commit(state, MACHINE.decide(state, limit=NO_LIMIT))
    return best(lambda: snapshot.rebuild_capacities(state))


def a6(nodes: int, queues: int, jobs: int) -> Took:
    """One round over `jobs` queued in `queues` projects until `nodes` x 32 GPUs are full."""
    state = cell(nodes, 32)
    admit(state, (admitted(i, one_gpu(), project=f"q{i % queues}") for i in range(jobs)))
    assert placed_and_rolled_back(state) == nodes * 32 + queues
    return best(lambda: placed_and_rolled_back(state), runs=2)


def peer(name: str, took: Took, peer_ms: float) -> Row:
    """A row that compares a figure with the peer's."""
    return Row(
        name,
        took.wall_s * 1000,
        "ms",
        aim=f"<= {peer_ms:,.0f}",
        peer=peer_ms,
        cpu=took.cpu_s * 1000,
    )


# apply


def apply_rate(tasks: int = 20_000) -> list[Row]:
    """Events per second of `apply` over whole lives of tasks, six kinds of event in equal number.

    Events come in waves of 1,000 tasks, as in cycles under load: 1,000 tasks are admitted, placed,
    start, exit, release and end, then the next 1,000.
    """
    events = [event for first in range(0, tasks, WAVE) for event in _lives(first)]
    took = []
    for _ in range(3):
        state = cell(1000, 32)
        with collector_off():
            took.append(timed(lambda state=state: _apply(state, events)))  # type: ignore[misc]
    fastest = shortest(took)
    name = f"apply, whole lives of {tasks:,} tasks"
    count = len(events)
    return [Row(name, count / fastest.wall_s, "events/s", ">= 250,000", cpu=count / fastest.cpu_s)]


def _apply(state: ClusterState, events: Events) -> None:
    for event, record in events:
        MACHINE.apply(state, event, record)


def _lives(first: int) -> Events:
    """All events of WAVE tasks, from job number `first` on."""
    state = cell(1000, 32)
    admissions: Events = [
        (admitted(i, one_gpu()), f"quota/main.000000000000/1/{i}")
        for i in range(first, first + WAVE)
    ]
    _apply(state, admissions)
    verdict = MACHINE.decide(state, limit=NO_LIMIT)
    commit(state, verdict)
    MACHINE.begin_cycle(state, 2, START_MS + 1000)
    reports = [report for i in range(first, first + WAVE) for report in _leaves(state, i)]
    _apply(state, reports)
    ends = MACHINE.decide(state, limit=NO_LIMIT)
    starts: Events = [(decision.event, "") for decision in verdict.decisions]
    return [*admissions, *starts, *reports, *((decision.event, "") for decision in ends.decisions)]


def _leaves(state: ClusterState, number: int) -> Events:
    """The start, exit (code 0) and release of the first task of job `number`."""
    task = state.task(f"{job_id(number)}.0")
    return started(task, 3 * number) + left(task, 3 * number + 1)


# decide


def cycles(nodes: int, pending: int) -> list[Row]:
    """Decisions per second of a whole pass, and the cost of one cycle after one event.

    The tasks were admitted in earlier cycles, so their part of the state's digest is cached.
    """
    state = cell(nodes, 8)
    places = nodes * 8
    size = f"{nodes:,} x 8, {pending:,} pending"
    admit(state, (admitted(i, one_gpu()) for i in range(pending)))
    MACHINE.digest(state)
    count = len(MACHINE.decide(state, limit=NO_LIMIT).decisions)
    took = best(lambda: MACHINE.decide(state, limit=NO_LIMIT))
    rows = [
        Row(
            f"decide, {size}",
            count / took.wall_s,
            "decisions/s",
            ">= 20,000",
            cpu=count / took.cpu_s,
        )
    ]
    commit(state, MACHINE.decide(state, limit=NO_LIMIT))
    MACHINE.digest(state)
    with collector_off():
        if pending > places:
            releases = [_leaves(state, i) for i in range(CYCLES)]
            rows.append(cycles_after("release", state, releases, 2, size))
        submits: list[Events] = [
            [(admitted(pending + i, one_gpu()), f"quota/main.000000000000/1/{pending + i}")]
            for i in range(CYCLES)
        ]
        rows.append(cycles_after("submit", state, submits, 302, size))
        cancels: list[Events] = [
            [(CancelAcceptedV1(job_id=job_id(pending - 1 - i)), "")] for i in range(CYCLES)
        ]
        rows.append(cycles_after("cancel", state, cancels, 602, size))
    return rows


def cycles_after(what: str, state: ClusterState, steps: list[Events], first: int, size: str) -> Row:
    """Median cost of a cycle after each of `steps`; `first` is the number of the first cycle."""
    costs = [
        timed(lambda i=i, events=events: _one_cycle(state, first + i, events))  # type: ignore[misc]
        for i, events in enumerate(steps)
    ]
    return Row(
        f"cycle after one {what}, {size}",
        quantile([took.wall_s for took in costs], 0.5) * 1e6,
        "us",
        aim="flat",
        cpu=quantile([took.cpu_s for took in costs], 0.5) * 1e6,
    )


def _one_cycle(state: ClusterState, cycle: int, events: Events) -> None:
    """Begin, apply, decide, apply the decisions, digest, end."""
    MACHINE.begin_cycle(state, cycle, START_MS + cycle)
    _apply(state, events)
    verdict = MACHINE.decide(state, limit=1000)
    for decision in verdict.decisions:
        MACHINE.apply(state, decision.event, "")
    assert MACHINE.digest(state) == verdict.state_digest
    MACHINE.end_cycle(state, complete=verdict.complete)
