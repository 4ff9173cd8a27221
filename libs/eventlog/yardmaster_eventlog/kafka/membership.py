"""Membership by a Kafka consumer group: what brokers and every Kafka tool know already.

The consumer is subscribed to the machine's own topic, so that the group's assignment shows which
replica leads which cell, but it never fetches a record: its partitions are paused before the first
fetch. `confirmed` commits an offset, which a broker takes from the partition's owner in the current
generation alone; that is all the group's offsets are for.

aiokafka's assignors do not serve here. Its sticky one (0.14) keeps its memory in class attributes,
shared by all consumers of a process, and is never told of generations, so a member that slept
through a takeover counts as much as the one that took over; all of them count partitions from
metadata, which during an outage may show none. So there is one of ours: `spread`, with claims in
the members' user data.

Heartbeats are sent by the event loop that leads: what holds up the loop for a session's length
costs the cells, as it should.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.coordinator.protocol import (
    ConsumerProtocolMemberAssignment,
    ConsumerProtocolMemberMetadata,
)
from aiokafka.errors import ConsumerStoppedError, KafkaError
from aiokafka.protocol.group import LeaveGroupRequest
from pydantic_core import from_json, to_json

from yardmaster_eventlog.errors import LogClosed
from yardmaster_eventlog.kafka.clients import heeded
from yardmaster_eventlog.kafka.settings import KafkaSettings
from yardmaster_eventlog.membership import Assignment, Claim, News, spread
from yardmaster_eventlog.port import Clock

HEARTBEAT_S: Final = 0.25
#: A member that was not heard for so long is out.
SESSION_TIMEOUT_S: Final = 6.0
#: How long leaving may take.
LEAVE_S: Final = 2.0
#: After a failure, until the next attempt to join.
RETRY_S: Final = 1.0
#: aiokafka lets a consumer that fetches nothing leave its group after a while; this one stays.
NEVER_MS: Final = 10**15
#: How long one look for the group's errors takes; they wake it earlier.
LOOK_MS: Final = 60_000
FAILURES: Final = (KafkaError, ConsumerStoppedError, OSError, TimeoutError)

Told = Callable[[str | None], object]


class KafkaMembership:
    """One replica's part in a consumer group of the topic's; see `Membership`.

    It joins once it has something to offer and somebody waits for news. `told` is called with the
    reason whenever the group cannot be taken part in, and with None when it can.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        group: str,
        topic: str,
        clock: Clock,
        *,
        session_timeout_s: float = SESSION_TIMEOUT_S,
        told: Told = lambda reason: None,
    ) -> None:
        self._news = News()
        self._assignor = Assignor(topic)
        self._topic = topic
        self._clock = clock
        self._told = told
        self._session_timeout_s = session_timeout_s
        self._look = asyncio.Lock()
        self._consumer: _Consumer | None = None
        #: From when the group is told to share out, until it has.
        self._sharing = False
        self._arguments: dict[str, Any] = settings.client() | {
            "group_id": group,
            "session_timeout_ms": int(session_timeout_s * 1000),
            "rebalance_timeout_ms": int(session_timeout_s * 1000),
            "heartbeat_interval_ms": int(min(HEARTBEAT_S, session_timeout_s / 4) * 1000),
            # A join is answered when the others have joined too, or were waited for long enough.
            "request_timeout_ms": int(max(settings.call_timeout_s, 2 * session_timeout_s) * 1000),
            "max_poll_interval_ms": NEVER_MS,
            "partition_assignment_strategy": (self._assignor,),
            "enable_auto_commit": False,
            "auto_offset_reset": "latest",
        }

    @property
    def assigned(self) -> Assignment:
        """The newest assignment."""
        return self._news.assigned

    def offer(self, partition: int) -> None:
        """From now on this member can lead the partition."""
        self._offer(self._assignor.offers | {partition})

    def withdraw(self, partition: int) -> None:
        """From now on it cannot."""
        self._offer(self._assignor.offers - {partition})

    async def changed(self, seen: Assignment) -> Assignment:
        """Wait until there is another assignment than `seen`."""
        if self._news.closed or self._news.assigned.number != seen.number:
            return await self._news.other_than(seen)
        async with asyncio.TaskGroup() as group:
            look = group.create_task(self._keep())
            with suppress(LogClosed):  # a group wraps what its body raises: it is raised below
                await self._news.other_than(seen)
            look.cancel()
        return await self._news.other_than(seen)

    async def confirmed(self, partition: int) -> bool:
        """Whether the group says now that this member has the partition."""
        consumer, at = self._consumer, TopicPartition(self._topic, partition)
        if consumer is None or partition not in self.assigned.partitions:
            return False
        try:
            async with asyncio.timeout(self._session_timeout_s):
                await consumer.commit({at: 0})
        except FAILURES:
            return False
        return partition in self.assigned.partitions

    async def close(self) -> None:
        """Leave the group at once."""
        self._news.close()
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await consumer.leave()

    def _offer(self, partitions: frozenset[int]) -> None:
        if partitions == self._assignor.offers:
            return
        self._assignor.offers = partitions
        if self._consumer is not None and not self._sharing:
            self._subscribe(self._consumer)

    async def _join(self) -> None:
        consumer = _Consumer(**self._arguments)
        try:
            await consumer.start()
            self._subscribe(consumer)
        except BaseException:
            await consumer.leave()
            raise
        self._consumer = consumer

    def _subscribe(self, consumer: "_Consumer") -> None:
        """Say what is offered; where the group was joined already, this has it share out anew.

        Not while it does: aiokafka (0.14) would then now and then cancel a heartbeat before its
        first step, which ends its own coordination too, in silence.
        """
        self._sharing = True
        consumer.subscribe([self._topic], listener=_Listener(self, consumer))

    async def _keep(self) -> None:
        """Look for the group's errors; after one, join anew. One of those that wait does."""
        async with self._look:
            while not self._news.closed:
                try:
                    if self._consumer is None:
                        await self._join()
                    else:
                        # No record ever comes; what went wrong in the group does.
                        await self._consumer.getmany(timeout_ms=LOOK_MS)
                # A leader must not fall with its client, nor stop looking where aiokafka's own
                # coordination was cancelled, which it raises here.
                except (Exception, asyncio.CancelledError) as error:
                    task = asyncio.current_task()
                    if task is not None and task.cancelling():
                        raise
                    self._told(_said(error))
                    # Taken first: cancelled while it leaves, it is not used again.
                    consumer, self._consumer = self._consumer, None
                    if consumer is not None:
                        await consumer.leave()
                    await self._clock.sleep(RETRY_S)

    def begin(self, consumer: "_Consumer") -> None:
        """The group shares out anew; of a consumer that was thrown away that says nothing."""
        self._sharing |= consumer is self._consumer

    def give(self, consumer: "_Consumer", partitions: Iterable[int]) -> None:
        """The group's word; what a consumer that was thrown away is told is nothing."""
        if consumer is not self._consumer:
            return
        self._told(None)
        self._news.tell(frozenset(partitions))
        # Not now: aiokafka calls this in the middle of its own work.
        asyncio.get_running_loop().call_soon(self._shared)

    def _shared(self) -> None:
        self._sharing = False
        if self._consumer is not None and self._assignor.offers != self._assignor.told:
            self._subscribe(self._consumer)


