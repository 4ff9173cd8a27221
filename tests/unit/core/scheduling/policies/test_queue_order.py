"""A queue can be listed in the policy's order from tasks' traits and recorded ranks alone."""

from random import Random
from typing import Any

import pytest

from yardmaster_core.scheduling.planner.policy import PoolView, QueueTraits
from yardmaster_core.scheduling.policies import POLICIES, options_of, policy_of
from yardmaster_core.scheduling.state.tasks import Task
from yardmaster_core.testing import Cell
from yardmaster_schemas.envelope import Event
from yardmaster_schemas.events.decisions import Among, ClaimantsRankedV1

FAIR: tuple[tuple[str, dict[str, Any]], ...] = (
    ("fair_share", {"among": "job"}),
    ("fair_share", {"among": "project"}),
    ("fair_share", {"among": "job", "variant": "max_min"}),
    ("quota", {"order": "kai"}),
    ("starved_first", {"owners": "project"}),
    ("starved_first", {"owners": "user"}),
)
CASES = FAIR + tuple(
    (name, {})
    for (name, _), policy in POLICIES.items()
    if name != "fair_share" and not policy.simulation_only
)


def queued(cell: Cell) -> list[Task]:
    return [task for task in cell.state.tasks.values() if task.group is not None]


def planned(cell: Cell) -> list[str]:
    """The queue in the order in which the planner would consider the tasks now."""
    pool = cell.state.pools["main"]
    assert pool.config is not None
    policy = policy_of(pool.config.policy)
    view = PoolView(cell.state, pool, options_of(pool.config.policy))

    def key(task: Task) -> Any:
        assert task.group is not None
        rank, *rest = policy.order.key(view, task.group, task)
        return rank, task.group.shape.start_failed, *rest

    return [task.id for task in sorted(queued(cell), key=key)]


def listed(cell: Cell) -> list[str]:
    """The queue by traits, recorded ranks, traits within these, and submission."""
    pool = cell.state.pools["main"]
    assert pool.config is not None
    policy = policy_of(pool.config.policy)
    options = options_of(pool.config.policy)
    among = policy.listing.claimants(options)

    def key(task: Task) -> Any:
        job = task.job
        gpus = bool(task.shape.queue_class)
        traits = QueueTraits(job.priority, job.spec.preemptible, gpus, task.shape.start_failed)
        rank: tuple[int, ...] = ()
        if among is not None and policy.listing.in_rank(traits):
            if among is Among.USER:
                rank = pool.user_ranks[job.user or f"project/{job.project.name}"]
            else:
                claimant = job if among is Among.JOB else job.project
                rank = claimant.ranks["main"]
        place = tuple(map(int, policy.listing.place(traits)))
        return place, rank, tuple(map(int, policy.listing.within(options, traits))), task.key

    return [task.id for task in sorted(queued(cell), key=key)]


def ranked(decided: list[Event]) -> list[tuple[str, tuple[int, ...]]]:
    events = [event for event in decided if isinstance(event, ClaimantsRankedV1)]
    return [(each.claimant.rstrip("0"), each.rank) for event in events for each in event.ranks]


@pytest.mark.parametrize(("policy", "options"), CASES)
@pytest.mark.parametrize("seed", [1, 2])
def test_the_listed_order_is_that_of_the_planner(
    policy: str, options: dict[str, Any], seed: int
) -> None:
    random = Random(seed)
    cell = Cell(policy=policy, **options)
    for number in range(3):
        cell.node(f"n{number}", gpus=4)
    cell.entitle("p1", limit_milli=5000)
    cell.entitle_department("d", main=9000)
    names = [f"j{chr(97 + number // 6)}{chr(97 + number % 6)}" for number in range(36)]
    for number, name in enumerate(names):
        cell.submit(
            name,
            project=f"p{random.randrange(3)}",
            gpus=random.choice((0, 1, 2, 4)),
            tasks=random.randrange(1, 4),
            priority=random.choice((10, 50)),
            preemptible=random.random() < 0.6,
            user=random.choice((None, "ada", "bob", "eve")),
        )
        if random.random() < 0.3:
            cell.cancel(random.choice(names[: number + 1]))
        if random.random() < 0.3:
            cell.set_priority(random.choice(names[: number + 1]), 30)
        cell.cycle()
        for task in [t for t in cell.state.tasks.values() if t.run is not None]:
            if random.random() < 0.2:
                cell.starts(task.job.id.rstrip("0"), task.index)
                cell.cycle()
                cell.ends(task.job.id.rstrip("0"), task.index)
        if random.random() < 0.2:
            cell.cycle()
            cell.run_until_idle()
            cell.restart()
    cell.cycle()
    cell.run_until_idle()
    assert len(queued(cell)) > 3
    assert listed(cell) == planned(cell)


def test_a_rank_is_recorded_when_it_changes_and_removed_with_the_last_pending_task() -> None:
    cell = Cell(policy="fair_share")
    cell.node("n1", gpus=2)
    cell.submit("first", gpus=1, tasks=2)
    assert ranked(cell.cycle()) == []  # its tasks started at once
    cell.submit("large", gpus=2)
    cell.submit("small", gpus=1)
    decided = ranked(cell.cycle())
    assert [name for name, _ in decided] == ["small", "large"]
    assert [rank[0] for _, rank in decided] == [1000, 2000]
    assert ranked(cell.run_until_idle()) == []
    cell.starts("first", 0)
    cell.starts("first", 1)
    cell.cycle()
    cell.ends("first", 0)
    cell.ends("first", 1)
    assert ("small", ()) in ranked(cell.cycle())
    assert cell.phase("small") == "starting"
    assert cell.state.jobs[cell.task("small").job.id].ranks == {}


def test_ranks_survive_a_restart() -> None:
    cell = Cell(policy="fair_share", among="project")
    cell.node("n1", gpus=2)
    cell.submit("held", project="a", gpus=2, preemptible=False)
    cell.submit("waits", project="b", gpus=2)
    cell.cycle()
    before = cell.state.projects["b"].ranks
    assert before
    cell.restart()
    assert cell.state.projects["b"].ranks == before
    cell.submit("other", project="c", gpus=1)
    cell.cancel("waits")
    # The project has no pending task any more.
    assert dict(ranked(cell.cycle()))["b"] == ()
    assert cell.state.projects["b"].ranks == {}
