"""`SharesDivided`: what each queue of a pool has and requests, recorded under `quota`."""

from random import Random
from typing import Any

import pytest

from tests.unit.core.scheduling.policies.test_quota import QuotaCell
from yardmaster_core.scheduling.planner import share_records
from yardmaster_core.scheduling.planner.policy import PoolView
from yardmaster_core.scheduling.policies import options_of, policy_of
from yardmaster_core.scheduling.state.phases import Phase
from yardmaster_core.testing import fold, job_id
from yardmaster_schemas.events.admissions import Level, PoolConfiguredV1
from yardmaster_schemas.events.decisions import Amounts, Bounds, QueueShare, SharesDividedV1


def recorded(decisions: Any) -> list[SharesDividedV1]:
    return [event for event in decisions if isinstance(event, SharesDividedV1)]


def gpus(event: SharesDividedV1) -> dict[str, tuple[int, ...]]:
    """The fair share of each queue, and the GPUs that it holds and requests."""
    return {
        each.name: tuple(
            of.gpu_milli // 1000 for of in (each.fair_share, each.held, each.requested)
        )
        for each in event.queues
    }


def idle_until_ms(cell: QuotaCell) -> int | None:
    """Run the cycles that follow at once, which record no shares; return when the next is due."""
    while (due_ms := cell.machine.due_ms(cell.state)) is not None and due_ms <= cell.now_ms:
        assert recorded(cell.cycle(after_s=0)) == []
    return due_ms


def busy() -> QuotaCell:
    """Two projects on 8 GPUs; `a` deserves 6 of them."""
    cell = QuotaCell({"n1": 8})
    cell.entitle_to("a", 6)
    cell.entitle_to("b", 2, limit=4)
    cell.entitle_to("idle")
    return cell


def test_each_queue_is_recorded_after_the_one_above_it() -> None:
    cell = busy()
    cell.submit("one", project="b", gpus=3)
    cell.submit("two", project="b", gpus=2)
    (event,) = recorded(cell.cycle())
    assert (event.pool, event.part) == ("main", 0)
    assert [(each.name, each.level, each.parent) for each in event.queues] == [
        ("d", Level.DEPARTMENT, None),
        ("a", Level.PROJECT, "d"),
        ("b", Level.PROJECT, "d"),
    ]
    department, _, project = event.queues
    assert isinstance(project, QueueShare)
    assert project.deserved == Bounds(gpu_milli=2000, cpu_milli=None, memory_mib=None)
    assert project.limit == Bounds(gpu_milli=4000, cpu_milli=None, memory_mib=None)
    assert project.fair_share.gpu_milli == 4000
    assert project.held.gpu_milli == 3000
    assert project.requested.gpu_milli == 2000
    assert project.reserved == Amounts(gpu_milli=0, cpu_milli=0, memory_mib=0)
    assert department.deserved.gpu_milli == 8000


def test_a_change_is_recorded_after_seconds_and_the_last_one_without_an_input() -> None:
    cell = busy()
    (first,) = recorded(cell.cycle())
    assert gpus(first) == {"d": (0, 0, 0), "a": (0, 0, 0), "b": (0, 0, 0)}
    assert idle_until_ms(cell) is None
    cell.submit("one", project="a", gpus=5)
    assert recorded(cell.cycle(after_s=1)) == []
    assert idle_until_ms(cell) == cell.now_ms + 4_000
    (second,) = recorded(cell.cycle(after_s=4))
    assert gpus(second)["a"] == (5, 5, 0)
    due_ms = idle_until_ms(cell)
    # Only the start of the task is to be decided.
    assert due_ms is not None
    assert due_ms > cell.now_ms + 60_000
    cell.submit("two", project="b", gpus=1)
    cell.cycle(after_s=1)
    assert idle_until_ms(cell) == cell.now_ms + 9_000
    (third,) = recorded(cell.cycle(after_s=9))
    assert gpus(third)["b"] == (1, 1, 0)


def test_records_become_rarer_down_to_one_a_minute_while_shares_keep_changing() -> None:
    cell = busy()
    cell.cycle()
    at_s = []
    for second in range(1, 301):
        cell.submit(f"t{second:03d}", project="a", gpus=1)
        if recorded(cell.cycle(after_s=1)):
            at_s.append(second)
    assert at_s == [5, 15, 35, 75, 135, 195, 255]


def test_the_first_change_after_a_quiet_time_is_recorded_at_once_and_the_next_soon() -> None:
    cell = busy()
    cell.cycle()
    for number in range(8):
        cell.submit(f"t{number}", project="a", gpus=1)
        cell.cycle(after_s=60)
    cell.submit("first", project="b", gpus=1)
    assert len(recorded(cell.cycle(after_s=120))) == 1
    cell.submit("next", project="b", gpus=1)
    assert recorded(cell.cycle(after_s=1)) == []
    assert len(recorded(cell.cycle(after_s=4))) == 1


def test_equal_shares_are_not_recorded_again() -> None:
    cell = busy()
    assert len(recorded(cell.cycle())) == 1
    cell.submit("one", project="a", gpus=9)
    cell.cancel("one")
    cell.cycle(after_s=1)
    assert idle_until_ms(cell) == cell.now_ms + 4_000
    assert recorded(cell.cycle(after_s=4)) == []
    assert idle_until_ms(cell) is None