class Assignor:
    """`spread` as aiokafka asks for an assignor: an object for each member, with a memory.

    A claim travels in a member's user data, as JSON; what was given, with its rounds, in that of
    the assignment.
    """

    name = "yardmaster-cells"

    def __init__(self, topic: str) -> None:
        self.offers: frozenset[int] = frozenset()
        #: What the group was told last of these.
        self.told: frozenset[int] = frozenset()
        self._topic = topic
        self._given = Claim()

    def metadata(self, topics: Iterable[str]) -> ConsumerProtocolMemberMetadata:
        """What this member says when it joins."""
        given = self._given
        self.told = self.offers
        said = {"offers": sorted(self.offers), "holds": given.holds, "round": given.round}
        return ConsumerProtocolMemberMetadata(0, list(topics), to_json(said))

    def assign(
        self, cluster: object, members: Mapping[str, ConsumerProtocolMemberMetadata]
    ) -> dict[str, ConsumerProtocolMemberAssignment]:
        """What each gets, when this member is the one to say."""
        claims = {name: _claim(member.user_data) for name, member in members.items()}
        now = max(claim.round for claim in claims.values()) + 1
        return {
            name: ConsumerProtocolMemberAssignment(
                0,
                [(self._topic, sorted(given))],
                to_json({"holds": given, "round": now}),
            )
            for name, given in spread(claims).items()
        }

    def on_assignment(self, assignment: ConsumerProtocolMemberAssignment) -> None:
        """What this member got."""
        self._given = _claim(assignment.user_data)


def _claim(said: bytes) -> Claim:
    found = from_json(said)
    return Claim(
        frozenset(found.get("offers", ())),
        {int(number): since for number, since in found["holds"].items()},
        found["round"],
    )


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    """Told by aiokafka; what was assigned stands until something else is."""

    def __init__(self, membership: KafkaMembership, consumer: "_Consumer") -> None:
        self._membership = membership
        self._consumer = consumer

    def on_partitions_revoked(self, revoked: object) -> None:
        """A rebalance begins."""
        self._membership.begin(self._consumer)

    def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        """A rebalance has ended."""
        there = sorted(assigned)
        self._consumer.pause(*there)
        self._membership.give(self._consumer, (at.partition for at in there))


class _Consumer(AIOKafkaConsumer):  # type: ignore[misc]
    """aiokafka's consumer, which also leaves in bounded time.

    Its `stop` waits for a join under way, and so for other members, and for brokers that do not
    answer. Nothing public does less; the lock holds aiokafka's version.
    """

    async def leave(self) -> None:
        """Leave the group, as far as that takes LEAVE_S, and close all connections."""
        try:
            async with asyncio.timeout(LEAVE_S), heeded():
                await self.stop()
        except asyncio.CancelledError:
            await self._abandon()
            raise
        except Exception:  # noqa: BLE001 it is thrown away, and must not hold up who does it
            await self._abandon()

    async def _abandon(self) -> None:
        coordinator, fetcher = self._coordinator, self._fetcher
        if coordinator is not None and coordinator.coordinator_id and coordinator.member_id:
            # Over another connection: a broker answers this one's join first.
            request = LeaveGroupRequest(coordinator.group_id, coordinator.member_id)
            with suppress(Exception):
                async with asyncio.timeout(LEAVE_S / 2):
                    await self._client.send(coordinator.coordinator_id, request)
        with suppress(Exception):
            async with asyncio.timeout(LEAVE_S), heeded():
                if coordinator is not None:
                    await coordinator._stop_heartbeat_task()
                    await coordinator._stop_commit_offsets_refresh_task()
                if fetcher is not None:
                    await fetcher.close()
                await self._client.close()


def _said(error: BaseException) -> str:
    return f"{type(error).__name__} {error}".strip()
