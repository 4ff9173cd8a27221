"""Metrics of the work: GPUs, tasks, nodes and projects by pool, queue times, preemptions.

Only a leader exposes them, from its own state and from the cycles that it committed, until its term
ends. Gauges are computed when they are read: one pass over the pools, the nodes and the projects
that hold GPUs or have a share. The state keeps the numbers of pending and running tasks, so the
cost does not depend on them. Queue times and preemptions are counted once per committed decision.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from heapq import nsmallest
from typing import Final, NoReturn

from yardmaster_core.commit import CountedCycle
from yardmaster_core.scheduling.planner.policy import PoolView
from yardmaster_core.scheduling.planner.resolved_config import ResolvedConfig
from yardmaster_core.scheduling.state.cluster import ClusterState
from yardmaster_core.scheduling.state.node_status import status_of
from yardmaster_core.scheduling.state.nodes import Node
from yardmaster_core.scheduling.state.phases import NodeState, Phase
from yardmaster_core.scheduling.state.pools import Pool
from yardmaster_core.scheduling.state.shapes import WHOLE
from yardmaster_runtime.telemetry.port import Telemetry
from yardmaster_schemas.envelope import Envelope, Event
from yardmaster_schemas.events.decisions import (
    PreemptionRequestedV1,
    SlotsAllocatedV1,
    StopOverdueV1,
)

#: Pairs of pool and project that have series of their own. In each pool, all other projects share
#: one series, which is named OTHER.
MAX_PROJECTS: Final = 1_000
OTHER: Final = "other"
#: gpu_milli by pool and project.
ByProject = Mapping[tuple[str, str], int]
MINUTE_S: Final = 60.0
HOUR_S: Final = 3_600.0
DAY_S: Final = 86_400.0
#: Upper bounds of queue times in seconds: from a start in the next cycle to a week in the queue.
QUEUE_BUCKETS: Final = (
    *(1.0, 5.0, 15.0, MINUTE_S, 5 * MINUTE_S, 15 * MINUTE_S, 30 * MINUTE_S),
    *(HOUR_S, 3 * HOUR_S, 6 * HOUR_S, 12 * HOUR_S, DAY_S, 3 * DAY_S, 7 * DAY_S),
)


class WorkMetrics:
    """The metrics of the work during one term; a new term needs a new object."""

    def __init__(self, telemetry: Telemetry, state: Callable[[], ClusterState]) -> None:
        """`state` returns the leader's state."""
        self._telemetry = telemetry
        self._state = state
        self._part = part = telemetry.part()
        part.before_exposition(self._update)
        self._gpus = part.gauge_table(
            "gpus", "GPUs by state: used, free or unavailable.", "pool", "state"
        )
        self._pending = part.gauge_table(
            "tasks_pending",
            "Pending tasks by the first pool of their list and the reason in it.",
            "pool",
            "reason",
        )
        self._running = part.gauge_table("tasks_running", "Tasks in the phase running.", "pool")
        self._nodes = part.gauge_table(
            "nodes", "Nodes by state, as yard nodes shows it.", "pool", "state"
        )
        self._project_gpus = part.gauge_table(
            "project_gpus", "GPUs that a project holds.", "pool", "project"
        )
        self._project_share = part.gauge_table(
            "project_share",
            "GPUs of a project's share, where the policy divides the pool among projects.",
            "pool",
            "project",
        )
        self._queue_seconds = part.histogram(
            "queue_seconds",
            "From the submission or the last requeue of a task to its allocation.",
            "pool",
            buckets=QUEUE_BUCKETS,
        )
        self._preemptions = part.counter(
            "preemptions", "Tasks preempted for another task.", "pool", "policy", "rule"
        )
        self._overdue = part.counter(
            "stops_overdue", "Stops whose slots were not released 60 s after the deadline.", "pool"
        )

    async def run(self) -> NoReturn:
        """Expose the metrics until cancelled."""
        with self._telemetry.exposed(self._part):
            await asyncio.Event().wait()
        raise AssertionError("the event is never set")

    def on_cycle(self, accepted: Sequence[Envelope[Event]], counted: CountedCycle) -> None:
        """Count a cycle's allocations and preemptions."""
        commit = counted.commit
        policies = {used.pool: used.name for used in commit.policies}
        for _, envelope in counted.decisions:
            self.on_decision(envelope.data, commit.now_ms, policies)

    def on_decision(self, event: Event, now_ms: int, policies: Mapping[str, str]) -> None:
        """Count an applied decision of a cycle at `now_ms`.

        `policies` has the name of each pool's policy, by pool.
        """
        tasks = self._state().tasks
        if isinstance(event, SlotsAllocatedV1):
            # The clock of the gateway that took the submission may be ahead.
            queued_s = max(0, now_ms - tasks[event.task_id].queued_ms) / 1000
            self._queue_seconds.labels(event.pool).observe(queued_s)
        elif isinstance(event, PreemptionRequestedV1):
            run = tasks[event.task_id].run
            if run is not None:
                pool, rule = run.pool_name, event.stop.rule or str(event.stop.code)
                self._preemptions.labels(pool, policies.get(pool, ""), rule).inc()
        elif isinstance(event, StopOverdueV1):
            self._overdue.labels(event.pool).inc()

    def _update(self) -> None:
        state = self._state()
        pools, tasks = state.pools, state.counts.tasks
        self._gpus.rows = {
            (name, status): milli / WHOLE
            for name, pool in pools.items()
            for status, milli in gpus(pool).items()
        }
        self._pending.rows = {
            (name, counted_as.value): number
            for (name, counted_as), number in tasks.items()
            if not isinstance(counted_as, Phase)
        }
        self._running.rows = {(name,): tasks.get((name, Phase.RUNNING), 0) for name in pools}
        self._nodes.rows = Counter(statuses(state))
        held = {
            (name, project.name): project.used_milli[name]
            for name, pool in pools.items()
            for project in pool.held_by_project
        }
        shares = {
            (name, project): milli
            for name, pool in pools.items()
            for project, milli in shares_of(state, pool).items()
        }
        largest = largest_of(held, shares)
        self._project_gpus.rows = _in_gpus(held, largest)
        self._project_share.rows = _in_gpus(shares, largest)