def test_a_restart_and_a_standby_record_the_same() -> None:
    cell = busy()
    cell.submit("one", project="a", gpus=5)
    cell.cycle()
    cell.submit("two", project="b", gpus=4)
    cell.cycle(after_s=1)
    before = cell.state.pools["main"].shares
    assert before is not None
    cell.restart()
    assert cell.state.pools["main"].shares == before
    assert idle_until_ms(cell) == cell.now_ms + 4_000
    assert fold(cell.steps).digest() == cell.state.digest()
    (event,) = recorded(cell.cycle(after_s=4))
    assert gpus(event)["b"] == (3, 0, 4)
    cell.restart()
    assert recorded(cell.cycle(after_s=60)) == []
    assert fold(cell.steps).digest() == cell.state.digest()


@pytest.mark.parametrize("seed", range(6))
def test_shares_follow_from_the_facts_and_not_from_what_happened(seed: int) -> None:
    random = Random(seed)
    cell = QuotaCell({"n1": 8, "n2": 8}, **({"over_quota": "weight"} if seed % 2 else {}))
    for name in "abc":
        cell.entitle_to(name, random.choice([None, 0, 3, 5]), limit=random.choice([None, 9]))
    names: list[str] = []
    for number in range(60):
        action = random.random()
        if action < 0.7:
            names.append(f"job{number:02}x")
            project, asked = random.choice("abc"), random.choice([1, 2, 4, 20])
            preemptible = random.random() < 0.8
            cell.submit(names[-1], project=project, gpus=asked, preemptible=preemptible)
        elif action < 0.9 and names:
            cell.cancel(names.pop(random.randrange(len(names))))
        else:
            cell.cordon("n2") if random.random() < 0.5 else cell.uncordon("n2")
        for name in names:
            task = cell.task(name) if job_id(name) in cell.state.jobs else None
            if task is not None and task.run is not None and random.random() < 0.5:
                if task.phase is Phase.STARTING:
                    cell.starts(name)
                elif task.phase is Phase.STOPPING and task.run.started:
                    cell.ends(name)
        cell.cycle(after_s=random.choice([1, 30, 60]))
        expected = shares(cell)
        cell.restart()
        assert shares(cell) == expected
    assert fold(cell.steps).digest() == cell.state.digest()


def shares(cell: QuotaCell) -> list[QueueShare]:
    """The shares now, whether they are recorded or not."""
    pool = cell.state.pools["main"]
    assert pool.config is not None
    policy = policy_of(pool.config.policy)
    return list(policy.shares.queues(PoolView(cell.state, pool, options_of(pool.config.policy))))


def test_many_queues_are_recorded_in_parts_of_one_cycle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_records, "MAX_SHARES", 2)
    cell = busy()
    events = recorded(cell.cycle())
    assert [(event.part, len(event.queues)) for event in events] == [(0, 2), (1, 1)]
    # The parts are compared together.
    assert recorded(cell.cycle(after_s=60)) == []
    cell.entitle_to("b", 3)
    assert len(recorded(cell.cycle(after_s=1))) == 2


def test_a_cycle_that_is_full_leaves_the_shares_to_the_next_one() -> None:
    cell = busy()
    for name in "xyz":
        cell.submit(name, project="a", gpus=1)
    assert recorded(cell.cycle(limit=3)) == []
    assert not cell.complete
    (event,) = recorded(cell.cycle())
    assert gpus(event)["a"] == (3, 3, 0)


def test_when_no_queue_is_left_that_is_recorded_once() -> None:
    cell = QuotaCell({"n1": 8})
    assert recorded(cell.cycle()) == []
    cell.entitle_to("a", 6)
    assert len(recorded(cell.cycle())) == 1
    cell.entitle_to("a")
    (event,) = recorded(cell.cycle(after_s=60))
    assert event.queues == ()
    assert recorded(cell.cycle(after_s=60)) == []


def test_another_policy_forgets_the_shares_and_the_same_one_keeps_them() -> None:
    cell = busy()
    cell.cycle()
    pool = cell.state.pools["main"]
    assert pool.config is not None
    cell.admission(PoolConfiguredV1(pool="main", revision=7, config=pool.config))
    assert recorded(cell.cycle(after_s=60)) == []
    assert pool.shares is not None
    cell.pool("main", policy="priority")
    assert recorded(cell.cycle(after_s=60)) == []
    assert pool.shares is None


def test_a_cordoned_node_changes_the_shares() -> None:
    cell = QuotaCell({"n1": 4, "n2": 4})
    cell.entitle_to("a", 2)
    cell.submit("one", project="a", gpus=4)
    cell.submit("two", project="a", gpus=4)
    (first,) = recorded(cell.cycle())
    assert gpus(first)["a"] == (8, 8, 0)
    cell.cordon("n2")
    (second,) = recorded(cell.cycle(after_s=60))
    assert gpus(second)["a"][0] == 4


def test_the_shares_of_projects_are_measured() -> None:
    cell = busy()
    cell.submit("one", project="b", gpus=3)
    cell.cycle()
    pool = cell.state.pools["main"]
    assert pool.config is not None
    view = PoolView(cell.state, pool, options_of(pool.config.policy))
    shares = policy_of(pool.config.policy).shares.of_projects(view)
    assert shares == {"b": 3000}
