"""Check scenarios of KAI-Scheduler: one action, or whole cycles, from a given initial state."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from yardmaster_schemas.events.requests import GpuPlacement
from yardmaster_simulation.conformance import kai_facts
from yardmaster_simulation.conformance.kai_cluster import KaiCluster
from yardmaster_simulation.conformance.kai_form import Job, KaiScenario, Node, Status
from yardmaster_simulation.conformance.kai_outcome import after_action, after_cycles, differences
from yardmaster_simulation.conformance.kai_terms import priorities_of, units_of
from yardmaster_simulation.conformance.scenarios import Format, Scenario, Skip, parsed

#: KAI's actions that the policy `quota` supports.
ACTIONS: Final = ("allocate", "consolidation", "reclaim", "preempt")
GPU_PLACEMENTS: Final = {"pack": GpuPlacement.PACKED, "spread": GpuPlacement.SPREAD}
#: For how long running tasks have run before the first cycle, in seconds.
RAN_S: Final = 60
#: The time between two cycles, in seconds.
PERIOD_S: Final = 1
#: The option `max_moves` of the policy: KAI's tests may move any number of tasks.
ANY_NUMBER: Final = 1_000_000


def check(scenario: Scenario) -> str:
    """Return how the core's decisions differ from KAI's; empty: they agree.

    Raises:
        Skip: the scenario needs a feature that the core does not have.
    """
    given = parsed(KaiScenario, scenario)
    require_supported(given.jobs)
    if given.topologies:
        raise Skip("topology is not supported")
    if any(
        node.max_pods is not None and node.max_pods < most_pods(node, given.jobs)
        for node in given.nodes
    ):
        raise Skip("the number of pods per node is limited, which is not supported")
    cluster = build(given)
    if given.mode == "single_action":
        found = after_action(cluster, given.jobs, cluster.cycle(after_s=RAN_S))
        return "; ".join(differences(cluster, given.jobs, given.expected, found))
    return _whole_cycles(given, cluster)


def most_pods(node: Node, jobs: Iterable[Job]) -> int:
    """Return the most pods that a node may have.

    Of tasks with whole GPUs, a node has at most one for each GPU and, for each GPU, one that
    terminates. Of tasks with a part of a GPU, each counts as two pods.
    """
    tasks = [task for job in jobs for task in job.tasks]
    whole = sum(bool(task.gpus) for task in tasks)
    return min(whole, 2 * node.gpus) + 2 * (len(tasks) - whole)


def require_supported(jobs: Iterable[Job]) -> None:
    """Check that the core has the features that the jobs need.

    Raises:
        Skip: a job needs a feature that the core lacks; the message names the first such job.
    """
    for job in jobs:
        reason = _unsupported(job)
        if reason:
            raise Skip(f"{job.name} {reason}, which is not supported")


def _unsupported(job: Job) -> str:
    tasks = job.tasks
    if job.subgroups is not None or any(task.subgroup is not None for task in tasks):
        return "has subgroups"
    if job.min_available is not None and job.min_available < len(tasks):
        return "may run with fewer tasks than it has"
    if job.min_available is not None and job.min_available > len(tasks):
        return "needs more tasks than it has"
    if len({task.state for task in tasks}) > 1:
        return "is a gang whose tasks have different states"
    if len({task.request for task in tasks}) > 1:
        return "is a gang of unequal tasks"
    if job.stale_for_s is not None:
        return "is an incomplete gang"
    return ""


def build(given: KaiScenario) -> KaiCluster:
    """Return the cluster in the initial state, as of the time when running tasks started."""
    units = units_of(given.nodes, (task for job in given.jobs for task in job.tasks))
    spreads = given.config.node_placement.gpu == "spread"
    gpu_placement = given.config.gpu_placement
    cluster = KaiCluster(
        units,
        priorities_of(given.jobs),
        policy="quota",
        placement="worst_fit" if spreads else "best_fit",
        gpu_placement=GPU_PLACEMENTS[gpu_placement] if gpu_placement is not None else None,
        **policy_options(given),
    )
    cluster.configure(given.queues)
    cluster.join(given.nodes)
    decided_ms = cluster.cell.now_ms + RAN_S * 1000
    pending = [job for job in given.jobs if job.status is Status.PENDING]
    longest_s = max(map(_delay_s, pending), default=0)
    for job in by_age(given.jobs):
        # The pool has the longest preemption delay of all jobs. A job with a shorter delay is
        # submitted earlier, so that its delay ends at the right time.
        earlier_s = longest_s - _delay_s(job) if job.status is Status.PENDING else 0
        cluster.submit(job, submitted_ms=decided_ms - job.age_minutes * 60_000 - earlier_s * 1000)
    sizes = {node.name: node.gpus for node in given.nodes}
    kept = {job.name for job in given.jobs if _keeps(job)}
    requeued = {job.name for job in given.jobs} - kept if given.mode == "full_cycle" else ()
    kai_facts.record(cluster, given.jobs, sizes, requeued=requeued)
    return cluster


def policy_options(given: KaiScenario) -> dict[str, Any]:
    """Return the options of the policy.

    Raises:
        Skip: jobs have different preemption delays, but the core has one delay per pool. A single
            action is not skipped if earlier submissions can express the shorter delays without a
            change of the order of jobs.
    """
    actions = [action for action in given.actions if action in ACTIONS]
    options = {
        "order": "kai",
        "over_quota": "weight",
        "actions": actions,
        "max_moves": ANY_NUMBER,
    }
    delayed = [
        job for job in given.jobs if given.mode == "full_cycle" or job.status is Status.PENDING
    ]
    delays = {_delay_s(job) for job in delayed}
    if len(delays) > 1 and (given.mode == "full_cycle" or not _keeps_order(delayed)):
        raise Skip("jobs have different preemption delays; the core has one per pool")
    longest_s = max(delays, default=0)
    return {**options, "preemption_delay_s": longest_s} if longest_s else options


def _delay_s(job: Job) -> int:
    return round(job.preemption_delay_s or 0)


def _keeps_order(jobs: Sequence[Job]) -> bool:
    """Whether no job has a longer delay than a younger job of its project.

    The jobs of a project then keep their order if a shorter delay becomes an earlier submission.
    """
    ordered = by_age(jobs)
    return all(
        first.project != second.project or _delay_s(first) <= _delay_s(second)
        for at, first in enumerate(ordered)
        for second in ordered[at + 1 :]
    )


def by_age(jobs: Iterable[Job]) -> Sequence[Job]:
    """Return jobs in the order of submission."""
    return sorted(jobs, key=lambda job: (-job.age_minutes, job.name))


def _keeps(job: Job) -> bool:
    return job.keeps_terminating or job.status is Status.STUCK_TERMINATING


def _whole_cycles(given: KaiScenario, cluster: KaiCluster) -> str:
    """Run cycles; compare the outcome in the cycle that must reach it and in each later cycle."""
    rounds = given.rounds
    kept = [job.name for job in given.jobs if _keeps(job)]
    for number in range(rounds.until_match + rounds.after_match):
        cluster.cycle(after_s=PERIOD_S if number else RAN_S)
        if number + 1 >= rounds.until_match:
            found = after_cycles(cluster, given.jobs)
            differing = differences(cluster, given.jobs, given.expected, found)
            if differing:
                return f"after cycle {number + 1}: {'; '.join(differing)}"
        cluster.play_agents(keep=kept)
    return ""


KAI: Final = Format("kai", frozenset({"mode", "actions", "queues", "jobs"}), check)
