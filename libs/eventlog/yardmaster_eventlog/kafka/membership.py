"""Membership by a Kafka consumer group, which every Kafka tool can show.

The consumer subscribes to the machine's own topic, so that the group's assignment shows which
replica leads which cell, but it never fetches a record: its partitions are paused before the first
fetch. `confirmed` commits an offset, which a broker accepts only from the partition's owner in the
current generation; the group's offsets have no other use.

aiokafka's assignors are not usable here. The sticky one (0.14) keeps its state in class attributes,
which all consumers of a process share, and it ignores generations, so that a member that missed a
takeover counts as much as the member that took over. All of aiokafka's assignors count partitions
from metadata, which may show none during an outage. `Assignor` uses `spread` instead, with claims
in the members' user data.

The event loop of the leader sends the heartbeats: a process that blocks the loop for a session
timeout loses its cells, as it should.
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
from yardmaster_eventlog.kafka.clients import cancel_safe
from yardmaster_eventlog.kafka.settings import KafkaSettings
from yardmaster_eventlog.membership import Assignment, AssignmentNews, CellClaim, spread
from yardmaster_eventlog.port import Clock

HEARTBEAT_S: Final = 0.25
#: A member without a heartbeat for so long is removed.
SESSION_TIMEOUT_S: Final = 6.0
#: The most time for leaving the group.
LEAVE_S: Final = 2.0
#: The pause after a failure, before the next attempt to join.
RETRY_S: Final = 1.0
#: aiokafka removes a consumer that fetches nothing for so long from its group; this one stays.
NEVER_MS: Final = 10**15
#: How long one wait for the group's errors lasts; an error ends it earlier.
LOOK_MS: Final = 60_000
FAILURES: Final = (KafkaError, ConsumerStoppedError, OSError, TimeoutError)

StatusListener = Callable[[str | None], object]


class KafkaMembership:
    """One replica's membership in a consumer group of the topic; see `Membership`.

    The replica joins when it has offered a partition and a caller waits for an assignment.
    `on_status` is called with the reason when the group is unavailable, and with None when it is
    available again.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        group: str,
        topic: str,
        clock: Clock,
        *,
        session_timeout_s: float = SESSION_TIMEOUT_S,
        on_status: StatusListener = lambda reason: None,
    ) -> None:
        self._news = AssignmentNews()
        self._assignor = Assignor(topic)
        self._topic = topic
        self._clock = clock
        self._on_status = on_status
        self._session_timeout_s = session_timeout_s
        self._look = asyncio.Lock()
        self._consumer: _Consumer | None = None
        #: Whether a rebalance was requested or is under way.
        self._sharing = False
        self._arguments: dict[str, Any] = settings.client() | {
            "group_id": group,
            "session_timeout_ms": int(session_timeout_s * 1000),
            "rebalance_timeout_ms": int(session_timeout_s * 1000),
            "heartbeat_interval_ms": int(min(HEARTBEAT_S, session_timeout_s / 4) * 1000),
            # A join is answered when the other members have joined too, or have timed out.
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
        """Offer to lead a partition from now on."""
        self._offer(self._assignor.offers | {partition})

    def withdraw(self, partition: int) -> None:
        """Withdraw the offer to lead a partition."""
        self._offer(self._assignor.offers - {partition})

    async def changed(self, seen: Assignment) -> Assignment:
        """Wait for an assignment other than `seen`."""
        if self._news.closed or self._news.assigned.number != seen.number:
            return await self._news.other_than(seen)
        async with asyncio.TaskGroup() as group:
            look = group.create_task(self._keep())
            with suppress(LogClosed):  # a task group would wrap it; it is raised below
                await self._news.other_than(seen)
            look.cancel()
        return await self._news.other_than(seen)

    async def confirmed(self, partition: int) -> bool:
        """Ask the group now whether the partition is assigned to this member."""
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
        """Set the offers and publish them; during a rebalance, they are published at its end."""
        if partitions == self._assignor.offers:
            return
        self._assignor.offers = partitions
        if self._consumer is not None and not self._sharing:
            self._subscribe(self._consumer)

    async def _join(self) -> None:
        """Connect a new consumer and let it join the group."""
        consumer = _Consumer(**self._arguments)
        try:
            await consumer.start()
            self._subscribe(consumer)
        except BaseException:
            await consumer.leave()
            raise
        self._consumer = consumer

    def _subscribe(self, consumer: "_Consumer") -> None:
        """Publish the offers; if the member has joined already, this starts a rebalance.

        Callers must not call it during a rebalance: aiokafka (0.14) would sometimes cancel a
        heartbeat before its first step, which silently ends aiokafka's own coordination as well.
        """
        self._sharing = True
        consumer.subscribe([self._topic], listener=_Listener(self, consumer))

    async def _keep(self) -> None:
        """Watch for the group's errors and join again after one; one call at a time does so."""
        async with self._look:
            while not self._news.closed:
                try:
                    if self._consumer is None:
                        await self._join()
                    else:
                        # `getmany` never returns records here, but raises the errors of the group.
                        await self._consumer.getmany(timeout_ms=LOOK_MS)
                # A leader must survive the failure of its client, and keep watching when aiokafka's
                # own coordination was cancelled, which aiokafka raises here.
                except (Exception, asyncio.CancelledError) as error:
                    task = asyncio.current_task()
                    if task is not None and task.cancelling():
                        raise
                    self._on_status(_described(error))
                    # The attribute is cleared first: if this task is cancelled now, the failed
                    # consumer is not used again.
                    consumer, self._consumer = self._consumer, None
                    if consumer is not None:
                        await consumer.leave()
                    await self._clock.sleep(RETRY_S)

    def begin_rebalance(self, consumer: "_Consumer") -> None:
        """Note a rebalance, unless the consumer was discarded."""
        self._sharing |= consumer is self._consumer

    def assign(self, consumer: "_Consumer", partitions: Iterable[int]) -> None:
        """Take the group's assignment, unless the consumer was discarded."""
        if consumer is not self._consumer:
            return
        self._on_status(None)
        self._news.publish(frozenset(partitions))
        # The rebalance ends later, because aiokafka calls this in the middle of its own work.
        asyncio.get_running_loop().call_soon(self._end_rebalance)

    def _end_rebalance(self) -> None:
        self._sharing = False
        if self._consumer is not None and self._assignor.offers != self._assignor.published:
            self._subscribe(self._consumer)


class Assignor:
    """`spread` in the form of an aiokafka assignor; one object for each member holds its state.

    A claim is sent as JSON in a member's user data; the assigned partitions with their rounds are
    in the user data of the assignment.
    """

    name = "yardmaster-cells"

    def __init__(self, topic: str) -> None:
        self.offers: frozenset[int] = frozenset()
        #: The offers that the group knows.
        self.published: frozenset[int] = frozenset()
        self._topic = topic
        self._given = CellClaim()

    def metadata(self, topics: Iterable[str]) -> ConsumerProtocolMemberMetadata:
        """Return what this member sends when it joins."""
        given = self._given
        self.published = self.offers
        claim = {"offers": sorted(self.offers), "holds": given.holds, "round": given.round}
        return ConsumerProtocolMemberMetadata(0, list(topics), to_json(claim))

    def assign(
        self, cluster: object, members: Mapping[str, ConsumerProtocolMemberMetadata]
    ) -> dict[str, ConsumerProtocolMemberAssignment]:
        """Return the assignment of each member, when the group has chosen this one to assign."""
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
        """Store this member's assignment."""
        self._given = _claim(assignment.user_data)


def _claim(user_data: bytes) -> CellClaim:
    found = from_json(user_data)
    return CellClaim(
        frozenset(found.get("offers", ())),
        {int(number): since for number, since in found["holds"].items()},
        found["round"],
    )


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    """Called by aiokafka; an assignment is valid until the next one."""

    def __init__(self, membership: KafkaMembership, consumer: "_Consumer") -> None:
        self._membership = membership
        self._consumer = consumer

    def on_partitions_revoked(self, revoked: object) -> None:
        """Note that a rebalance begins."""
        self._membership.begin_rebalance(self._consumer)

    def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        """Pass the group's new assignment on: a rebalance has ended."""
        there = sorted(assigned)
        self._consumer.pause(*there)
        self._membership.assign(self._consumer, (at.partition for at in there))


class _Consumer(AIOKafkaConsumer):  # type: ignore[misc]
    """aiokafka's consumer, which can also leave in bounded time.

    aiokafka's `stop` waits for a join under way, so it waits for other members, and for brokers
    that do not answer. aiokafka has no public method that does less, so `leave` uses aiokafka's
    internals; the lock file fixes the version of aiokafka.
    """

    async def leave(self) -> None:
        """Leave the group, within LEAVE_S, and close all connections."""
        try:
            async with asyncio.timeout(LEAVE_S), cancel_safe():
                await self.stop()
        except asyncio.CancelledError:
            await self._abandon()
            raise
        except Exception:  # noqa: BLE001 a discarded consumer must not stop its caller
            await self._abandon()

    async def _abandon(self) -> None:
        coordinator, fetcher = self._coordinator, self._fetcher
        if coordinator is not None and coordinator.coordinator_id and coordinator.member_id:
            # The request goes over another connection: on the connection of the join, the broker
            # answers the join first.
            request = LeaveGroupRequest(coordinator.group_id, coordinator.member_id)
            with suppress(Exception):
                async with asyncio.timeout(LEAVE_S / 2):
                    await self._client.send(coordinator.coordinator_id, request)
        with suppress(Exception):
            async with asyncio.timeout(LEAVE_S), cancel_safe():
                if coordinator is not None:
                    await coordinator._stop_heartbeat_task()
                    await coordinator._stop_commit_offsets_refresh_task()
                if fetcher is not None:
                    await fetcher.close()
                await self._client.close()


def _described(error: BaseException) -> str:
    return f"{type(error).__name__} {error}".strip()
