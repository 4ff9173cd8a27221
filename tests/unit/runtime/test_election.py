"""Elections in a group: which member wins a cell, and when a fenced one wins again."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from yardmaster_eventlog.membership import MemoryGroup, MemoryMembership
from yardmaster_runtime.clock import ManualClock
from yardmaster_runtime.machine.election import GroupElection, SoleCandidate

PAUSE_S = 6.0


class Replica:
    """A member with an election for each of its cells."""

    def __init__(self, group: MemoryGroup, clock: ManualClock, cells: int = 1) -> None:
        self.member: MemoryMembership = group.member()
        self.elections = [
            GroupElection(self.member, number, clock, pause_s=PAUSE_S) for number in range(cells)
        ]

    @property
    def election(self) -> GroupElection:
        return self.elections[0]


async def run_others() -> None:
    """Run all other tasks until each of them waits."""
    for _ in range(20):
        await asyncio.sleep(0)


@asynccontextmanager
async def waiting(work: Coroutine[Any, Any, object]) -> AsyncIterator[asyncio.Task[object]]:
    """Run `work` during the block."""
    async with asyncio.TaskGroup() as group:
        task = group.create_task(work)
        await run_others()
        yield task
        task.cancel()


async def test_a_lone_member_wins_its_cell_at_once() -> None:
    replica = Replica(MemoryGroup(), ManualClock())
    await replica.election.won()


async def test_a_second_member_wins_when_the_first_has_left() -> None:
    group, clock = MemoryGroup(), ManualClock()
    first, second = Replica(group, clock), Replica(group, clock)
    await first.election.won()
    async with waiting(second.election.won()) as won:
        assert not won.done()
        await first.member.close()
        await won


async def test_a_member_wins_no_cell_that_it_still_has_to_restore() -> None:
    group, clock = MemoryGroup(), ManualClock()
    first, second = Replica(group, clock, cells=2), Replica(group, clock, cells=2)
    for election in first.elections:
        await election.won()
    async with waiting(first.elections[1].lost()) as lost:
        async with waiting(second.elections[1].won()) as won:
            await won
        await lost
    assert second.member.assigned.partitions == {1}


async def test_a_leader_loses_only_when_another_member_gets_its_cell() -> None:
    group, clock = MemoryGroup(), ManualClock()
    first, second = Replica(group, clock, cells=2), Replica(group, clock, cells=2)
    for election in first.elections:
        await election.won()
    async with (
        waiting(first.elections[0].lost()) as kept,
        waiting(first.elections[1].lost()) as lost,
        waiting(second.elections[1].won()),
    ):
        await lost
        assert not kept.done()


async def test_a_fenced_candidate_wins_again_after_a_new_assignment() -> None:
    group, clock = MemoryGroup(), ManualClock()
    first, second = Replica(group, clock), Replica(group, clock)
    await first.election.won()
    first.election.on_fenced()
    async with waiting(first.election.won()) as again:
        assert not again.done()
        async with waiting(second.election.won()):
            await again


async def test_a_fenced_candidate_wins_again_after_a_pause_when_the_group_confirms_it() -> None:
    group, clock = MemoryGroup(), ManualClock()
    first = Replica(group, clock)
    await first.election.won()
    first.election.on_fenced()
    async with waiting(first.election.won()) as again:
        clock.advance(PAUSE_S - 0.1)
        await run_others()
        assert not again.done()
        clock.advance(0.2)
        await again


async def test_a_fenced_candidate_that_was_removed_from_the_group_does_not_win_again() -> None:
    group, clock = MemoryGroup(), ManualClock()
    first, second = Replica(group, clock), Replica(group, clock)
    await first.election.won()
    async with waiting(second.election.won()) as won:
        group.expire(first.member)
        await won
    first.election.on_fenced()
    assert first.member.assigned.partitions == {0}, "the group did not notify it"
    async with waiting(first.election.won()) as again:
        for _ in range(5):
            clock.advance(PAUSE_S)
            await run_others()
        assert not again.done()
        # Back in the group it learns that another member has the cell, and wins after its exit.
        group.rebalance(first.member)
        await run_others()
        assert not again.done()
        assert first.member.assigned.partitions == frozenset()
        await second.member.close()
        await again


async def test_a_stopped_machine_leaves_its_cell_to_another_member() -> None:
    group, clock = MemoryGroup(), ManualClock()
    first, second = Replica(group, clock), Replica(group, clock)
    await first.election.won()
    async with waiting(second.election.won()) as won:
        first.election.withdraw()
        await won


async def test_a_candidate_that_restores_leaves_its_cell_to_a_standby() -> None:
    group, clock = MemoryGroup(), ManualClock()
    first, second = Replica(group, clock), Replica(group, clock)
    await first.election.won()
    async with waiting(second.election.won()) as won:
        assert not won.done()
        first.election.on_restore()
        await won
    assert first.member.assigned.partitions == set()


async def test_a_candidate_without_rivals_wins_again_after_a_restore() -> None:
    replica = Replica(MemoryGroup(), ManualClock())
    await replica.election.won()
    replica.election.on_restore()
    await replica.election.won()
    sole = SoleCandidate()
    sole.on_restore()
    await sole.won()
