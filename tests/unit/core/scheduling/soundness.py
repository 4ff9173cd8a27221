"""Compares the state's indexes, sums and queues with slow computations from its facts.

Called after every cycle of the property tests, and by other tests at interesting points.
"""

from collections import Counter
from collections.abc import Iterator
from functools import partial
from operator import attrgetter
from typing import Any

from tests.support.shares_reference import VARIANTS as REFERENCE
from tests.support.shares_reference import shares_of, unheld_milli
from yardmaster_core.digests import MODULUS
from yardmaster_core.scheduling.planner.feasibility import could_fit
from yardmaster_core.scheduling.planner.lifecycle import MAX_FAILED_NODES, MAX_FAILED_STARTS
from yardmaster_core.scheduling.policies import REGISTRY, options_of
from yardmaster_core.scheduling.policies.fair_share.demand_tracker import (
    DemandTracker,
)
from yardmaster_core.scheduling.policies.fair_share.division import VARIANTS
from yardmaster_core.scheduling.policies.fair_share.index import FairShareIndex
from yardmaster_core.scheduling.policies.preemptible import PreemptibleIndex
from yardmaster_core.scheduling.policies.quota.index import QuotaIndex
from yardmaster_core.scheduling.policies.quota.queues import Queue
from yardmaster_core.scheduling.policies.quota.ranks import place_of
from yardmaster_core.scheduling.policies.starved_first.index import OwnersIndex
from yardmaster_core.scheduling.policies.strict_queues import StrictQueues
from yardmaster_core.scheduling.state.capacity_index import CapacityIndex, NodeKey
from yardmaster_core.scheduling.state.cluster import ClusterState, Entity
from yardmaster_core.scheduling.state.enrollment import is_barred
from yardmaster_core.scheduling.state.node_capacity import NodeCapacity
from yardmaster_core.scheduling.state.node_order import NodeOrder
from yardmaster_core.scheduling.state.nodes import Node
from yardmaster_core.scheduling.state.phases import NodeState, Phase, ReplicaState
from yardmaster_core.scheduling.state.pools import Pool
from yardmaster_core.scheduling.state.shapes import SEPARATE_AFTER, Shape
from yardmaster_core.scheduling.state.tasks import Group, Task
from yardmaster_core.scheduling.state.wait_codes import BEHIND, LIMITED, UNTIL, blocks
from yardmaster_core.scheduling.state.workload import WorkloadCounter
from yardmaster_schemas.events.decisions import Placement
from yardmaster_schemas.reasons import WaitCode


def assert_sound(state: ClusterState) -> None:
    """Assert that all derived data is right; the state must be between two cycles."""
    tasks = [task for job in state.jobs.values() for task in job.tasks]
    _tasks(state, tasks)
    _slots(state, tasks)
    _sums(state, tasks)
    _task_counts(state, tasks)
    for pool in state.pools.values():
        _reservations(state, pool, tasks)
        _capacities(state, pool, tasks)
        _workload(state, pool)
        _queues(state, pool, tasks)
        _index(pool, tasks)
        _quota(state, pool)
        _owners(state, pool)
        _remembered(pool)
    for node in state.nodes.values():
        at = node.pool_name or ""
        expected = bool(at) and is_barred(state.enrolled, node, at)
        assert node.barred == expected, f"{node.name}: expected barred to be {expected}"
        assert not node.revoked or state.revoked.get(node.name) is node, (
            f"{node.name}: not in revoked"
        )
        forgotten = node.silent_ms and node.state is NodeState.UP
        assert not forgotten or node.name in state.node_attention, f"{node.name}: stale silence"
    _digest(state)


def _task_counts(state: ClusterState, tasks: list[Task]) -> None:
    state.digest()  # which counts what changed
    expected: Counter[tuple[str, WaitCode | Phase]] = Counter()
    for task in tasks:
        first = task.job.spec.pools[0]
        if task.phase is Phase.RUNNING and task.run is not None:
            expected[task.run.pool_name, Phase.RUNNING] += 1
        elif task.group is not None and task.reserved is not None:
            expected[first, WaitCode.WAITING_FOR_VICTIMS] += 1
        elif task.phase is Phase.PENDING and task.group is not None:
            record = task.group.waits.get(first)
            expected[first, WaitCode.NOT_CONSIDERED if record is None else record[0].code] += 1
        elif task.phase is Phase.PENDING and task.paused:
            expected[first, WaitCode.PAUSED] += 1
        elif task.phase is Phase.PENDING and task.held_until_ms > state.now_ms:
            code = WaitCode.START_BACKOFF if task.failed_starts else WaitCode.RESTART_BACKOFF
            expected[first, code] += 1
        elif task.phase is Phase.PENDING:
            code = WaitCode.NOT_CONSIDERED if task.released else WaitCode.AT_MAX_CONCURRENT
            expected[first, code] += 1
    assert state.counts.tasks == expected, "the counts of pending and running tasks are wrong"


