"""The policies that FitGpp is compared with: fifo, lrtp, rand and sjf."""

from typing import Any

import pytest

from tests.unit.core.scheduling.reading import all_of, only, started, stopped
from yardmaster_core.scheduling.policies import POLICIES, check
from yardmaster_core.scheduling.state.pools import Pool
from yardmaster_core.testing import Cell
from yardmaster_schemas.events.decisions import (
    PreemptionRequestedV1,
    TaskUnschedulableV1,
)
from yardmaster_schemas.events.requests import PolicyRef, PoolConfig
from yardmaster_schemas.reasons import AdmissionCode

STRICT = sorted(
    name
    for (name, _), policy in POLICIES.items()
    if policy.index(Pool("main"), policy.options()).traits.strict
)


def test_which_policies_are_strict() -> None:
    assert STRICT == ["fifo", "fitgpp", "lrtp", "rand", "sjf"]


@pytest.mark.parametrize("policy", STRICT)
def test_no_task_passes_the_first_in_the_queue(policy: str) -> None:
    cell = Cell(policy=policy)
    cell.node("n1", gpus=2)
    cell.submit("one")
    cell.submit("big", gpus=2)
    cell.submit("tiny")
    assert started(cell.cycle()) == ["one"]
    assert (cell.wait_code("big"), cell.wait_code("tiny")) == ("insufficient_free", "behind_task")


@pytest.mark.parametrize("policy", STRICT)
def test_a_waiting_task_reports_which_task_is_ahead(policy: str) -> None:
    cell = Cell(policy=policy)
    cell.submit("big", gpus=2)
    cell.submit("tiny")
    cell.node("n1", gpus=2)
    cell.submit("late", gpus=1, priority=1)
    assert started(cell.cycle()) == ["big"]
    waits = [e for e in cell.history if isinstance(e, TaskUnschedulableV1)]
    (behind,) = [e.wait for e in waits if e.wait.code == "behind_task"]
    assert behind.about == cell.task("tiny").id
    assert behind.numbers == {
        "submitted_at_ms": cell.task("late").job.submitted_ms,
        "submitted_ahead_at_ms": cell.task("tiny").job.submitted_ms,
    }


@pytest.mark.parametrize("policy", STRICT)
def test_tasks_without_gpus_wait_in_the_same_queue(policy: str) -> None:
    cell = Cell(policy=policy)
    cell.node("n1", gpus=1)
    cell.submit("one")
    cell.submit("two")
    cell.submit("cpus", gpus=0)
    assert started(cell.cycle()) == ["one"]
    assert cell.wait_code("cpus") == "behind_task"


@pytest.mark.parametrize("policy", STRICT)
def test_tasks_start_one_after_another_as_capacity_is_released(policy: str) -> None:
    cell = Cell(policy=policy)
    cell.node("n1", gpus=4)
    cell.submit("all", gpus=4)
    for number in range(6):
        cell.submit(f"b{number}x", gpus=1 + number % 2, priority=10 * (6 - number))
    cell.cycle()
    cell.starts("all")
    cell.ends("all")
    assert started(cell.cycle()) == ["b0x", "b1x", "b2x"]
    cell.restart()
    assert cell.cycle() == []
    assert [cell.wait_code(f"b{number}x") for number in (3, 4, 5)] == [
        "insufficient_free",
        "behind_task",
        "behind_task",
    ]


@pytest.mark.parametrize("policy", STRICT)
def test_the_next_moves_up_when_the_first_is_cancelled(policy: str) -> None:
    cell = Cell(policy=policy)
    cell.node("n1", gpus=2)
    cell.submit("one", gpus=1)
    cell.submit("big", gpus=2)
    cell.submit("tiny", gpus=1)
    cell.cycle()
    cell.cancel("big")
    assert started(cell.cycle()) == ["tiny"]


@pytest.mark.parametrize("policy", STRICT)
def test_a_task_that_can_never_fit_blocks_no_other(policy: str) -> None:
    cell = Cell(policy=policy)
    cell.node("n1", gpus=2)
    cell.submit("huge", gpus=3)
    cell.submit("tiny", gpus=1)
    assert started(cell.cycle()) == ["tiny"]
    assert cell.wait_code("huge") == "exceeds_every_node"
    cell.node("n2", gpus=4)
    assert started(cell.cycle()) == ["huge"]


@pytest.mark.parametrize("how", ["cordoned", "lost", "disabled"])
@pytest.mark.parametrize(
    ("policy", "options"), [*((policy, {}) for policy in STRICT), ("fitgpp", {"backfill_s": 1})]
)
def test_a_gang_that_needs_an_unavailable_node_blocks_no_other(
    policy: str, options: dict[str, Any], how: str
) -> None:
    cell = Cell(policy=policy, **options)
    cell.node("n1", gpus=2)
    cell.node("n2", gpus=2)
    cell.submit("held")
    cell.cycle()
    cell.submit("gang", gpus=2, replicas=2)
    cell.cycle(after_s=10)
    cell.submit("tiny")
    assert started(cell.cycle()) == []
    heard_ms = cell.now_ms
    if how == "cordoned":
        cell.cordon("n2")
    elif how == "disabled":
        cell.disable("n2", 0)
    silent = {"n2": heard_ms} if how == "lost" else {}
    assert started(cell.cycle(after_s=60, silent=silent)) == ["tiny"]
    assert cell.wait_code("gang") == "nodes_unavailable"
    if how != "cordoned":
        return
    cell.ends("held")
    cell.cycle()
    cell.uncordon("n2")
    cell.submit("last")
    assert started(cell.cycle()) == []
    assert cell.wait_code("last") == "behind_task"


