"""MeteredLog counts the calls of a log and changes nothing."""

import io
import json

import pytest

from yardmaster_eventlog.errors import AppendOutcomeUnknown, BatchTooLarge, UnknownTopic
from yardmaster_eventlog.memory import MemoryLog
from yardmaster_eventlog.metrics import MeteredLog
from yardmaster_eventlog.port import Partition, Record
from yardmaster_eventlog.testing import Fault, FaultKind, FaultPlan, FaultyLog
from yardmaster_runtime.clock import ManualClock
from yardmaster_runtime.telemetry.log_metrics import EventLogMetrics, family
from yardmaster_runtime.telemetry.port import Telemetry
from yardmaster_schemas.topics import DECISIONS, assignments

AT = Partition(DECISIONS.name)
RECORD = Record(b"main", b"value")


class CountedLog:
    def __init__(self, *faults: Fault) -> None:
        self.clock = ManualClock()
        self.telemetry = Telemetry("scheduler", now_ms=self.clock.now_ms)
        self.plan = FaultPlan(self.clock, faults)
        self.inner = FaultyLog(MemoryLog(self.clock), self.plan)
        self.log = MeteredLog(self.inner, self.clock, EventLogMetrics(self.telemetry))

    def value(self, name: str, **labels: str) -> float | None:
        return self.telemetry.registry.get_sample_value(f"yard_scheduler_{name}", labels)


@pytest.fixture
async def counted() -> CountedLog:
    return await started(CountedLog())


async def started(counted: CountedLog) -> CountedLog:
    await counted.log.create_topics([DECISIONS, assignments("n1"), assignments("n2")])
    return counted


async def test_appends_and_reads_are_counted_by_topic(counted: CountedLog) -> None:
    assert await counted.log.append(AT, [RECORD, RECORD]) == 0
    assert len(await counted.log.read(AT, 0)) == 2
    assert await counted.log.read(AT, 2) == []
    assert counted.value("log_appends_total", topic="decisions") == 1
    assert counted.value("log_records_appended_total", topic="decisions") == 2
    assert counted.value("log_records_read_total", topic="decisions") == 2
    assert counted.value("log_append_seconds_count", topic="decisions") == 1
    assert counted.value("log_appends_waiting") == 0


async def test_the_topics_of_all_nodes_are_one_label(counted: CountedLog) -> None:
    for node in ("n1", "n2"):
        await counted.log.append(Partition(assignments(node).name), [RECORD])
    assert counted.value("log_appends_total", topic="assignments") == 2
    assert family(DECISIONS.name) == DECISIONS.name


def test_a_clock_far_from_a_broker_is_reported_once_until_it_is_right_again() -> None:
    stream = io.StringIO()
    telemetry = Telemetry("gateway", now_ms=ManualClock().now_ms, stream=stream)
    metrics = EventLogMetrics(telemetry)
    for seconds in (-61.0, -86_400.0, 59.0, 60.5):
        metrics.clock_ahead("requests", seconds)
    name, labels = "yard_gateway_clock_ahead_seconds", {"topic": "requests"}
    assert telemetry.registry.get_sample_value(name, labels) == 60.5
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["ahead_s"] for line in lines if line["event"] == "clock_differs"] == [-61.0, 60.5]


async def test_refused_and_unknown_appends_are_counted_separately() -> None:
    counted = await started(CountedLog(Fault(topic=AT.topic, nth=1, kind=FaultKind.LOST)))
    with pytest.raises(AppendOutcomeUnknown):
        await counted.log.append(AT, [RECORD])
    with pytest.raises(BatchTooLarge):
        await counted.log.append(AT, [Record(b"main", b"x" * DECISIONS.max_batch_bytes)])
    with pytest.raises(UnknownTopic):
        await counted.log.append(Partition("nothing"), [RECORD])
    assert (
        counted.value("log_appends_refused_total", topic="decisions", code="batch_too_large") == 1
    )
    assert counted.value("log_appends_refused_total", topic="nothing", code="unknown_topic") == 1
    assert counted.value("log_appends_unknown_total", topic="decisions") == 1
    assert counted.value("log_appends_total", topic="decisions") is None
    assert counted.value("log_appends_waiting") == 0