def _tasks(state: ClusterState, tasks: list[Task]) -> None:
    for task in tasks:
        run = task.run
        if run is None:
            assert task.phase not in (Phase.STARTING, Phase.RUNNING, Phase.STOPPING), task.id
        else:
            assert not task.phase.final, f"{task.id} is over and has an attempt"
            assert run.number == task.attempt
            shape = task.job.shape
            placed = len(run.placements)
            if shape.whole_nodes:
                gpus = [len(p.slots) for p in run.placements]
                assert sum(gpus) == shape.gpus, f"{task.id} is not whole"
                assert len({p.node for p in run.placements}) == placed, f"{task.id} is torn apart"
            else:
                assert placed == shape.replicas, f"{task.id} is not whole"
            assert [p.replica for p in run.placements] == list(range(placed))
            open_ = sum(1 for was in run.replicas if was < ReplicaState.RELEASED)
            assert run.open == open_, f"{task.id} counts {run.open} open replicas, has {open_}"
        ready = (
            task.phase is Phase.PENDING
            and run is None
            and task.released
            and not (task.paused or task.cancelled or task.job.erased or task.unwritable)
            and task.held_until_ms <= state.now_ms
        )
        assert separation(state, task) == (task.job.separate, task.job.by_user)
        assert (task.group is not None) == ready, (
            f"{task.id}: ready {ready}, in a queue {not ready}"
        )
    for job in state.jobs.values():
        live = sum(1 for t in job.tasks if t.released and not t.phase.final)
        assert job.live == live, f"{job.id} counts {job.live} live tasks, has {live}"
        most = job.spec.max_concurrent or len(job.tasks)
        assert live <= most
        left = [t for t in job.tasks if not (t.released or t.paused or t.phase.final)]
        assert not left or live == most, f"{job.id} holds tasks back with {live} of {most} live"


def separation(state: ClusterState, task: Task) -> tuple[bool, bool]:
    """Whether a pool that the task may use is divided among jobs, and whether among users."""
    pools = [state.pools[name] for name in task.job.spec.pools if name in state.pools]
    indexes = [REGISTRY.index(pool) for pool in pools]
    within = {index.traits.equal_within for index in indexes}
    return "job" in within, "user" in within


def _slots(state: ClusterState, tasks: list[Task]) -> None:
    held: dict[tuple[str, str], list[int]] = {}
    for task, replica in _open(tasks):
        assert task.run is not None
        placement = task.run.placements[replica]
        node = state.nodes[placement.node]
        slots = held.setdefault((node.name, placement.incarnation), [0] * node.gpus)
        for slot in placement.slots:
            slots[slot] += placement.gpu_milli
    for (name, _), slots in held.items():
        assert max(slots, default=0) <= 1000, f"a slot of {name} is held twice: {slots}"
    for node in state.nodes.values():
        here = {
            (t.id, r): t
            for t, r in _open(tasks)
            if t.run is not None and t.run.placements[r].node == node.name
        }
        assert node.open == here, f"{node.name} has {sorted(node.open)} open, not {sorted(here)}"
        ports = [
            t.run.port
            for t, r in _open(tasks)
            if t.run and t.run.port and r == 0 and t.run.placements[0].node == node.name
        ]
        assert node.ports == Counter(ports), f"{node.name} holds ports {node.ports}, not {ports}"


def _open(tasks: list[Task]) -> list[tuple[Task, int]]:
    return [
        (task, replica)
        for task in tasks
        if task.run is not None
        for replica, was in enumerate(task.run.replicas)
        if was < ReplicaState.RELEASED
    ]


def _remembered(pool: Pool) -> None:
    if pool.config is None:
        return
    for shape in {group.shape.fit: group.shape for group in pool.groups.values()}.values():
        cached = could_fit(pool, shape)
        kept = dict(pool.policy_cache)
        pool.policy_cache.clear()
        found = could_fit(pool, shape)
        pool.policy_cache.update(kept)
        assert cached == found, f"{pool.name}: wrong cache of could_fit for {shape.id}"


