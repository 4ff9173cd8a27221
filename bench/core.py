"""The core alone: no log, no bytes. Work A1, A2, A4, A6 is what Armada's own benchmarks do, in
GPUs.

A1, A2: jobs of one GPU placed as one batch on empty (full but for one GPU) nodes, all decisions
made, then rolled back. A4: the index of nodes built from nodes that are full of running tasks. A6:
equal queues on an empty cluster, one round until it is full. Peer figures: Go on a 2-core machine.
"""

import gc
import time
from collections.abc import Callable

from bench.cells import MACHINE, admit, admitted, cell, commit, job_id, one_gpu
from bench.timing import Row, best_ms
from yardmaster.core.scheduling import snapshot
from yardmaster.core.scheduling.draft import Draft
from yardmaster.core.scheduling.plan import plan
from yardmaster.core.scheduling.state import ClusterState
from yardmaster.core.testing import START_MS
from yardmaster.schemas.envelope import Event
from yardmaster.schemas.events import node_events as nev
from yardmaster.schemas.events.admissions import CancelAcceptedV1
from yardmaster.schemas.resources import Resources

NO_LIMIT = 10**9


def placed_and_rolled_back(state: ClusterState) -> int:
    """Decide who starts, make all events, take everything back; returns how many."""
    with Draft(state, NO_LIMIT) as draft:
        plan(draft)
        return len(draft.decisions)


def a1(nodes: int, jobs: int) -> float:
    """Milliseconds to place `jobs` one-GPU jobs on `nodes` empty nodes of 32 GPUs, and roll back."""
    state = cell(nodes, 32)
    admit(state, (admitted(i, one_gpu()) for i in range(jobs)))
    assert placed_and_rolled_back(state) == jobs
    return best_ms(lambda: placed_and_rolled_back(state))


def a2(nodes: int) -> float:
    """The same with one GPU free on each of `nodes` nodes of 32, and as many jobs."""
    state = cell(nodes, 32)
    full = one_gpu(resources=Resources(gpus=31, gpu_milli=1000))
    admit(state, (admitted(i, full) for i in range(nodes)))
    commit(state, MACHINE.decide(state, limit=NO_LIMIT))
    MACHINE.begin(state, 2, START_MS)
    admit(state, (admitted(nodes + i, one_gpu()) for i in range(nodes)))
    assert placed_and_rolled_back(state) == nodes
    return best_ms(lambda: placed_and_rolled_back(state))


def a4(nodes: int) -> float:
    """Milliseconds to build the index of `nodes` nodes from what runs on them: 32 one-GPU tasks
    each.
    """
    state = cell(nodes, 32)
    admit(state, (admitted(i, one_gpu()) for i in range(32 * nodes)))
    commit(state, MACHINE.decide(state, limit=NO_LIMIT))
    return best_ms(lambda: snapshot.rebuild_rooms(state))


def a6(nodes: int, queues: int, jobs: int) -> float:
    """Milliseconds of one round over `jobs` queued in `queues` projects until `nodes` x 32 GPUs are
    full.
    """
    state = cell(nodes, 32)
    admit(state, (admitted(i, one_gpu(), project=f"q{i % queues}") for i in range(jobs)))
    assert placed_and_rolled_back(state) == nodes * 32 + queues
    return best_ms(lambda: placed_and_rolled_back(state), runs=2)


def apply_rate() -> Row:
    """Events a second of `apply`, over whole lives of tasks (all six kinds of event in equal
    number).
    """
    tasks = 20_000
    events: list[tuple[Event, str]] = []
    source = cell(1000, 32)
    base = cell(1000, 32)
    events += [(admitted(i, one_gpu()), f"quota/main.000000000000/1/{i}") for i in range(tasks)]
    for event, record in events:
        MACHINE.apply(source, event, record)
    verdict = MACHINE.decide(source, limit=NO_LIMIT)
    events += [(d.event, "") for d in verdict.decisions]
    commit(source, verdict)
    MACHINE.begin(source, 2, START_MS + 1000)
    reports: list[tuple[Event, str]] = []
    for i in range(tasks):
        task = source.task(f"{job_id(i)}.0")
        assert task.run is not None
        placement = task.run.placements[0]
        about = {
            "task_id": task.id,
            "attempt": 1,
            "replica": 0,
            "node": placement.node,
            "incarnation": placement.incarnation,
        }
        record = f"node/{placement.node}/1/{i}"
        reports += [
            (nev.TaskStartedV1(**about, boot_id="0" * 8, pid=i, process_started=1), record),
            (nev.TaskExitedV1(**about, exit_code=0), record),
            (nev.SlotsReleasedV1(**about), record),
        ]
    for event, record in reports:
        MACHINE.apply(source, event, record)
    ends = MACHINE.decide(source, limit=NO_LIMIT)
    events += reports + [(d.event, "") for d in ends.decisions]
    gc.collect()
    gc.freeze()
    gc.disable()
    start = time.perf_counter()
    for event, record in events:
        MACHINE.apply(base, event, record)
    took = time.perf_counter() - start
    gc.enable()
    gc.unfreeze()
    return Row(
        "apply, whole lives of 20,000 tasks", len(events) / took, "events/s", aim=">= 250,000"
    )


