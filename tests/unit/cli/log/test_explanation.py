"""`yard explain` of a log shows the policy of a stop as its code."""

from typing import Any
from unittest.mock import patch

import pytest

from tests.support.toy_policy import TOY, TOYS
from yardmaster_cli.log.explanation import _as_answer
from yardmaster_core.scheduling.policies import POLICIES
from yardmaster_core.testing import Cell
from yardmaster_runtime.replay.explain import explain
from yardmaster_schemas.events.node_events import ShareLimits
from yardmaster_schemas.resources import Resources


def explained(policy: str) -> dict[str, Any]:
    """The answer about a task that the policy preempts."""
    cell = Cell(policy=policy)
    cell.node("n1", gpus=1)
    cell.submit("low", priority=60)
    cell.cycle()
    cell.starts("low")
    cell.submit("top", priority=10, preemptible=False)
    cell.cycle()
    return _as_answer(explain(cell.state, cell.task("low").id))


@pytest.mark.parametrize("policy", ["priority", "fitgpp", "lrtp", "rand"])
def test_the_policy_of_a_stop_is_shown_as_its_code(policy: str) -> None:
    assert explained(policy)["stop"]["code"] == policy


def test_the_nodes_that_do_not_enforce_shares_are_named() -> None:
    cell = Cell()
    cell.node("n1", gpus=1)
    cell.submit("share", resources=Resources(gpus=1, gpu_milli=500))
    cell.node("n2", gpus=1)
    cell.submit("whole", gpus=1)

    def named(job: str) -> Any:
        answer = _as_answer(explain(cell.state, cell.task(job).id))
        return answer["nodes_without_share_limits"]

    cell.cycle()
    (node,) = named("share")
    assert named("whole") == []
    cell.node(node, gpus=1, share_limits=ShareLimits.MPS)
    cell.cycle()
    assert named("share") == []


@patch.dict(POLICIES, TOYS)
def test_a_policy_that_no_schema_knows_is_shown_as_the_code_of_the_stop() -> None:
    stop = explained(TOY.name)["stop"]
    assert (stop["code"], stop["rule"]) == (TOY.name, "better_priority")