def _sums(state: ClusterState, tasks: list[Task]) -> None:
    jobs: Counter[str] = Counter()
    levels: Counter[tuple[str, str, str]] = Counter()
    for task, replica in _open(tasks):
        assert task.run is not None
        placement = task.run.placements[replica]
        milli = placement.gpu_milli * len(placement.slots)
        jobs[task.job.id] += milli
        project = task.job.project
        levels["project", project.name, task.run.pool_name] += milli
        levels["department", project.department.name, task.run.pool_name] += milli
    for job in state.jobs.values():
        assert job.used_milli == jobs[job.id], f"{job.id} counts {job.used_milli}"
    for kind, owners in (("project", state.projects), ("department", state.departments)):
        for name, owner in owners.items():
            for pool in state.pools:
                counted, held = owner.used_milli.get(pool, 0), levels[kind, name, pool]
                assert counted == held, f"{kind} {name} counts {counted} of {pool}, holds {held}"


def _capacities(state: ClusterState, pool: Pool, tasks: list[Task]) -> None:
    for label, index in (
        ("idle", pool.free),
        ("future", pool.future),
        ("non_preemptible", pool.max_free),
    ):
        index.flush()
        rebuilt = CapacityIndex()
        rebuilt.limit_gpuless(pool.config.gpuless_per_node if pool.config is not None else None)
        for node in pool.nodes.values():
            capacity, gpuless = _capacity(node, label, tasks)
            rebuilt.add(capacity, node.node_type, node.name)
            capacity.gpuless_left -= gpuless
            rebuilt._index(capacity)
            if node.usable:
                rebuilt.open_node(capacity)
        assert contents(index) == contents(rebuilt), f"{label} of {pool.name} is wrong"
        rebuilt.workload = index.workload
        for (key_of, _), kept in index.node_orders.items():
            kept.update(index.capacities)
            rebuilt_key = partial(_key, key_of, rebuilt, kept.shape)
            fresh = NodeOrder(kept.shape, rebuilt_key, set(rebuilt.capacities))
            fresh.update(rebuilt.capacities)
            assert kept.order == fresh.order, f"an order of {label} of {pool.name} is wrong"
    held: dict[str, dict[str, int]] = {}
    for task, replica in _open(tasks):
        if task.run is not None and task.run.pool_name == pool.name:
            placement = task.run.placements[replica]
            by_task = held.setdefault(task.job.id, Counter())
            by_task[task.id] += placement.gpu_milli * len(placement.slots)
    counted = {j.id: {t.id: m for t, m in h.tasks.items()} for j, h in pool.held_by_job.items()}
    expected = {job: {t: m for t, m in by_task.items() if m} for job, by_task in held.items()}
    assert counted == {job: by_task for job, by_task in expected.items() if by_task}
    assert all(h.milli == sum(h.tasks.values()) for h in pool.held_by_job.values())
    assert pool.used_milli == sum(h.milli for h in pool.held_by_job.values())
    of_project = [(p, j, h) for p, of in pool.held_by_project.items() for j, h in of.jobs.items()]
    assert all(j.project is p and pool.held_by_job[j] is h for p, j, h in of_project)
    assert len(of_project) == len(pool.held_by_job)
    for project, holders in pool.held_by_project.items():
        assert holders.releasing_milli == sum(h.releasing_milli for h in holders.jobs.values())
        for holding in holders.jobs.values():
            releasing = {t: milli for t, milli in holding.tasks.items() if t.releasing}
            assert holding.releasing == releasing, f"what {project.name} releases is wrong"
            assert holding.releasing_milli == sum(releasing.values())
    _shares(state, pool)
    stopping = [
        t
        for t in tasks
        if t.run and t.run.pool_name == pool.name and t.run.frees_slots and t.run.open
    ]
    assert pool.stopping == len(stopping)
    assert pool.stopping_non_preemptible == sum(not t.job.spec.preemptible for t in stopping)


