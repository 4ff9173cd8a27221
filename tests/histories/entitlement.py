"""Entitlement under `quota`, by a search of every set of victims; for clusters with few tasks.

A task that its queues deserve, and have a share for, does not wait while other queues could lose
tasks for it and each keep what it deserves; unless a stated rule keeps it waiting, for instance
behind the oldest task of its project. The rules here are stricter than those of the policy,
which may take more: they need no order of victims.
"""

from collections.abc import Iterator
from itertools import combinations
from typing import Final

from tests.histories.capacity import fits_without
from tests.histories.quota_properties import NONE, Queues, lost_with, minus, plus, request_of
from tests.histories.stated_rules import waits_by_rule
from yardmaster_core.scheduling.policies.min_runtime import min_runtime_until_ms
from yardmaster_core.scheduling.state.cluster import ClusterState
from yardmaster_core.scheduling.state.pools import Pool
from yardmaster_core.scheduling.state.tasks import Task

#: Victims of one set, and tasks that a set is drawn from.
MOST_VICTIMS: Final = 4
MOST_TASKS: Final = 12


def assert_entitled_tasks_wait_for_nothing(state: ClusterState) -> None:
    """Assert it in each pool with the policy `quota` and all its actions; the state is idle."""
    for pool in state.pools.values():
        policy = pool.config.policy if pool.config is not None else None
        if policy is not None and policy.name == "quota" and "actions" not in policy.options:
            _assert_in(state, pool)


def _assert_in(state: ClusterState, pool: Pool) -> None:
    queues = Queues(state, pool)
    for group in pool.groups.values():
        if not group.queue.live or group.shape.start_failed or len(group.shape.pools) > 1:
            continue
        task = group.queue.first
        if waits_by_rule(state, pool, group) or not _deserves(queues, task):
            continue
        for victims in _sets(queues, task):
            if fits_without(state, pool, task, victims):
                names = [victim.id for victim in victims]
                wait = group.waits.get(pool.name)
                raise AssertionError(f"{task.id} waits ({wait}), but {names} could go for it")


def _deserves(queues: Queues, task: Task) -> bool:
    """Whether each queue of a task, with the task, has no more than it deserves and its share."""
    request = request_of(queues.pool, task)
    for queue in queues.path(task.job.project):
        after = plus(queues.held[queue].allocated, request)
        deserved = queues.deserved(queue)[0]
        if (deserved is not None and after[0] > deserved) or after[0] > queues.fair[queue][0]:
            return False
    return True


def _sets(queues: Queues, task: Task) -> Iterator[tuple[Task, ...]]:
    """Yield the sets of victims without which each queue keeps what it deserves."""
    may_go = [victim for victim in queues.state.tasks.values() if _may_go(queues, victim, task)]
    for number in range(1, MOST_VICTIMS + 1):
        for victims in combinations(may_go[:MOST_TASKS], number):
            lost = dict.fromkeys(queues.held, NONE)
            for victim in victims:
                for queue in queues.path(victim.job.project):
                    lost[queue] = plus(lost[queue], lost_with(queues.pool, victim))
            if all(
                minus(queues.held[queue].allocated, lost[queue])[0]
                >= (queues.deserved(queue)[0] or 0)
                for queue in lost
                if lost[queue] != NONE and queue not in queues.path(task.job.project)
            ):
                yield victims


def _may_go(queues: Queues, victim: Task, claimant: Task) -> bool:
    run, job = victim.run, victim.job
    if run is None or run.stop is not None or run.ended or run.pool_name != queues.pool.name:
        return False
    if job.project is claimant.job.project or not job.spec.preemptible:
        return False
    if any(queues.deserved(queue)[0] is None for queue in queues.path(job.project)):
        return False
    return min_runtime_until_ms(queues.state, victim) <= queues.state.now_ms
