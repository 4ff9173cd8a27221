"""Decayed usage: projects that held more in the past get less of what is left."""

from fractions import Fraction
from typing import Any

import pytest

from tests.unit.core.scheduling.policies.test_quota import QuotaCell
from tests.unit.core.scheduling.policies.test_quota_shares import idle_until_ms, recorded
from yardmaster_core.errors import BadPolicyOptions
from yardmaster_core.scheduling.policies import options_of
from yardmaster_core.scheduling.policies.quota.division import QueueDemand, divide
from yardmaster_core.scheduling.state.cluster import ClusterState
from yardmaster_core.testing import fold
from yardmaster_schemas.events.decisions import PreemptionRequestedV1
from yardmaster_schemas.events.requests import PolicyRef

HOUR_S = 3600
MINUTE_MS = 60_000


def usages(state: ClusterState) -> dict[str, int]:
    """By project: its usage at the last whole minute (gpu_milli)."""
    return {
        name: project.decayed_usage["main"].counted_milli
        for name, project in state.projects.items()
        if "main" in project.decayed_usage
    }


def after_long_use(**options: Any) -> QuotaCell:
    """`a` held all of 8 GPUs for 40 half-lives of an hour; neither project deserves any."""
    cell = QuotaCell({"n1": 8}, usage_half_life_s=HOUR_S, over_quota="weight", **options)
    cell.entitle_to("a", 0)
    cell.entitle_to("b", 0)
    cell.submit("a", project="a", tasks=8)
    cell.run()
    cell.cycle(after_s=40 * HOUR_S)
    assert 7990 <= usages(cell.state)["a"] <= 8000
    return cell


def arrive(cell: QuotaCell) -> list[Any]:
    cell.submit("b", project="b", tasks=8)
    return cell.run()


@pytest.mark.parametrize(
    ("permille", "held"), [(0, (4, 4)), (500, (2, 6)), (1000, (0, 8)), (3000, (0, 8))]
)
def test_a_project_that_used_the_pool_gets_less_than_one_that_waited(
    permille: int, held: tuple[int, int]
) -> None:
    cell = after_long_use(usage_weight_permille=permille)
    arrive(cell)
    assert (cell.held("a"), cell.held("b")) == held


def test_without_a_half_life_the_past_does_not_count() -> None:
    cell = QuotaCell({"n1": 8}, over_quota="weight")
    cell.entitle_to("a", 0)
    cell.submit("a", project="a", tasks=8)
    events = recorded(cell.run())
    assert usages(cell.state) == {}
    assert {each.usage_milli for each in events[-1].queues} == {None}


def test_what_is_deserved_does_not_depend_on_the_past() -> None:
    cell = after_long_use()
    cell.entitle_to("a", 3)
    arrive(cell)
    assert (cell.held("a"), cell.held("b")) == (3, 5)


def test_shares_follow_the_usages_each_minute_while_tasks_wait() -> None:
    cell = after_long_use()
    arrive(cell)
    assert (cell.held("a"), cell.held("b")) == (0, 8)
    before_ms = cell.now_ms
    while cell.now_ms < before_ms + 6 * HOUR_S * 1000:
        due_ms = cell.machine.due_ms(cell.state)
        assert due_ms is not None, "a share may move, and no cycle is due"
        assert due_ms - cell.now_ms <= MINUTE_MS
        cell.cycle(after_s=max(0, due_ms - cell.now_ms) / 1000)
        cell.run()
    # By now both held half of the pool on average, and each has half of it.
    usage = usages(cell.state)
    assert abs(usage["a"] - usage["b"]) < 500
    assert (cell.held("a"), cell.held("b")) == (4, 4)
    assert fold(cell.steps).digest() == cell.state.digest()


def test_within_a_minute_no_share_moves() -> None:
    cell = after_long_use(usage_weight_permille=500)
    arrive(cell)
    known = usages(cell.state)
    left_ms = MINUTE_MS - cell.now_ms % MINUTE_MS
    for _ in range(5):
        stops = cell.cycle(after_s=left_ms / 1000 / 6)
        assert [each for each in stops if isinstance(each, PreemptionRequestedV1)] == []
        assert usages(cell.state) == known
    cell.cycle(after_s=left_ms / 1000)
    assert usages(cell.state) != known


