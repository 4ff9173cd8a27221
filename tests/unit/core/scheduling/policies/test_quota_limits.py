"""A task whose project is at a limit preempts tasks of its project that it comes before."""

from typing import Any

import pytest

from tests.unit.core.scheduling.policies.test_quota import QuotaCell
from yardmaster_core.scheduling.state.phases import Phase
from yardmaster_core.testing import fold
from yardmaster_schemas.events.decisions import (
    PreemptionRequestedV2,
    SlotsAllocatedV1,
    SlotsReservedV1,
)
from yardmaster_schemas.events.requests import Quota
from yardmaster_schemas.reasons import WaitCode
from yardmaster_schemas.resources import Resources


class LimitedCell(QuotaCell):
    """A cell that checks the limit of project `a` after each cycle."""

    limit = 0

    def cycle(self, **how: Any) -> list[Any]:
        decisions = super().cycle(**how)
        if self.limit and "a" in self.state.projects:
            assert self.held("a") <= self.limit
        return decisions


def stops(decisions: list[Any]) -> list[PreemptionRequestedV2]:
    return [each for each in decisions if isinstance(each, PreemptionRequestedV2)]


def at_limit(limit: int, *, gpus: int = 8, training: int | None = None, **options: Any) -> Any:
    """Project `a` is at its limit with training of one GPU each; other GPUs are idle."""
    cell = LimitedCell({"n1": gpus}, **options)
    cell.limit = limit
    cell.entitle_to("a", limit, limit=limit)
    for number in range(limit if training is None else training):
        cell.submit(f"t{number}", project="a", priority=50)
    cell.run()
    return cell


def test_an_interactive_task_preempts_its_projects_training_at_the_limit() -> None:
    cell = at_limit(1, gpus=2)
    cell.submit("i", project="a", priority=50, preemptible=False)
    (stop,) = stops(cell.cycle())
    assert stop.stop.rule == "within_deserved"
    # Another GPU is idle, but the limit is reached until the training has left.
    assert cell.task("i").phase is Phase.PENDING
    assert cell.task("i").reserved is not None
    cell.cycle(after_s=1)
    assert cell.task("i").phase is Phase.PENDING
    cell.run()
    assert cell.task("i").phase is Phase.RUNNING
    assert cell.wait_of("t0") is WaitCode.AT_LIMIT
    assert fold(cell.steps).digest() == cell.state.digest()


@pytest.mark.parametrize(("priority", "preempts"), [(49, 1), (50, 0), (51, 0)])
@pytest.mark.parametrize("order", ["document", "kai"])
def test_training_preempts_training_of_lower_priority_only(
    order: str, priority: int, preempts: int
) -> None:
    cell = at_limit(2, order=order)
    cell.submit("other", project="a", priority=priority)
    assert len(stops(cell.run())) == preempts
    assert cell.held("a") == 2


def test_in_the_order_of_kai_only_the_priority_counts() -> None:
    cell = at_limit(2, order="kai", training=1)
    cell.submit("more", project="a", priority=50)
    cell.run()
    cell.submit("i", project="a", priority=50, preemptible=False)
    assert stops(cell.run()) == []
    cell.submit("j", project="a", priority=40, preemptible=False)
    (stop,) = stops(cell.run())
    assert stop.stop.rule == "better_priority"


def test_no_more_tasks_are_preempted_than_the_limit_needs() -> None:
    cell = at_limit(4)
    cell.submit("i", project="a", preemptible=False, gpus=3)
    assert len(stops(cell.run())) == 3
    assert cell.held("a") == 4


def test_tasks_that_stop_already_count_as_gone() -> None:
    cell = at_limit(2)
    cell.cancel("t0")
    cell.submit("i", project="a", preemptible=False)
    assert stops(cell.run()) == []
    assert cell.task("i").phase is Phase.RUNNING


def test_a_task_that_also_lacks_capacity_preempts_for_both() -> None:
    cell = LimitedCell({"n1": 2, "n2": 1})
    cell.limit = 3
    cell.entitle_to("a", 3, limit=3)
    for number in range(3):
        cell.submit(f"t{number}", project="a", priority=50)
    cell.run()
    cell.submit("i", project="a", preemptible=False, gpus=2)
    decisions = cell.run()
    nodes = {each.nodes for each in stops(decisions)}
    assert nodes == {("n1",)}
    assert len(stops(decisions)) == 2
    assert cell.held("a") == 3


def test_at_the_limit_of_a_department_a_project_loses_only_its_own_tasks() -> None:
    cell = QuotaCell({"n1": 8})
    cell.entitle_to("e", 4, department=True, limit=4)
    for name in ("a", "b"):
        cell.entitle_to(name, 2, of="e")
        for number in range(2):
            cell.submit(f"{name}{number}", project=name, department="e", priority=50)
    cell.run()
    cell.submit("i", project="a", department="e", preemptible=False)
    (stop,) = stops(cell.run())
    assert stop.task_id.startswith("a")
    assert (cell.held("a"), cell.held("b")) == (2, 2)