def _reservations(state: ClusterState, pool: Pool, tasks: list[Task]) -> None:
    """The indexes of the pool's reservations are right."""
    reserved = [t for t in tasks if t.reserved and t.reserved.pool_name == pool.name]
    assert set(pool.reserved) == set(reserved), f"{pool.name}: wrong index of reservations"
    groups = {g for g in pool.groups.values() if any(t.group is g and t.reserved for t in tasks)}
    assert set(pool.reserved_groups) == groups, f"{pool.name}: wrong groups with reservations"
    milli: Counter[object] = Counter()
    for task in reserved:
        reservation = task.reserved
        assert reservation is not None
        # A task that is moved still stops.
        assert task.phase in (Phase.PENDING, Phase.STOPPING), f"{task.id} is {task.phase.name}"
        held = sum(
            p.gpu_milli * len(p.slots)
            for replica, p in enumerate(task.run.placements if task.run is not None else ())
            if task.run is not None and task.run.replicas[replica] < ReplicaState.RELEASED
        )
        for owner in (task.job, task.job.project, task.job.project.department):
            milli[owner] += max(0, reservation.gpu_milli - held)
        for replica, placement in enumerate(reservation.placements):
            node = state.nodes[placement.node]
            assert replica in node.reserved[task]
            if node.incarnation != placement.incarnation or node.state is not NodeState.UP:
                continue
            whole = placement.gpu_milli in (0, 1000)
            holders = [
                holder
                for (_, held), holder in node.open.items()
                if holder.run
                and not set(holder.run.placements[held].slots).isdisjoint(placement.slots)
            ]
            disabled = not set(placement.slots).isdisjoint(node.disabled)
            if whole and placement.slots and not placement.cpu_milli and not disabled:
                assert bool(holders) != bool(reservation.free[replica]), (
                    f"{task.id}: wrong whether {node.name} {placement.slots} is free"
                )
        missing = len(reservation.placements) - sum(reservation.free)
        assert reservation.missing == missing
        assert (task in pool.ready) == (not missing), f"{task.id} should start on its slots"
    assert set(pool.ready) <= set(reserved)
    reserved_idle = unheld_milli(pool) - pool.free.free_milli
    assert pool.reserved_idle_milli == reserved_idle, f"{pool.name}: idle reserved slots"
    assert {o: m for o, m in pool.reserved_milli.items() if m} == {
        o: m for o, m in milli.items() if m
    }


def _workload(state: ClusterState, pool: Pool) -> None:
    """The counted requests include those of all jobs in the state."""
    fresh = WorkloadCounter()
    for job in state.jobs.values():
        if pool.name in job.spec.pools:
            fresh.add(job.shape, job.spec.tasks)
    counts = pool.workload.counts
    assert all(counts[of] >= number for of, number in fresh.counts.items())
    loaded = WorkloadCounter.load(pool.workload.dump())
    assert loaded.facts() == pool.workload.facts(), f"the hash of requests in {pool.name} is wrong"


def _shares(state: ClusterState, pool: Pool) -> None:
    """The pool's demands equal newly computed ones, and the result of a pass over all jobs."""
    index = pool.index
    if not isinstance(index, FairShareIndex):
        return
    for claimant, line in index.reclaimable.items():
        able = [
            task
            for job, holding in pool.held_by_job.items()
            if claimant in (job, job.project) and job.spec.preemptible
            for task in holding.tasks
            if not task.releasing
        ]
        assert list(line.in_order()) == sorted(able), "reclaimable tasks are wrong"
    assert pool.config is not None
    options = options_of(pool.config.policy)
    whole_tasks = options.variant != "max_min"
    new = REGISTRY.index(pool)
    assert isinstance(new, FairShareIndex)
    fresh = new.current_demands(state)
    kept = index.demands
    if kept is not None:
        kept.update(state)
        assert _contents(kept) == _contents(fresh), f"the demands of {pool.name} are wrong"
    divide, by_claims = VARIANTS[options.variant], REFERENCE[options.variant]
    shares = fresh.divide(state.pools, divide)
    rows = shares_of(pool, state.pools, options.among, by_claims, whole_tasks=whole_tasks)
    expected = [(r.claimant, r.age, r.weight, r.demand, r.held, r.offer) for r in rows]
    found = [shares.of(row.claimant) for row in rows]
    assert [
        s and (s.claimant, s.age, s.weight, s.demand, s.held, s.share_milli) for s in found
    ] == expected
    assert len(fresh.rows) == len(rows)
    below = [row.claimant for row in rows if row.held < row.offer]
    assert [share.claimant for share in shares.below()] == below
    waiting = {g for p in below for g in fresh.groups_of(p)}
    # Tasks whose last starts failed are in no share.
    of_them = (
        g
        for g in pool.groups.values()
        if g.shape.queue_class and g.pending and not g.shape.start_failed
    )
    among_jobs = options.among == "job"
    expected_groups = {
        g
        for g in of_them
        if (state.jobs[g.shape.job_id or ""] if among_jobs else state.projects[g.shape.project])
        in below
    }
    assert waiting == expected_groups, f"pending tasks of {pool.name} would not be found"


