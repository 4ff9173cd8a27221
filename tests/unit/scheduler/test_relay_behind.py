"""The relay while topics of nodes refuse appends: the other nodes continue, and no copy is lost."""

import asyncio
import io
from collections.abc import Sequence
from typing import Self

import pytest

from tests.support.logs import allocated, placed
from tests.unit.scheduler.test_relay import RelayCell, idle, running, task
from yardmaster_eventlog.errors import AppendOutcomeUnknown, LogUnavailable
from yardmaster_eventlog.memory import MemoryLog
from yardmaster_eventlog.port import EventLog, Partition, Record, StoredRecord
from yardmaster_runtime.chance import SeededChance
from yardmaster_runtime.service import Ports
from yardmaster_runtime.settings import RuntimeSettings
from yardmaster_runtime.telemetry.port import Telemetry
from yardmaster_scheduler.copies import BEHIND_HEADER
from yardmaster_scheduler.main import schedule
from yardmaster_scheduler.metrics import ShellMetrics
from yardmaster_scheduler.relay import Relay
from yardmaster_scheduler.settings import ShellLimits
from yardmaster_schemas.topics import TOPICS, Topic, assignments


class NodesLog(MemoryLog):
    """A handle on the nodes' topics, some of which are `shut`, and a count of its calls."""

    def __init__(self, cell: RelayCell) -> None:
        super().__init__(cell.clock, cell.log._shared)
        self.shut: set[str] = set()
        self.refuses = False
        self.created: list[tuple[str, int]] = []

    def _check(self, topic: str) -> None:
        if topic in self.shut:
            raise LogUnavailable(found="LeaderNotAvailableError")

    async def create_topics(self, topics: Sequence[Topic], partitions: int = 1) -> None:
        self.created += [(topic.name, partitions) for topic in topics]
        assert len(self.created) < 50, "it loops without a pause"
        if self.refuses:
            raise LogUnavailable(found="TopicAuthorizationFailedError")
        await super().create_topics(topics, partitions)

    async def append(self, partition: Partition, batch: Sequence[Record]) -> int:
        if partition.topic in self.shut:
            raise AppendOutcomeUnknown(topic=partition.topic, found="not acknowledged")
        return await super().append(partition, batch)

    async def end(self, partition: Partition) -> int:
        self._check(partition.topic)
        return await super().end(partition)

    async def read(
        self,
        partition: Partition,
        offset: int,
        *,
        max_records: int = 1000,
        buffered_only: bool = False,
    ) -> Sequence[StoredRecord]:
        self._check(partition.topic)
        return await super().read(
            partition, offset, max_records=max_records, buffered_only=buffered_only
        )


class SeparateRelayCell(RelayCell):
    """A cell whose relay has a handle of its own for the nodes' topics."""

    async def create(self) -> Self:
        await super().create()
        self.nodes = NodesLog(self)
        self.cycles = 0
        self.metrics: list[ShellMetrics] = []
        return self

    def start(
        self, log: MemoryLog | None = None, *, partition: int = 0, partitions: int = 1
    ) -> Relay:
        found = self.relay()
        self.metrics.append(found._metrics)
        return Relay(
            log or self.log,
            "main",
            clock=self.clock,
            limits=ShellLimits(),
            metrics=found._metrics,
            partition=partition,
            partitions=partitions,
            nodes_log=self.nodes,
        )

    async def place(self, *nodes: str) -> int:
        """A cycle with an allocation on each node; the first one's offset."""
        self.cycles += 1
        self.builder.scheduler.cycle(
            *(
                allocated(task(10 * self.cycles + number), placed(node, number))
                for number, node in enumerate(nodes)
            )
        )
        await self.write()
        # The last record is the commit.
        return self.builder.end("decisions") - 1 - len(nodes)

    async def seconds(self, count: float) -> None:
        for _ in range(int(count * 4)):
            await idle(self)
            self.clock.advance(0.25)
        await idle(self)


@pytest.fixture
async def cell() -> SeparateRelayCell:
    return await SeparateRelayCell().create()


async def test_a_nodes_topic_is_created_for_all_cells(cell: SeparateRelayCell) -> None:
    await cell.place("b")
    async with running(cell.start(partition=0, partitions=3), ["a"]):
        await cell.seconds(1)
    assert await cell.log.end(Partition("assignments.a", 2)) == 0
    assert await cell.log.end(Partition("assignments.b", 2)) == 0


