"""The lease: what is held under a fence is over in time, and late word renews nothing."""

import asyncio
from pathlib import Path

import pytest

from yardmaster_node_agent.agent_state import (
    AgentState,
    Assignment,
    Head,
    Offer,
    Replica,
    ReplicaKey,
)
from yardmaster_node_agent.errors import NotRenewed
from yardmaster_node_agent.executors.simulated import BOOT_ID
from yardmaster_node_agent.lease import UNKNOWN_S, FenceExpired, Lease
from yardmaster_node_agent.renewals import MemoryRenewals, Renewal, RenewalFile, Renewals
from yardmaster_runtime.clock import ManualClock
from yardmaster_schemas.events.requests import DetailsRef

LIFE, OTHER = "0" * 12, "1" * 12
TASK = "4kq7w2mz9c1f.0"


def state(*fences: int | None, life: str = LIFE) -> AgentState:
    """The replicas of a node: one for each fence."""
    offer = Offer(pool="default", node_type="any", gpus=8, cpu_milli=0, memory_mib=0)
    made = AgentState(Head(node="n1", incarnation=life, epoch=1, offer=offer, host="0" * 64))
    for index, fence_s in enumerate(fences):
        made.apply(Replica(assignment=assignment(index, fence_s)))
    return made


def assignment(index: int, fence_s: int | None) -> Assignment:
    return Assignment(
        key=ReplicaKey(TASK, 1, index),
        cause="scheduler/main.000000000000/1/1",
        decision=1,
        project="nlp",
        pool="default",
        tasks=1,
        replicas=1,
        slots=(index,),
        gpu_milli=1000,
        cpu_milli=0,
        memory_mib=0,
        master_addr="127.0.0.1",
        master_port=None,
        details=DetailsRef(offset=0, digest="0" * 64),
        checkpoint=None,
        grace_s=None,
        fence_s=fence_s,
    )


class Node:
    """An incarnation that just began."""

    def __init__(self, *fences: int | None) -> None:
        self.clock = ManualClock()
        self.renewals = MemoryRenewals()
        self.state = state(*fences)
        Lease.begin(self.clock, self.renewals, LIFE, BOOT_ID)
        self.lease = self.open()

    def open(self, held: AgentState | None = None, boot_id: str = BOOT_ID) -> Lease:
        return Lease(self.clock, self.renewals, held or self.state, boot_id)

    def beat(self, *, takes_s: float = 0.0) -> None:
        """A heartbeat that is acknowledged after so long."""
        sent_s = self.clock.monotonic_s()
        self.clock.advance(takes_s)
        self.lease.acknowledged(sent_s)


def test_the_shortest_fence_of_all_replicas_counts() -> None:
    node = Node(54, 9, None)
    node.clock.advance(8.9)
    node.lease.check()
    node.clock.advance(0.2)
    with pytest.raises(FenceExpired):
        node.lease.check()


def test_the_lease_counts_from_the_sending_of_the_acknowledged_heartbeat() -> None:
    node = Node(9)
    node.beat(takes_s=8)
    node.clock.advance(0.5)
    node.lease.check()
    node.clock.advance(0.6)
    with pytest.raises(FenceExpired):
        node.lease.check()


def test_a_heartbeat_that_is_acknowledged_too_late_renews_nothing() -> None:
    node = Node(9)
    node.clock.advance(5)
    before = node.renewals.last()
    with pytest.raises(FenceExpired):
        node.beat(takes_s=4.5)
    assert node.renewals.last() == before, "the runners go by what they know"


def test_a_lease_without_fenced_replicas_never_expires() -> None:
    node = Node(None)
    node.clock.advance(1e6)
    node.lease.check()
    node.beat()


def test_an_incarnation_that_was_cut_off_admits_no_attempt_with_a_shorter_fence() -> None:
    node = Node()
    node.lease.admit(9)
    node.clock.advance(30)
    node.beat()
    node.lease.admit(54)
    with pytest.raises(FenceExpired):
        node.lease.admit(9)
    again = node.open()
    with pytest.raises(FenceExpired):
        again.admit(9)
    again.admit(54)


def test_a_restarted_agent_continues_the_same_lease() -> None:
    node = Node(9)
    node.clock.advance(6)
    again = node.open()
    again.check()
    node.clock.advance(4)
    with pytest.raises(FenceExpired):
        node.open().check()


def test_a_renewal_of_another_boot_or_incarnation_is_ignored() -> None:
    node = Node(None)
    for lease in (node.open(boot_id="another"), node.open(state(life=OTHER))):
        assert lease.silent_s >= UNKNOWN_S
        with pytest.raises(FenceExpired):
            lease.admit(86_400)


async def test_the_watch_ends_when_the_fence_expires_and_not_before() -> None:
    node = Node()
    ended: list[str] = []

    async def watch() -> None:
        try:
            await node.lease.watch()
        except FenceExpired as over:
            ended.append(str(over))

    async def passes(seconds: int) -> None:
        for _ in range(seconds * 10):
            node.clock.advance(0.1)
            for _ in range(5):
                await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        group.create_task(watch())
        await passes(2)
        node.state.apply(Replica(assignment=assignment(0, 9)))
        node.lease.admit(9)
        await passes(3)
        node.beat()
        await passes(8)
        assert ended == []
        await passes(2)
    assert [said.partition(" for ")[0] for said in ended] == ["no heartbeat acknowledged"]


@pytest.mark.parametrize("kept", ["memory", "file"])
def test_the_last_renewal_is_kept(tmp_path: Path, kept: str) -> None:
    renewals: Renewals = MemoryRenewals() if kept == "memory" else RenewalFile(tmp_path / "renewed")
    assert renewals.last() is None
    first, last = (Renewal("boot", LIFE, seconds, 0.25) for seconds in (1.0, 12.5))
    renewals.store(first)
    renewals.store(last)
    assert renewals.last() == last


def test_the_renewal_file_is_complete_or_missing(tmp_path: Path) -> None:
    renewals = RenewalFile(tmp_path / "renewed")
    renewals.store(Renewal("boot", LIFE, 12.5, 0.25))
    (tmp_path / "renewed").write_text('{"boot_id": "bo')
    assert renewals.last() is None


def test_a_renewal_that_cannot_be_stored_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NotRenewed, match="missing"):
        RenewalFile(tmp_path / "missing" / "renewed").store(Renewal("boot", LIFE, 12.5, 0.25))