def _quota(state: ClusterState, pool: Pool) -> None:
    """The queues of `quota` are those of a new index, also their shares."""
    kept = pool.index
    if not isinstance(kept, QuotaIndex):
        return
    fresh = REGISTRY.index(pool)
    assert isinstance(fresh, QuotaIndex)
    root = kept.divide(state)
    assert _rows(root) == _rows(fresh.divide(state)), f"queues of {pool.name}"
    assert pool.config is not None
    over_in_all = pool.config.policy.options.get("order") == "kai"
    for queue in _below(root):
        known = queue in kept.rank_stale or queue.place == place_of(queue, over_in_all=over_in_all)
        assert known, f"the place of {queue.name} in {pool.name} changed"


def _owners(state: ClusterState, pool: Pool) -> None:
    """The owners of `starved_first` are those of a new index, also their parts and ranks."""
    kept = pool.index
    if not isinstance(kept, OwnersIndex):
        return
    fresh = REGISTRY.index(pool)
    assert isinstance(fresh, OwnersIndex)
    assert _owner_rows(kept) == _owner_rows(fresh), f"owners of {pool.name}"
    for owner in kept.owners.values():
        rank = (owner.allocated,) if owner.waiting else ()
        kind, name = owner.name
        if kept.traits.equal_within == "user":
            claimant = name if kind == "user" else f"project/{name}"
            recorded = pool.user_ranks.get(claimant, ())
        else:
            recorded = state.projects[name].ranks.get(pool.name, ())
        assert recorded == rank or owner.name in kept.rank_stale, (
            f"the rank of {name} in {pool.name} changed"
        )


def _owner_rows(index: OwnersIndex) -> list[Any]:
    level = index.level()
    owners = sorted(index.owners.values(), key=attrgetter("name"))
    rows = []
    for o in owners:
        waiting = {asked: set(groups) for asked, groups in o.waiting.items()}
        amounts = (o.allocated, o.non_preemptible, o.returning, o.pending, o.part(level))
        rows.append((o.name, *amounts, waiting))
    in_order = sorted((o.allocated, o.name) for o in owners)
    assert index._sorted == in_order
    return [level, rows]


def _below(queue: Queue) -> Iterator[Queue]:
    for child in queue.children:
        yield child
        yield from _below(child)


def _rows(queue: Queue) -> list[Any]:
    own = {name: getattr(queue, name) for name in Queue.__slots__ if name not in _LINKS}
    children = sorted(queue.children, key=lambda one: one.age)
    # A project that never used the pool has no queue yet.
    used = [one for one in children if any(map(any, (one.held, one.pending, one.reserved)))]
    return [own, [_rows(child) for child in used]]


#: Links, and what a new index does not know yet.
_LINKS = ("parent", "path", "children", "divided", "needs_division_below", "place")


def _contents(demands: DemandTracker) -> dict[str, Any]:
    """All inputs of shares."""
    return {
        "rows": {claimant: (age, kind.key) for claimant, (age, kind) in demands.rows.items()},
        "claimants": demands.claimants,
        "kinds": {key: kind.ages for key, kind in demands.kinds.items()},
        "above_limit": demands.above_limit,
    }


def _capacity(node: Node, label: str, tasks: list[Task]) -> tuple[NodeCapacity, int]:
    """The node's capacity, and the number of replicas without GPUs on it."""
    size = (node.gpus, node.cpu_milli, node.memory_mib, node.gpu_memory_mib)
    capacity = NodeCapacity(node.ordinal, *size)
    capacity.disabled = tuple(slot for slot in node.disabled if slot < node.gpus)
    gpuless = 0
    for slot in capacity.disabled:
        capacity.slots[slot] -= 1000
    for task, replica in _open(tasks):
        run = task.run
        assert run is not None
        placement = run.placements[replica]
        if placement.node != node.name or (label == "future" and run.frees_slots):
            continue
        if label == "non_preemptible" and task.job.spec.preemptible:
            continue
        gpuless += _take(capacity, placement)
    if label != "non_preemptible":
        for task in tasks:
            for placement in task.reserved.placements if task.reserved is not None else ():
                if (placement.node, placement.incarnation) == (node.name, node.incarnation):
                    gpuless += _take(capacity, placement)
    slots = [free for slot, free in enumerate(capacity.slots) if slot not in capacity.disabled]
    if label != "idle":
        left = [*slots, capacity.cpu_milli, capacity.memory_mib]
        assert min(left) >= 0, f"{label} of {node.name} is overbooked"
    capacity.whole = capacity.slots.count(1000)
    capacity.shared = max((free for free in capacity.slots if 0 < free < 1000), default=0)
    return capacity, gpuless