def cycles(nodes: int, pending: int) -> list[Row]:
    """Decisions a second of a whole pass, and the cost of one cycle after one event."""
    state = cell(nodes, 8)
    places = nodes * 8
    admit(state, (admitted(i, one_gpu()) for i in range(pending)))
    gc.collect()
    gc.freeze()
    gc.disable()
    start = time.perf_counter()
    verdict = MACHINE.decide(state, limit=NO_LIMIT)
    took = time.perf_counter() - start
    commit(state, verdict)
    size = f"{nodes:,} nodes x 8, {pending:,} pending"
    rows = [Row(f"decide, {size}", len(verdict.decisions) / took, "decisions/s", aim=">= 20,000")]
    MACHINE.digest(state)
    if pending > places:
        costs = []
        for i in range(20):
            task = state.task(f"{job_id(i)}.0")
            assert task.run is not None
            placement = task.run.placements[0]
            costs.append(_one_cycle(state, i + 2, _leaves(task.id, placement.node, i)))
        rows.append(
            Row(f"cycle after one release, {size}", sorted(costs)[10] * 1000, "us", aim="flat")
        )
    costs = []
    for i in range(20):
        events = [(admitted(pending + i, one_gpu()), f"quota/main.000000000000/1/{pending + i}")]
        costs.append(_one_cycle(state, i + 30, events))
    rows.append(Row(f"cycle after one submit, {size}", sorted(costs)[10] * 1000, "us", aim="flat"))
    costs = []
    for i in range(20):
        cancel: list[tuple[Event, str]] = [(CancelAcceptedV1(job_id=job_id(pending - 1 - i)), "")]
        costs.append(_one_cycle(state, i + 60, cancel))
    rows.append(Row(f"cycle after one cancel, {size}", sorted(costs)[10] * 1000, "us", aim="flat"))
    gc.enable()
    gc.unfreeze()
    return rows


def _leaves(task_id: str, node: str, i: int) -> list[tuple[Event, str]]:
    about = {
        "task_id": task_id,
        "attempt": 1,
        "replica": 0,
        "node": node,
        "incarnation": "0" * 12,
    }
    return [
        (
            nev.TaskStartedV1(**about, boot_id="0" * 8, pid=1, process_started=1),
            f"node/{node}/1/{3 * i}",
        ),
        (nev.TaskExitedV1(**about, exit_code=0), f"node/{node}/1/{3 * i + 1}"),
        (nev.SlotsReleasedV1(**about), f"node/{node}/1/{3 * i + 2}"),
    ]


def _one_cycle(state: ClusterState, cycle: int, events: list[tuple[Event, str]]) -> float:
    """Milliseconds of begin, apply, decide, apply, digest, settle."""
    start = time.perf_counter()
    MACHINE.begin(state, cycle, START_MS + cycle)
    for event, record in events:
        MACHINE.apply(state, event, record)
    verdict = MACHINE.decide(state, limit=1000)
    for decision in verdict.decisions:
        MACHINE.apply(state, decision.event, "")
    assert MACHINE.digest(state) == verdict.state_digest
    MACHINE.settle(state, complete=verdict.complete)
    return (time.perf_counter() - start) * 1000


def rows() -> list[Row]:
    """All figures of the core."""
    peers: list[tuple[str, Callable[[], float], float]] = [
        ("A1, 100 nodes, 3,200 jobs", lambda: a1(100, 3_200), 62.7),
        ("A1, 1,000 nodes, 32,000 jobs", lambda: a1(1_000, 32_000), 663),
        ("A2, 1,000 nodes, 1 GPU free each", lambda: a2(1_000), 30.1),
        ("A2, 10,000 nodes, 1 GPU free each", lambda: a2(10_000), 409),
        ("A4, 1,000 nodes, 32,000 running", lambda: a4(1_000), 65.9),
        ("A4, 10,000 nodes, 320,000 running", lambda: a4(10_000), 784),
        ("A6, 100 nodes, 1 queue, 32,000 queued", lambda: a6(100, 1, 32_000), 229),
        ("A6, 1,000 nodes, 10 queues, 320,000 queued", lambda: a6(1_000, 10, 320_000), 2_986),
    ]
    found = [apply_rate()]
    for nodes in (100, 5_000):
        for pending in (10_000, 100_000):
            found += cycles(nodes, pending)
    for name, work, peer in peers:
        took = work()
        found.append(
            Row(name, took, "ms", peer=f"{peer:,} ms", note=f"{took / peer:.2f} x the peer's")
        )
    return found