def test_a_limit_over_all_pools_and_one_of_cpus_are_limits_too() -> None:
    cell = QuotaCell({"n1": 8})
    quota = Quota(deserved_milli=4000, limit_milli=None)
    cell.entitle("a", quotas={"main": quota}, limit_milli=2000)
    cell.submit("t", project="a", tasks=2, priority=50)
    cell.run()
    cell.submit("i", project="a", preemptible=False)
    assert len(stops(cell.run())) == 1
    cell.entitle_to("c", 4, limit_cpu_milli=4000)
    wants = Resources(gpus=1, gpu_milli=1000, cpu_milli=2000)
    cell.submit("ct", project="c", tasks=2, resources=wants, priority=50)
    cell.run()
    cell.submit("ci", project="c", preemptible=False, resources=wants)
    (stop,) = stops(cell.cycle())
    assert cell.task("ci").phase is Phase.PENDING
    cell.run()
    assert cell.task("ci").phase is Phase.RUNNING
    assert stop.task_id.startswith("ct")


def test_what_cannot_be_preempted_stays_within_what_is_deserved() -> None:
    cell = LimitedCell({"n1": 8})
    cell.entitle_to("a", 1, limit=2)
    cell.submit("t", project="a", tasks=2, priority=50)
    cell.run()
    cell.submit("i", project="a", tasks=2, preemptible=False)
    assert len(stops(cell.run())) == 1
    assert cell.held("a") == 2
    group = cell.task("i", 1).group
    assert group is not None
    assert group.waits["main"][0].code is WaitCode.AT_LIMIT


def test_a_task_waits_at_the_limit_until_the_victims_may_be_preempted() -> None:
    cell = LimitedCell({"n1": 8})
    cell.entitle_to("a", 1, limit=1)
    cell.submit("t", project="a", min_runtime_s=600, priority=50)
    cell.run()
    cell.submit("i", project="a", preemptible=False)
    assert stops(cell.run()) == []
    group = cell.task("i").group
    assert group is not None
    wait = group.waits["main"][0]
    assert wait.code is WaitCode.AT_LIMIT
    assert wait.numbers["victims"] == 1
    cell.restart()
    due_ms = cell.machine.due_ms(cell.state)
    while due_ms is not None and due_ms < wait.numbers["until_at_ms"]:
        cell.cycle(after_s=max(1, (due_ms - cell.now_ms) // 1000))
        due_ms = cell.machine.due_ms(cell.state)
    assert due_ms == wait.numbers["until_at_ms"]
    assert len(stops(cell.cycle(after_s=(due_ms - cell.now_ms) / 1000))) == 1
    assert fold(cell.steps).digest() == cell.state.digest()


def test_the_preemption_delay_counts_at_a_limit_too() -> None:
    cell = at_limit(1, preemption_delay_s=100)
    cell.submit("i", project="a", preemptible=False)
    assert stops(cell.cycle()) == []
    assert cell.wait_of("i") is WaitCode.AT_LIMIT
    assert stops(cell.cycle(after_s=99)) == []
    assert len(stops(cell.cycle(after_s=2))) == 1


def test_without_the_action_preempt_a_task_waits_at_the_limit() -> None:
    cell = at_limit(1, actions=["allocate", "reclaim"])
    cell.submit("i", project="a", preemptible=False)
    assert stops(cell.run()) == []
    assert cell.wait_of("i") is WaitCode.AT_LIMIT


def test_a_lower_priority_of_a_running_task_makes_it_a_victim() -> None:
    cell = at_limit(1)
    cell.submit("more", project="a", priority=50)
    cell.run()
    assert cell.wait_of("more") is WaitCode.AT_LIMIT
    cell.set_priority("t0", 60)
    assert len(stops(cell.run())) == 1
    assert cell.task("more").phase is Phase.RUNNING


def test_nothing_else_of_the_project_starts_in_the_place_of_a_victim() -> None:
    cell = at_limit(2)
    cell.submit("i", project="a", preemptible=False, gpus=2)
    cell.cycle()
    cell.submit("small", project="a", priority=50)
    decisions = cell.run()
    starts = [each.task_id[:1] for each in decisions if isinstance(each, SlotsAllocatedV1)]
    assert starts == ["i"]
    assert cell.wait_of("small") is WaitCode.AT_LIMIT


def test_the_slots_are_reserved_with_the_number_of_victims() -> None:
    cell = at_limit(2)
    cell.submit("i", project="a", preemptible=False, gpus=2)
    (event,) = [each for each in cell.cycle() if isinstance(each, SlotsReservedV1)]
    assert event.victims == 2


def test_a_limit_that_is_lowered_below_the_request_drops_the_reservation() -> None:
    cell = at_limit(2)
    cell.submit("i", project="a", preemptible=False, gpus=2)
    cell.cycle()
    cell.entitle_to("a", 1, limit=1)
    cell.limit = 2
    cell.cycle()
    assert cell.task("i").reserved is None
    assert cell.wait_of("i") is WaitCode.EXCEEDS_LIMIT