def _take(capacity: NodeCapacity, placement: Placement) -> bool:
    for slot in placement.slots:
        capacity.slots[slot] -= placement.gpu_milli
    capacity.cpu_milli -= placement.cpu_milli
    capacity.memory_mib -= placement.memory_mib
    return not placement.slots


def _key(key_of: NodeKey, index: CapacityIndex, shape: Shape, capacity: NodeCapacity) -> int:
    return key_of(index, capacity, shape)


def contents(index: CapacityIndex) -> dict[str, Any]:
    """All data of a capacity index that queries use."""
    return {
        "capacities": {
            o: (
                *(r.slots, r.whole, r.shared, r.cpu_milli, r.memory_mib, r.gpuless_left),
                *(r.disabled, r.gpu_memory_mib),
            )
            for o, r in sorted(index.capacities.items())
        },
        "available": index.available,
        "idle": index.idle,
        "of_size": {size: bits for size, bits in sorted(index.of_size.items()) if bits},
        "named": dict(sorted(index.named.items())),
        "gpuless": dict(sorted(index.gpuless.items())),
        "max_gpuless": index.max_gpuless,
        "of_gpu_memory": dict(sorted(index.of_gpu_memory.items())),
        "of_type": {name: bits for name, bits in sorted(index.of_type.items()) if bits},
        "free_milli": index.free_milli,
        "whole": {count: bits for count, bits in enumerate(index.whole) if bits},
        "shared": index.shared,
        "cpu": index.cpu,
        "memory": index.memory,
    }


def _index(pool: Pool, tasks: list[Task]) -> None:
    """The index of the pool's policy gives the same answers as a new one."""
    kept, fresh = pool.index, REGISTRY.index(pool)
    assert type(kept) is type(fresh)
    assert kept.traits == fresh.traits
    if isinstance(kept, PreemptibleIndex) and isinstance(fresh, PreemptibleIndex):
        _victims(kept, pool, tasks)
        _victims(fresh, pool, tasks)
    if isinstance(kept, StrictQueues) and isinstance(fresh, StrictQueues):
        _strict_queues(kept, fresh, pool)
    if isinstance(kept, FairShareIndex) and isinstance(fresh, FairShareIndex):
        over = {
            group
            for group in pool.groups.values()
            if group.queue.live
            and (record := group.waits.get(pool.name)) is not None
            and record[0].code is WaitCode.OVER_FAIR_SHARE
        }
        assert set(kept.over_share) == over, "a group over its share would not be woken"
        assert set(fresh.over_share) == over


def _victims(index: PreemptibleIndex, pool: Pool, tasks: list[Task]) -> None:
    expected: dict[int, list[Task]] = {}
    for task in tasks:
        run = task.run
        if run is None or run.pool_name != pool.name or run.stop is not None or not run.open:
            continue
        if task.job.spec.preemptible:
            expected.setdefault(task.job.priority, []).append(task)
    found = {p: list(line.in_order()) for p, line in index.holders.items()}
    for priority in sorted({*expected, *found}):
        oldest_first = sorted(expected.get(priority, []))
        assert found.get(priority, []) == oldest_first, f"holders of priority {priority}"


