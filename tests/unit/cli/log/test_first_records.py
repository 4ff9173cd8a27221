"""A log's first records: once for each cell, whole, and the same however often it is asked."""

from typing import Any

import pytest

from yardmaster_cli.commands.dev import POLICY_NAMES
from yardmaster_cli.errors import BadUsage, CliError, Exit
from yardmaster_cli.log.first_records import Site, set_up
from yardmaster_cli.policy_spec import PolicySpec, checked_policy
from yardmaster_eventlog.codec import decode
from yardmaster_eventlog.memory import MemoryLog
from yardmaster_eventlog.port import Partition
from yardmaster_runtime.chance import SeededChance
from yardmaster_runtime.clock import ManualClock
from yardmaster_schemas.events.requests import LogCreatedV1, LogMode, PoolChangeRequestedV1
from yardmaster_schemas.log_format import LOG_FORMAT
from yardmaster_schemas.topics import TOPICS

FIRST = ["LogCreated", "PoolChangeRequested", "DepartmentChangeRequested", "ProjectChangeRequested"]


class Made:
    """A log in memory and what was set up in it."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.log = MemoryLog(self.clock)

    async def set_up(self, *cells: str, seed: int = 1, **site: Any) -> Any:
        asked = Site(**{"mode": LogMode.KAFKA, "cells": cells, **site})
        return await set_up(self.log, self.clock, SeededChance(seed), asked)

    async def events(self, number: int = 0) -> list[Any]:
        stored = await self.log.read(Partition("requests", number), 0)
        return [decode(each.record).data for each in stored]


async def test_a_new_log_begins_with_its_identity_and_what_a_first_job_needs() -> None:
    made = Made()
    policy = PolicySpec(options={"preemption": False})
    found = await made.set_up("main", nodes=("node-1", "node-2"), policy=policy)
    events = await made.events()
    assert [event.TYPE for event in events] == FIRST
    assert events[0] == LogCreatedV1(
        log_id=found.log_id, mode=LogMode.KAFKA, cell="main", format=LOG_FORMAT
    )
    assert isinstance(events[1], PoolChangeRequestedV1)
    assert events[1].config.policy.options == {"preemption": False}
    assert await made.log.end(Partition("assignments.node-2")) == 0


async def test_every_topic_has_a_partition_for_every_cell() -> None:
    made = Made()
    found = await made.set_up("main", "east")
    assert found.new_cells == ("main", "east")
    for topic in TOPICS:
        await made.log.end(Partition(topic, 1))
    main, east = await made.events(0), await made.events(1)
    assert [event.TYPE for event in east] == FIRST
    assert (main[0].cell, east[0].cell) == ("main", "east")
    assert main[0].log_id == east[0].log_id


async def test_a_later_setup_changes_nothing() -> None:
    made = Made()
    first = await made.set_up("main", "east")
    for seed in range(2, 5):
        again = await made.set_up("main", "east", seed=seed)
        assert (again.log_id, again.new_cells) == (first.log_id, ())
    assert len(await made.events(0)) == len(await made.events(1)) == 4


async def test_a_setup_cut_short_between_two_cells_is_finished_with_the_same_identity() -> None:
    made = Made()
    await made.log.create_topics(list(TOPICS.values()), 2)
    first = await made.set_up("main")
    again = await made.set_up("main", "east", seed=2)
    assert again.new_cells == ("east",)
    assert again.log_id == first.log_id
    assert (await made.events(1))[0].log_id == first.log_id


@pytest.mark.parametrize(
    ("cells", "says"),
    [
        (("east", "main"), "contains cell main, not the cell east"),
        (("main", "east", "west"), "no partition 2 for the cell west"),
    ],
)
async def test_other_cells_than_the_log_was_made_for_are_refused(
    cells: tuple[str, ...], says: str
) -> None:
    made = Made()
    await made.set_up("main", "east")
    with pytest.raises(CliError, match=says) as caught:
        await made.set_up(*cells)
    assert caught.value.exit_code == Exit.CONFLICT
    assert len(await made.events(0)) == len(await made.events(1)) == 4


async def test_another_modes_log_is_refused() -> None:
    made = Made()
    await made.set_up("main", mode=LogMode.EMBEDDED)
    with pytest.raises(CliError, match="mode embedded, not kafka"):
        await made.set_up("main")


@pytest.mark.parametrize(
    "policy", [PolicySpec(name="nonsense"), PolicySpec(options={"nonsense": True})]
)
async def test_a_policy_that_is_not_there_is_bad_usage(policy: PolicySpec) -> None:
    made = Made()
    with pytest.raises(CliError) as caught:
        await made.set_up("main", policy=policy)
    assert caught.value.exit_code == Exit.USAGE
    assert await made.log.end(Partition("requests")) == 0


def test_the_help_of_yard_dev_lists_exactly_the_policies_of_a_log() -> None:
    for name in POLICY_NAMES:
        assert checked_policy(PolicySpec(name=name)).name == name
    with pytest.raises(BadUsage) as caught:
        checked_policy(PolicySpec(name="nonsense"))
    assert caught.value.hint == f"policies: {', '.join(POLICY_NAMES)}"