def test_a_pool_where_nothing_waits_makes_no_decisions() -> None:
    cell = after_long_use()
    while (due_ms := idle_until_ms(cell)) is not None and due_ms < cell.now_ms + 90_000:
        cell.cycle(after_s=(due_ms - cell.now_ms) / 1000)
    assert idle_until_ms(cell) is None


def test_usages_are_recorded_with_the_shares_of_the_queues() -> None:
    cell = after_long_use()
    cell.submit("more", project="b", gpus=1)
    events = recorded(cell.cycle(after_s=60))
    (event,) = events
    usage = {each.name: each.usage_milli for each in event.queues}
    assert usage == {"d": usages(cell.state)["a"], "a": usages(cell.state)["a"], "b": 0}


def test_the_usage_of_a_project_that_ended_is_dropped_once_it_decayed_to_nothing() -> None:
    cell = after_long_use()
    cell.cancel("a", immediate=True)
    cell.run()
    cell.cycle(after_s=HOUR_S)
    assert 3900 <= usages(cell.state)["a"] <= 4100
    cell.cycle(after_s=30 * HOUR_S)
    assert usages(cell.state) == {}
    assert fold(cell.steps).digest() == cell.state.digest()


def test_a_restart_keeps_the_usages() -> None:
    cell = after_long_use(usage_weight_permille=500)
    arrive(cell)
    cell.cycle(after_s=25)
    known = usages(cell.state)
    digest = cell.state.digest()
    cell.restart()
    assert usages(cell.state) == known
    assert cell.state.digest() == digest
    cell.cycle(after_s=600)
    assert fold(cell.steps).digest() == cell.state.digest()


def test_another_half_life_counts_from_now_on_and_none_ends_it() -> None:
    cell = after_long_use()
    cell.cancel("a", immediate=True)
    cell.run()
    before = usages(cell.state)["a"]
    options = {"policy": "quota", "over_quota": "weight"}
    cell.pool("main", usage_half_life_s=2 * HOUR_S, **options)
    cell.cycle()
    cell.cycle(after_s=2 * HOUR_S)
    assert abs(usages(cell.state)["a"] - before // 2) < 50
    cell.pool("main", **options)
    cell.cycle()
    assert usages(cell.state) == {}
    cell.submit("again", project="a")
    cell.run()
    # A half-life that is set while tasks run counts what they hold from then on.
    cell.pool("main", usage_half_life_s=HOUR_S, **options)
    cell.cycle()
    cell.cycle(after_s=HOUR_S)
    assert 480 <= usages(cell.state)["a"] <= 520
    assert fold(cell.steps).digest() == cell.state.digest()


def test_a_half_life_of_more_than_a_year_is_refused() -> None:
    ref = PolicyRef(name="quota", options={"usage_half_life_s": 366 * 24 * HOUR_S + 1})
    with pytest.raises(BadPolicyOptions, match="half-life"):
        options_of(ref)
    with pytest.raises(BadPolicyOptions, match="0 or more"):
        options_of(PolicyRef(name="quota", options={"usage_weight_permille": -1}))


def demand(name: str, weight: int, usage: str) -> QueueDemand:
    return QueueDemand(
        name=name, rank=0, deserved=0, demand=100, weight=weight, age=0, usage=Fraction(usage)
    )


@pytest.mark.parametrize(
    ("usages", "shares"),
    [
        (("0", "0"), [5, 15]),
        # 0.25 + (0.25 - 0.25) and 0.75 + (0.75 - 0.75): each used its part.
        (("1/4", "3/4"), [5, 15]),
        # 0.25 + (0.25 - 0.5) and 0.75 + (0.75 - 0.5)
        (("1/2", "1/2"), [0, 20]),
        # 0.25 + (0.25 - 0.1) and 0.75 + (0.75 - 0.9)
        (("1/10", "9/10"), [8, 12]),
        # Both used more than twice their parts: nothing beyond what is deserved.
        (("1", "2"), [0, 0]),
    ],
)
def test_weights_count_less_by_what_was_used_beyond_the_part(
    usages: tuple[str, str], shares: list[int]
) -> None:
    queues = [demand("a", 1, usages[0]), demand("b", 3, usages[1])]
    found = divide(20, queues, 1, Fraction(1))
    assert list(found.shares.values()) == shares