def _queues(state: ClusterState, pool: Pool, tasks: list[Task]) -> None:
    members: dict[tuple[str, int], list[Task]] = {}
    for task in tasks:
        assert len(task.failed_nodes) <= MAX_FAILED_NODES, f"{task.id} avoids too many nodes"
        assert task.failed_starts < MAX_FAILED_STARTS, f"{task.id} should have ended"
        if task.group is not None and pool.name in task.job.shape.pools:
            failed = task.failed_starts >= max(SEPARATE_AFTER, task.expired_starts + 1)
            key = (task.shape.id, task.job.priority)
            assert task.shape.start_failed == failed, f"{task.id} waits among tasks unlike it"
            assert task.group is pool.groups.get(key), f"{task.id} waits in another group"
            members.setdefault(key, []).append(task)
    assert pool.groups.keys() == members.keys(), f"{pool.name} keeps groups without pending tasks"
    for key, group in pool.groups.items():
        for queue, reserved in ((group.queue, False), (group.reserved, True)):
            here = sorted(t for t in members[key] if (t.reserved is not None) == reserved)
            assert queue.live == len(here)
            assert list(queue.in_order()) == here
            assert queue.first_entry is (here[0] if here else None), "the first entry is stale"
        assert group.first is min(members[key])
    for number, queue_class in enumerate(pool.queue_classes):
        blocked: dict[int, set[Group]] = {}
        with_reserved: dict[int, set[Group]] = {}
        behind, limited, protected = set(), set(), set()
        for group in pool.groups.values():
            if group.shape.queue_class == number and group.reserved.live:
                with_reserved.setdefault(group.priority, set()).add(group)
            record = group.waits.get(pool.name)
            if record is None or group.shape.queue_class != number or not group.queue.live:
                continue
            impossible = pool.index.traits.impossible_block
            if blocks(group.shape, record[0].code, impossible=impossible):
                blocked.setdefault(group.priority, set()).add(group)
            if record[0].code in BEHIND:
                behind.add(group)
            if record[0].code in LIMITED:
                limited.add((pool, group))
            if record[0].code in UNTIL:
                protected.add(group)
        assert {p: set(groups) for p, groups in queue_class.blocked.items()} == blocked
        assert queue_class.mask == sum(1 << priority for priority in blocked)
        assert {p: set(groups) for p, groups in queue_class.reserved.items()} == with_reserved
        assert queue_class.reserved_mask == sum(1 << priority for priority in with_reserved)
        kept = dict(queue_class.first_by_priority)
        kept_pending = dict(queue_class.first_pending_by_priority)
        queue_class.first_by_priority.clear()
        queue_class.first_pending_by_priority.clear()
        assert all(p in blocked and queue_class.first(p) is first for p, first in kept.items())
        assert all(queue_class.first_pending(p) is first for p, first in kept_pending.items())
        assert set(queue_class.behind) == behind
        assert {g for g in pool.protected if g.shape.queue_class == number} == protected
        for waits_in, group in limited:
            wait = group.waits[waits_in.name][0]
            job = wait.code is WaitCode.AT_MAX_SLOTS
            owner = members[group.key][0].job.id if job else wait.about
            if owner is None:
                continue  # of a user, whose policy wakes the group itself
            assert (waits_in, group) in state.wake_index.limited[owner], (
                "a limited group would not be woken"
            )
    assert all(state.wake_index.limited.values()), "an owner without waiting groups is kept"


def _strict_queues(kept: StrictQueues, fresh: StrictQueues, pool: Pool) -> None:
    # Groups with minimum run times are in queues of their own.
    behind = {
        group: ((at, group.min_runtimes > 0), place)
        for queue_class in pool.queue_classes
        for group in queue_class.behind
        for at, place in [kept.position_of(group.queue.first)]
    }
    expected = [
        min((place, group.key, group) for group, (at, place) in behind.items() if at == line)[2]
        for line in sorted({line for line, _ in behind.values()})
    ]
    assert kept.position_of is fresh.position_of
    found = list(kept.next_behind(pool.queue_classes))
    assert found == expected, f"the next in {pool.name} would not be found"
    assert found == list(fresh.next_behind(pool.queue_classes))


def _digest(state: ClusterState) -> None:
    kept = state.digest()
    entities: list[Entity] = [
        *state.pools.values(),
        *state.departments.values(),
        *state.projects.values(),
        *state.enrolled.values(),
        *state.nodes.values(),
        *state.jobs.values(),
        *(task for job in state.jobs.values() for task in job.tasks),
        *{id(g): g for p in state.pools.values() for g in p.groups.values()}.values(),
    ]
    before = [(entity, entity.hash) for entity in entities]
    total = state.total
    state.total = 0
    for entity in entities:
        entity.hash = 0
        state.dirty[entity] = None
    fresh = state.digest()
    assert kept == fresh, "the digest does not cover a change"
    assert state.total == total % MODULUS
    for entity, hash_ in before:
        assert entity.hash == hash_
