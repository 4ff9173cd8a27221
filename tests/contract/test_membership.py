"""The contract of groups, for both adapters."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field

import pytest

from tests.contract.conftest import topic
from tests.support.kafka_broker import KafkaBroker
from tests.support.pauses import let_wait_begin
from tests.support.stalls import TRIES, Stalls
from yardmaster_eventlog.errors import LogClosed
from yardmaster_eventlog.kafka.log import KafkaLog, KafkaSettings
from yardmaster_eventlog.kafka.membership import KafkaMembership
from yardmaster_eventlog.membership import Assignment, Membership, MemoryGroup
from yardmaster_runtime.clock import SystemClock

CELLS = 4
PATIENCE_S = 20.0
KINDS = [
    "memory",
    pytest.param("kafka", marks=[pytest.mark.kafka, pytest.mark.xdist_group("kafka")]),
]


@dataclass
class Group:
    """A group under test: `join` makes a member, as another process would be one.

    A task awaits each member's assignments, as elections do; `news` has all of them.
    """

    member: Callable[[], Membership]
    tasks: asyncio.TaskGroup
    members: list[Membership] = field(default_factory=list)
    news: dict[Membership, list[Assignment]] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def join(self, *offers: int) -> Membership:
        member = self.member()
        self.members.append(member)
        for partition in offers:
            member.offer(partition)
        self.news[member] = []
        self.tasks.create_task(self._listen(member))
        return member

    async def has_shares(self, *counts: int) -> list[frozenset[int]]:
        """Wait until the members have these numbers of partitions, in any order."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                self.changed.clear()
                parts = [member.assigned.partitions for member in self.members]
                if sorted(map(len, parts)) == sorted(counts):
                    return parts
                await self.changed.wait()

    async def _listen(self, member: Membership) -> None:
        assigned = member.assigned
        with suppress(LogClosed):
            while True:
                self.news[member].append(assigned)
                self.changed.set()
                assigned = await member.changed(assigned)


@pytest.fixture(params=KINDS)
async def group(request: pytest.FixtureRequest) -> AsyncIterator[Group]:
    clock = SystemClock()
    memory, name = MemoryGroup(), f"group-{uuid.uuid4().hex[:12]}"
    own = topic("own")
    settings = None
    if request.param == "kafka":
        broker: KafkaBroker = request.getfixturevalue("kafka_broker")
        settings = KafkaSettings(bootstrap=broker.bootstrap)
        log = await KafkaLog.open(settings, clock)
        await log.create_topics([own], partitions=CELLS)
        await log.close()

    def member() -> Membership:
        if settings is None:
            return memory.member()
        return KafkaMembership(settings, name, own.name, clock)

    async with asyncio.TaskGroup() as tasks:
        group = Group(member, tasks)
        yield group
        for each in group.members:
            await each.close()


async def has(member: Membership, count: int) -> frozenset[int]:
    """Wait until a member has this number of partitions."""
    async with asyncio.timeout(PATIENCE_S):
        assigned = member.assigned
        while assigned.number == 0 or len(assigned.partitions) != count:
            assigned = await member.changed(assigned)
    return assigned.partitions


async def has_exactly(member: Membership, partitions: set[int]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        assigned = member.assigned
        while assigned.number == 0 or assigned.partitions != partitions:
            assigned = await member.changed(assigned)


async def test_a_lone_member_gets_all_that_it_offers(group: Group) -> None:
    member = group.join(0, 1, 3)
    assert await has(member, 3) == {0, 1, 3}


async def test_members_share_and_a_member_keeps_most_of_its_partitions(group: Group) -> None:
    first = group.join(0, 1, 2, 3)
    await has(first, 4)
    before = len(group.news[first])
    second = group.join(0, 1, 2, 3)
    theirs = await has(second, 2)
    mine = await has(first, 2)
    news = group.news[first]
    assert mine | theirs == {0, 1, 2, 3}
    assert all(mine <= assigned.partitions for assigned in news[before:]), (
        "what stays is never taken away"
    )
    assert [assigned.number for assigned in news] == sorted({each.number for each in news})


async def test_an_odd_number_of_partitions_is_assigned_completely(group: Group) -> None:
    for _ in range(3):
        group.join(0, 1, 2, 3)
    parts = await group.has_shares(1, 1, 2)
    assert frozenset().union(*parts) == {0, 1, 2, 3}


async def test_a_member_that_leaves_is_replaced_within_a_second(group: Group) -> None:
    took_s = 0.0
    for _ in range(TRIES):
        first, second = group.join(0, 1), group.join(0, 1)
        await has(first, 1)
        await has(second, 1)
        async with Stalls() as stalls:
            started_s = time.monotonic()
            await first.close()
            assert await has(second, 2) == {0, 1}
            took_s = time.monotonic() - started_s
        if took_s < 1.0 or not stalls.any:
            break
        await second.close()
    assert took_s < 1.0


async def test_a_member_that_joins_again_gets_a_share(group: Group) -> None:
    first, second = group.join(0, 1), group.join(0, 1)
    await has(second, 1)
    await first.close()
    await has(second, 2)
    third = group.join(0, 1)
    mine, theirs = await has(second, 1), await has(third, 1)
    assert mine | theirs == {0, 1}


async def test_a_withdrawn_partition_goes_to_another_member_and_can_return(group: Group) -> None:
    first, second = group.join(0, 1), group.join(0, 1)
    (mine,) = await has(first, 1)
    await has(second, 1)
    first.withdraw(mine)
    # It gets the other in exchange: each still has as many as can be.
    await has_exactly(second, {mine})
    await has_exactly(first, {1 - mine})
    second.withdraw(mine)
    await has_exactly(second, set())
    first.offer(mine)
    await has_exactly(first, {mine})
    await has_exactly(second, {1 - mine})


async def test_no_member_gets_a_partition_that_it_does_not_offer(group: Group) -> None:
    first, second = group.join(0), group.join(0, 1, 2)
    assert await has(second, 2) == {1, 2}
    assert await has(first, 1) == {0}


async def test_a_group_confirms_exactly_the_partitions_of_a_member(group: Group) -> None:
    first = group.join(0, 1)
    await has(first, 2)
    assert await first.confirmed(0)
    second = group.join(0, 1)
    (mine,) = await has(first, 1)
    (theirs,) = await has(second, 1)
    assert await first.confirmed(mine)
    assert await second.confirmed(theirs)
    assert not await first.confirmed(theirs)
    assert not await first.confirmed(7)


async def test_a_waiting_call_ends_with_log_closed_when_the_member_is_closed(group: Group) -> None:
    member = group.join(0)
    await has(member, 1)

    async def wait() -> None:
        with pytest.raises(LogClosed):
            await member.changed(member.assigned)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(wait())
        tasks.create_task(wait())
        await let_wait_begin()
        await member.close()
        await member.close()
    assert not await member.confirmed(0)
