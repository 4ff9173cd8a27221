"""A policy's stop names the policy and its rule, also where no schema knows the policy."""

from typing import Any
from unittest.mock import patch

import pytest
from pydantic import TypeAdapter

from tests.support.toy_policy import TOY, TOYS
from tests.unit.core.scheduling.reading import all_of, only
from yardmaster_core.scheduling.policies import POLICIES
from yardmaster_core.testing import Cell
from yardmaster_schemas.events import decisions as dec
from yardmaster_schemas.fields import Code
from yardmaster_schemas.reasons import EndCode, PolicyStop, StopCode


def preempting(policy: str = "priority", **options: Any) -> Cell:
    """A cell in which `low` runs on the only node, and `top` has just been submitted."""
    cell = Cell(policy=policy, **options)
    cell.node("n1", gpus=1)
    cell.submit("low", priority=60, runtime_estimate_s=3600)
    cell.cycle()
    cell.starts("low")
    cell.submit("top", priority=10, preemptible=policy in ("priority", TOY.name))
    return cell


def above_a_limit() -> Cell:
    """A cell in which a job holds more GPUs than its new limit."""
    cell = Cell(policy="fair_share")
    cell.node("n1", gpus=2)
    cell.submit("job", tasks=2)
    cell.cycle()
    for index in range(2):
        cell.starts("job", index)
    cell.cycle()
    cell.set_max_slots("job", 1)
    return cell


@pytest.mark.parametrize("policy", ["priority", "fitgpp", "lrtp", "rand"])
def test_a_preemption_names_the_policy_and_its_rule(policy: str) -> None:
    preemption = only(preempting(policy).cycle(), dec.PreemptionRequestedV1)
    stop = preemption.stop
    assert isinstance(stop, PolicyStop)
    assert (stop.policy, stop.code) == (policy, policy)
    assert stop.rule


def test_a_stop_for_no_other_task_names_the_policy_too() -> None:
    stop = only(above_a_limit().cycle(), dec.StopRequestedV1).stop
    assert isinstance(stop, PolicyStop)
    assert (stop.policy, stop.rule, stop.for_task) == ("fair_share", "over_bound", None)


def test_a_stop_that_no_policy_decides_keeps_its_code() -> None:
    cell = preempting()
    cell.cancel("low")
    stop = only(cell.cycle(), dec.StopRequestedV1)
    assert stop.stop.code is StopCode.CANCELLED


def test_a_task_that_a_policy_stopped_is_requeued_with_the_name_of_the_policy() -> None:
    cell = preempting()
    cell.cycle()
    cell.ends("low")
    assert only(cell.cycle(), dec.TaskRequeuedV1).code == "priority"


def test_fitgpp_counts_its_preemptions() -> None:
    cell = preempting("fitgpp")
    cell.cycle()
    assert cell.task("low").preemptions == 1


@patch.dict(POLICIES, TOYS)
def test_a_new_policy_preempts_without_a_new_code() -> None:
    cell = preempting(TOY.name)
    preemption = only(cell.cycle(), dec.PreemptionRequestedV1)
    assert preemption.stop.policy == TOY.name
    assert preemption.stop.rule == "better_priority"
    before = cell.state.digest()
    cell.restart()
    assert cell.state.digest() == before
    run = cell.task("low").run
    assert run is not None
    assert run.stop == preemption.stop
    cell.ends("low")
    decided = cell.cycle()
    assert only(decided, dec.TaskRequeuedV1).code == TOY.name
    assert [event.task_id for event in all_of(decided, dec.SlotsAllocatedV1)] == [
        cell.task("top").id
    ]


def test_no_policy_has_the_name_of_another_reason() -> None:
    """Where users see a stop's code or an attempt's end, they see a policy's name too."""
    names = {policy.name for policy in POLICIES.values()}
    others = {code.value for code in (*StopCode, *EndCode)}
    assert not names & others
    for name in names:
        TypeAdapter(Code).validate_python(name)
