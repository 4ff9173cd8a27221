"""Kafka's groups alone: killed and stopped members, missing brokers."""

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import pytest

from tests.contract.conftest import topic
from tests.contract.test_membership import has, has_exactly
from tests.support.kafka_broker import KafkaBroker
from tests.support.stalls import TRIES, Stalls
from yardmaster_eventlog.errors import LogClosed
from yardmaster_eventlog.kafka.log import KafkaLog, KafkaSettings
from yardmaster_eventlog.kafka.membership import (
    KafkaMembership,
    StatusListener,
    _Consumer,
    _Listener,
)
from yardmaster_eventlog.membership import Assignment
from yardmaster_runtime.clock import SystemClock

pytestmark = [pytest.mark.kafka, pytest.mark.xdist_group("kafka")]

SESSION_S = 2.0
MEMBER = """
import asyncio, sys
from yardmaster_eventlog.kafka.log import KafkaSettings
from yardmaster_eventlog.kafka.membership import KafkaMembership
from yardmaster_runtime.clock import SystemClock

async def main(bootstrap, group, topic, session_s):
    member = KafkaMembership(
        KafkaSettings(bootstrap=bootstrap), group, topic, SystemClock(),
        session_timeout_s=float(session_s),
    )
    member.offer(0)
    assigned = member.assigned
    while True:
        assigned = await member.changed(assigned)
        print(*sorted(assigned.partitions), flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


class Place:
    """A group and its topic on a broker."""

    def __init__(self, broker: KafkaBroker) -> None:
        self.settings = KafkaSettings(bootstrap=broker.bootstrap, call_timeout_s=3)
        self.group = f"group-{uuid.uuid4().hex[:12]}"
        self.topic = topic("own")
        self.reasons: list[str | None] = []

    async def create(self) -> "Place":
        log = await KafkaLog.open(self.settings, SystemClock())
        await log.create_topics([self.topic], partitions=2)
        await log.close()
        return self

    @asynccontextmanager
    async def member(
        self, *offers: int, on_status: StatusListener | None = None
    ) -> AsyncIterator[KafkaMembership]:
        """A member whose news a task awaits; `on_status`, or else `reasons`, gets each status."""
        member = KafkaMembership(
            self.settings,
            self.group,
            self.topic.name,
            SystemClock(),
            session_timeout_s=SESSION_S,
            on_status=on_status or self.reasons.append,
        )
        for partition in offers:
            member.offer(partition)

        async def listen() -> None:
            seen = Assignment()
            with suppress(LogClosed):
                while True:
                    seen = await member.changed(seen)

        async with asyncio.TaskGroup() as group:
            listening = group.create_task(listen())
            try:
                yield member
            finally:
                listening.cancel()
                await member.close()

    @contextmanager
    def process(self) -> Iterator[subprocess.Popen[bytes]]:
        """A member in a process of its own, which has partition 0."""
        arguments = (self.settings.bootstrap, self.group, self.topic.name, str(SESSION_S))
        with subprocess.Popen(
            [sys.executable, "-c", MEMBER, *arguments], stdout=subprocess.PIPE
        ) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == b"0\n"
                yield process
            finally:
                process.kill()


@pytest.fixture
async def place(kafka_broker: KafkaBroker) -> Place:
    return await Place(kafka_broker).create()


async def test_an_offer_made_while_an_assignment_arrives_counts(
    kafka_broker: KafkaBroker,
) -> None:
    place = await Place(kafka_broker).create()

    def on_status(reason: str | None) -> None:
        # In the middle of aiokafka's own work, the listener may change the offers at once.
        place.reasons.append(reason)
        member.offer(len(place.reasons) % 2)

    async with place.member(on_status=on_status) as member:
        member.offer(0)
        await has_exactly(member, {0, 1})


async def test_a_killed_member_is_replaced_when_its_session_ends(place: Place) -> None:
    least_s, took_s, most_s = SESSION_S - 0.5, 0.0, SESSION_S + 2
    for _ in range(TRIES):
        with place.process() as process:
            async with place.member(0) as member, Stalls() as stalls:
                await has_exactly(member, set())
                killed_s = time.monotonic()
                process.kill()
                await has_exactly(member, {0})
                took_s = time.monotonic() - killed_s
        if least_s < took_s < most_s or not stalls.any:
            break
    assert least_s < took_s < most_s


async def test_a_stopped_member_continues_without_its_former_partitions(
    place: Place,
) -> None:
    with place.process() as process:
        async with place.member(0) as member:
            await has_exactly(member, set())
            os.kill(process.pid, signal.SIGSTOP)
            await has_exactly(member, {0})
            os.kill(process.pid, signal.SIGCONT)
            assert process.stdout is not None
            said = await asyncio.to_thread(process.stdout.readline)
            while said != b"\n":  # an earlier assignment may come first
                said = await asyncio.to_thread(process.stdout.readline)
            assert member.assigned.partitions == {0}


async def test_a_member_fetches_nothing(place: Place) -> None:
    async with place.member(0, 1) as member:
        await has(member, 2)
        assert member._consumer is not None
        assert len(member._consumer.paused()) == 2


async def test_a_cancellation_is_not_lost_while_a_member_leaves(place: Place) -> None:
    for steps in (2**each for each in itertools.count()):
        async with place.member(0) as member:
            await has_exactly(member, {0})
            assert member._consumer is not None
            leaving = asyncio.create_task(member._consumer.leave())
            for _ in range(steps):
                await asyncio.sleep(0)
            if leaving.done():
                break
            leaving.cancel()
            await asyncio.wait([leaving])
            assert leaving.cancelled(), f"cancelled after {steps} steps of the loop, and not heard"


async def test_a_member_whose_client_cancelled_itself_joins_again(place: Place) -> None:
    async with place.member(0) as member:
        await has_exactly(member, {0})
        assert member._consumer is not None
        seen, first = member.assigned, member._consumer
        first._coordinator._coordination_task.cancel()
        async with asyncio.timeout(20):
            assert (await member.changed(seen)).partitions == {0}
        assert member._consumer is not first
        assert any(place.reasons), "the reason is reported"


async def test_assignments_of_a_discarded_client_are_ignored(
    place: Place,
) -> None:
    async with place.member(0) as member:
        await has_exactly(member, {0})
        number = member.assigned.number
        thrown_away = _Consumer(**member._arguments)
        _Listener(member, thrown_away).on_partitions_assigned([])
        assert member.assigned.number == number
        await thrown_away.stop()


async def test_without_a_broker_members_keep_their_partitions(tmp_path: Path) -> None:
    with KafkaBroker(tmp_path) as broker:
        place = await Place(broker).create()
        async with place.member(0, 1) as first, place.member(0, 1) as second:
            await has(first, 1)
            await has(second, 1)
            before = (first.assigned.partitions, second.assigned.partitions)
            broker.kill()
            await asyncio.sleep(SESSION_S + 1)  # longer than a session: the group would expel them
            assert (first.assigned.partitions, second.assigned.partitions) == before
            assert not await first.confirmed(next(iter(first.assigned.partitions)))
            broker.start()
            # The group works again: a third gets the share of the one that leaves.
            async with place.member(0, 1) as third:
                await first.close()
                async with asyncio.timeout(30):
                    # Until the partitions move, both may have the same one.
                    while await has(second, 1) | await has(third, 1) != {0, 1}:  # noqa: ASYNC110
                        await asyncio.sleep(0.05)


async def test_a_member_reports_a_missing_broker_and_joins_when_it_starts(
    tmp_path: Path,
) -> None:
    with KafkaBroker(tmp_path) as broker:
        place = await Place(broker).create()
        broker.stop()
        async with place.member(0) as member:
            async with asyncio.timeout(20):
                while not place.reasons:  # noqa: ASYNC110 a reason rings no bell
                    await asyncio.sleep(0.05)
            assert member.assigned.number == 0
            assert all(place.reasons)
            broker.start()
            await has_exactly(member, {0})
            assert place.reasons[-1] is None