def gpus(pool: Pool) -> dict[str, int]:
    """Return the gpu_milli of a pool by state: used, free and unavailable.

    Their sum is the capacity of all nodes of the pool that have not left. Capacity that a task
    holds is used, in whatever state its node is. The rest of a GPU is free if a new task may be
    placed on it, else unavailable.
    """
    total = sum(node.gpus for node in pool.nodes.values() if node.state is not NodeState.LEFT)
    used, free = pool.used_milli, pool.free.free_milli
    return {"used": used, "free": free, "unavailable": total * WHOLE - used - free}


def statuses(state: ClusterState) -> Iterator[tuple[str, str]]:
    """Yield the pool and the state of each node that `yard nodes` lists."""
    for node in state.nodes.values():
        if node.pool_name is not None:
            yield node.pool_name, status_of(node, state.enrolled)
    for row in state.enrolled.values():
        known = state.nodes.get(row.name)
        if row.config is not None and (known is None or known.pool_name is None):
            yield row.config.pool, status_of(known or Node(row.name, 0), state.enrolled)


def shares_of(state: ClusterState, pool: Pool) -> Mapping[str, int]:
    """Return the share of each project in gpu_milli, as the pool's policy divides the pool now.

    Empty if the policy gives projects no shares, or has not divided the pool yet.
    """
    resolved: ResolvedConfig | None = pool.resolved
    if resolved is None or resolved.config is not pool.config:
        return {}
    return resolved.policy.shares.of_projects(PoolView(state, pool, resolved.options))


def largest_of(held: ByProject, shares: ByProject) -> frozenset[tuple[str, str]]:
    """Return the MAX_PROJECTS pairs of pool and project that hold most gpu_milli.

    Of pairs that hold the same, those with the larger share come first.
    """

    def rank(key: tuple[str, str]) -> tuple[int, int, tuple[str, str]]:
        return -held.get(key, 0), -shares.get(key, 0), key

    return frozenset(nsmallest(MAX_PROJECTS, held.keys() | shares.keys(), key=rank))


def _in_gpus(milli: ByProject, named: Container[tuple[str, str]]) -> dict[tuple[str, ...], float]:
    """Return the rows of a gauge, in GPUs: one for each pair of pool and project in `named`.

    In each pool, one more row named OTHER is the sum of all other projects; a project that is
    called OTHER is part of this sum.
    """
    found: dict[tuple[str, str], int] = {}
    for key, each in milli.items():
        shown = key if key in named else (key[0], OTHER)
        found[shown] = found.get(shown, 0) + each
    return {key: each / WHOLE for key, each in found.items()}
