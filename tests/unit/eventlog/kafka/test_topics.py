"""Metadata of topics: a missing topic stops a reader, one without a leader does not."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from yardmaster_eventlog.errors import LogUnavailable, UnknownTopic
from yardmaster_eventlog.kafka.log import KafkaLog
from yardmaster_eventlog.kafka.settings import KafkaSettings
from yardmaster_eventlog.port import Partition
from yardmaster_runtime.clock import SystemClock

DECISIONS = Partition("decisions")


class Brokers:
    """Answers to `describe_topics`, one after another; the last again and again."""

    def __init__(self, *answers: tuple[int, Sequence[int]]) -> None:
        self.answers = list(answers)

    async def describe_topics(self, names: Sequence[str]) -> list[dict[str, Any]]:
        code, leaders = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        partitions = [{"leader": leader} for leader in leaders]
        return [{"topic": name, "error_code": code, "partitions": partitions} for name in names]

    async def close(self) -> None:
        return


@pytest.fixture
async def log() -> AsyncIterator[KafkaLog]:
    found = KafkaLog(KafkaSettings(bootstrap="127.0.0.1:9", call_timeout_s=0.5), SystemClock())
    yield found
    await found.close()


async def answered(log: KafkaLog, *answers: tuple[int, Sequence[int]]) -> None:
    await log._admin.close()
    log._admin = Brokers(*answers)
    await log._require(DECISIONS)


async def test_a_missing_topic_is_unknown(log: KafkaLog) -> None:
    with pytest.raises(UnknownTopic):
        await answered(log, (3, []))


async def test_a_missing_partition_is_unknown(log: KafkaLog) -> None:
    with pytest.raises(UnknownTopic):
        await answered(log, (0, []))


@pytest.mark.parametrize("answer", [(0, [1, -1]), (5, [1])])
async def test_a_call_waits_for_a_partition_to_get_a_leader(
    log: KafkaLog, answer: tuple[int, Sequence[int]]
) -> None:
    await answered(log, answer, answer, (0, [1, 1]))


@pytest.mark.parametrize("answer", [(0, [-1]), (5, [])])
async def test_a_partition_that_stays_without_a_leader_is_unavailable_not_unknown(
    log: KafkaLog, answer: tuple[int, Sequence[int]]
) -> None:
    with pytest.raises(LogUnavailable, match="LeaderNotAvailable"):
        await answered(log, answer)


async def test_a_topic_that_this_client_may_not_read_is_reported_at_once(log: KafkaLog) -> None:
    with pytest.raises(LogUnavailable, match="TopicAuthorizationFailed"):
        await answered(log, (29, []))


async def test_added_partitions_are_found(log: KafkaLog) -> None:
    east = Partition("assignments.n1", 1)
    await log._admin.close()
    log._admin = Brokers((0, (1,)), (0, (1, 1)))
    with pytest.raises(UnknownTopic):
        await log._require(east)
    await log._require(east)
