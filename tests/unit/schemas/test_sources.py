"""The author of a record, by its source."""

import pytest

from yardmaster_schemas.sources import agent_source, written_by_agent

LIFE, OTHER = "0123456789ab", "ba9876543210"


def test_an_agents_source_names_its_node_and_incarnation() -> None:
    assert agent_source("gpu-07", LIFE) == "node/gpu-07.0123456789ab"


def test_the_agent_of_a_node_writes_its_records() -> None:
    assert written_by_agent(agent_source("gpu-07", LIFE), "gpu-07", LIFE)
    assert written_by_agent(agent_source("gpu-07", LIFE), "gpu-07")


@pytest.mark.parametrize(
    "source",
    [
        "node/gpu-07",
        "node/gpu-08",
        "node/gpu-08.0123456789ab",
        "node/gpu-07.0123456789a",
        "node/gpu-07.0123456789abc",
        "node/gpu-07.0123456789AB",
        "node/gpu-07.0123456789ab.0123456789ab",
        "scheduler/gpu-07.0123456789ab",
        "gateway/gpu-07",
    ],
)
def test_no_other_source_may_report_for_a_node(source: str) -> None:
    assert not written_by_agent(source, "gpu-07", LIFE)
    assert not written_by_agent(source, "gpu-07")


def test_another_incarnation_may_not_report_for_this_one() -> None:
    assert not written_by_agent(agent_source("gpu-07", OTHER), "gpu-07", LIFE)
    assert written_by_agent(agent_source("gpu-07", OTHER), "gpu-07")