@pytest.mark.parametrize("policy", STRICT)
def test_a_task_at_its_limit_blocks_no_other(policy: str) -> None:
    cell = Cell(policy=policy)
    cell.node("n1", gpus=4)
    cell.submit("many", gpus=1, tasks=2, max_slots_milli=1000)
    cell.submit("tiny", gpus=1)
    assert started(cell.cycle()) == ["many", "tiny"]


@pytest.mark.parametrize("policy", STRICT)
def test_a_pool_may_become_strict_and_cease_to_be(policy: str) -> None:
    cell = Cell()
    cell.node("n1", gpus=2)
    cell.submit("one", gpus=1)
    cell.cycle()
    cell.submit("big", gpus=2)
    cell.pool("main", policy=policy)
    cell.cycle()
    cell.submit("tiny", gpus=1)
    assert started(cell.cycle()) == []
    cell.pool("main")
    assert started(cell.cycle()) == ["tiny"]


def test_fifo_preempts_no_task() -> None:
    cell = Cell(policy="fifo")
    cell.node("n1", gpus=1)
    cell.submit("be")
    cell.cycle()
    cell.submit("te", preemptible=False)
    assert stopped(cell.run_until_idle()) == []
    assert cell.wait_code("te") == "insufficient_free"


def test_lrtp_preempts_the_longest_remaining_time() -> None:
    cell = Cell(policy="lrtp")
    cell.node("n1", gpus=3)
    cell.submit("old", runtime_estimate_s=1000)
    cell.cycle()
    cell.starts("old")
    cell.cycle(after_s=600)
    cell.submit("new", runtime_estimate_s=500)
    cell.submit("unsaid")
    cell.cycle(after_s=500)
    cell.submit("te", preemptible=False)
    stop = only(cell.cycle(), PreemptionRequestedV1)
    assert stop.task_id.startswith("new")
    assert (stop.stop.code, stop.stop.rule) == ("lrtp", "longest_remaining")
    assert stop.stop.numbers == {"remaining_s": 500, "held_milli": 1000, "asked_milli": 1000}


@pytest.mark.parametrize("policy", ["lrtp", "rand"])
def test_baselines_preempt_until_the_task_fits_and_keep_unneeded_victims(policy: str) -> None:
    cell = Cell(policy=policy, seed=3)
    for number in range(6):
        cell.node(f"n{number}", gpus=1 if number else 2)
    for number in range(7):
        estimate_s = 1000 - number
        cell.submit(f"b{number}x", runtime_estimate_s=estimate_s)
    cell.cycle()
    cell.submit("te", gpus=2, preemptible=False)
    gone = all_of(cell.cycle(), PreemptionRequestedV1)
    on_the_large_one = [stop for stop in gone if stop.nodes == ("n0",)]
    assert len(on_the_large_one) == 2
    assert len(gone) > 2
    assert on_the_large_one[-1] == gone[-1]


def test_rand_draws_from_the_seed_of_the_pool() -> None:
    def drawn(seed: int) -> list[str]:
        cell = Cell(policy="rand", seed=seed)
        cell.node("n1", gpus=8)
        for number in range(8):
            cell.submit(f"b{number}x")
        cell.cycle()
        cell.submit("te", gpus=3, preemptible=False)
        (first, *_) = found = all_of(cell.cycle(), PreemptionRequestedV1)
        assert (first.stop.code, first.stop.rule) == ("rand", "drawn")
        assert first.stop.numbers == {"candidates": 8, "held_milli": 1000, "asked_milli": 3000}
        return [stop.task_id for stop in found]

    assert drawn(1) == drawn(1)
    assert len({tuple(drawn(seed)) for seed in range(5)}) > 1


@pytest.mark.parametrize("policy", ["lrtp", "rand"])
def test_baselines_preempt_only_preemptible_tasks(policy: str) -> None:
    cell = Cell(policy=policy)
    cell.node("n1", gpus=2)
    cell.submit("fixed", preemptible=False)
    cell.submit("be")
    cell.cycle()
    cell.submit("te1", preemptible=False)
    cell.submit("te2", preemptible=False)
    assert stopped(cell.cycle()) == ["be"]
    assert cell.wait_code("te2") == "behind_task" or cell.wait_code("te2") == "waiting_for_victims"


def test_sjf_takes_the_shortest_estimate_first_and_those_without_last() -> None:
    cell = Cell(policy="sjf")
    cell.submit("unsaid")
    cell.submit("long", runtime_estimate_s=100)
    cell.submit("short", runtime_estimate_s=10)
    cell.submit("also", runtime_estimate_s=10)
    cell.node("n1", gpus=4)
    assert started(cell.cycle()) == ["short", "also", "long", "unsaid"]


def test_sjf_is_for_simulations() -> None:
    def judged(name: str) -> AdmissionCode | None:
        return check(PoolConfig(policy=PolicyRef(name=name)))

    assert judged("sjf") is AdmissionCode.POLICY_FOR_SIMULATIONS
    assert [judged(name) for name in ("fifo", "fitgpp", "lrtp", "rand")] == [None] * 4