async def test_a_topic_with_too_few_partitions_stops_no_cell_and_causes_no_busy_loop(
    cell: SeparateRelayCell,
) -> None:
    await cell.log.create_topics([assignments("n1")], 1)
    log = MemoryLog(cell.clock)
    await log.create_topics(list(TOPICS.values()), 2)
    cell.builder.scheduler.cycle(
        allocated(task(1), placed("n1", 0)), allocated(task(2), placed("n2", 0))
    )
    for entry in cell.builder.of("decisions"):
        await log.append(Partition("decisions", 1), [entry.record])
    relay = cell.start(log, partition=1, partitions=2)
    async with running(relay, ["n1"]):
        await cell.seconds(4)
    assert await cell.log.end(Partition("assignments.n2", 1)) == 1
    assert set(relay._behind) == {"n1"}
    assert 1 < cell.metrics[0].relay_retries._value.get() < 12


async def test_a_topic_created_again_with_too_few_partitions_ends_no_leadership(
    cell: SeparateRelayCell,
) -> None:
    await cell.log.create_topics([assignments("n1"), assignments("n2")], 2)
    log = MemoryLog(cell.clock)
    await log.create_topics(list(TOPICS.values()), 2)
    cell.builder.scheduler.cycle(
        allocated(task(1), placed("n1", 0)), allocated(task(2), placed("n2", 0))
    )
    for entry in cell.builder.of("decisions"):
        await log.append(Partition("decisions", 1), [entry.record])
    relay = cell.start(log, partition=1, partitions=2)
    async with running(relay, ["n1", "n2"]):
        await cell.seconds(1)
        for node in ("n1", "n2"):
            for partition in range(2):
                del cell.log._shared.sequences[Partition(assignments(node).name, partition)]
        await cell.log.create_topics([assignments("n1")], 1)
        await cell.seconds(31)
        assert await cell.log.end(Partition("assignments.n2", 1)) == 1, "others are copied again"


async def test_a_node_whose_topic_refuses_appends_delays_no_other(cell: SeparateRelayCell) -> None:
    relay = cell.start()
    async with running(relay, ["a", "b"]):
        await cell.seconds(1)
        cell.nodes.shut = {"assignments.a"}
        missed = [await cell.place("a", "b")]
        for _ in range(3):
            await cell.seconds(1)
            missed.append(await cell.place("a", "b"))
        await cell.seconds(2)
        assert len(await cell.relayed("b")) == 4
        assert await cell.relayed("a") == []
        assert cell.metrics[0].relay_behind._value.get() == 1
        cell.nodes.shut = set()
        await cell.seconds(2)
        assert await cell.relayed("a") == missed, "all, in order"
        assert cell.metrics[0].relay_behind._value.get() == 0
        later = await cell.place("a")
        await cell.seconds(1)
        assert await cell.relayed("a") == [*missed, later]


async def test_a_new_relay_copies_what_a_node_missed_before(cell: SeparateRelayCell) -> None:
    async with running(cell.start(), ["a", "b"]):
        await cell.seconds(1)
        cell.nodes.shut = {"assignments.a"}
        missed = await cell.place("a")
        await cell.seconds(2)
        await cell.place("b")
        await cell.seconds(1)
    (copy,) = await cell.copies("b")
    assert dict(copy.record.headers)[BEHIND_HEADER] == str(missed).encode()
    # The takeover finds the topic still away; then it is back.
    async with running(cell.start(), ["a", "b"]):
        await cell.seconds(2)
        assert len(set(await cell.relayed("b"))) == 1
        cell.nodes.shut = set()
        await cell.seconds(2)
    assert set(await cell.relayed("a")) == {missed}


async def test_topics_that_cannot_be_created_end_no_leadership(cell: SeparateRelayCell) -> None:
    await cell.log.create_topics([assignments("a")])
    cell.nodes.refuses = True
    at = await cell.place("a")
    async with running(cell.start(), ["a", "new"]):
        await cell.seconds(2)
        assert await cell.relayed("a") == [at]
        cell.nodes.refuses = False
        await cell.seconds(1)
        assert await cell.log.end(Partition("assignments.new")) == 0


async def test_the_relay_has_its_own_handle_on_the_log(cell: SeparateRelayCell) -> None:
    opened: list[MemoryLog] = []

    async def another_log() -> EventLog:
        opened.append(cell.log.handle())
        return opened[-1]

    ports = Ports(
        log=cell.log,
        clock=cell.clock,
        chance=SeededChance(1),
        telemetry=Telemetry("scheduler", now_ms=cell.clock.now_ms, stream=io.StringIO()),
        another_log=another_log,
    )
    async with asyncio.TaskGroup() as group:
        work = group.create_task(schedule(ports, RuntimeSettings()))
        await cell.seconds(1)
        assert not work.done()
        work.cancel()
    assert len(opened) == 1
