"""The check of topics' settings: each difference and each refusal is reported once and counted."""

import io
import json
from collections.abc import Sequence
from typing import Any

from yardmaster_eventlog.errors import LogError, LogUnavailable
from yardmaster_eventlog.kafka.compare import ComparedTopics, SettingDifference, differences
from yardmaster_eventlog.kafka.settings import KafkaSettings, topic_settings
from yardmaster_quota.topic_check import EVERY_S, RETRY_S, TopicCheck
from yardmaster_runtime.clock import ManualClock
from yardmaster_runtime.telemetry.port import Telemetry
from yardmaster_schemas.topics import NODE_EVENTS

HOUR = SettingDifference("node-events", "retention.ms", found="3600000", expected="-1")
DAY = SettingDifference("node-events", "retention.ms", found="86400000", expected="-1")
NONE = ComparedTopics((), {})
REFUSED = ComparedTopics((), {"node-events": "TopicAuthorizationFailedError"})


class Check:
    """A check whose comparisons return what the test says, in this order."""

    def __init__(self, *answers: ComparedTopics | LogError) -> None:
        clock = ManualClock()
        self.answers = list(answers)
        self.out = io.StringIO()
        self.telemetry = Telemetry("quota", now_ms=clock.now_ms, stream=self.out)
        self.check = TopicCheck(self.telemetry, clock, self.compare).check

    async def compare(self) -> ComparedTopics:
        answer = self.answers.pop(0)
        if isinstance(answer, LogError):
            raise answer
        return answer

    def lines(self) -> Sequence[dict[str, Any]]:
        return [json.loads(line) for line in self.out.getvalue().splitlines()]

    def value(self, name: str) -> float | None:
        return self.telemetry.registry.get_sample_value(f"yard_quota_{name}")


def test_only_expected_settings_with_another_value_differ() -> None:
    expected = topic_settings(NODE_EVENTS, KafkaSettings(bootstrap="b:9092"))
    assert differences("node-events", expected, {**expected, "segment.bytes": "1"}) == ()
    found = {**expected, "retention.ms": "3600000"}
    assert differences("node-events", expected, found) == (HOUR,)
    del found["flush.messages"]
    assert set(differences("node-events", expected, found)) == {
        HOUR,
        SettingDifference("node-events", "flush.messages", found="not set", expected="1"),
    }


async def test_a_difference_is_reported_once_until_it_changes() -> None:
    one, other = ComparedTopics((HOUR,), {}), ComparedTopics((DAY,), {})
    check = Check(NONE, one, one, other, NONE, other)
    seen = []
    for _ in range(6):
        assert await check.check()
        seen.append((check.value("topic_settings_differing"), len(check.lines())))
    assert seen == [(0, 0), (1, 1), (1, 1), (1, 2), (0, 2), (1, 3)]
    first = check.lines()[0]
    assert (first["event"], first["level"]) == ("topic_settings_differ", "warning")
    named = {
        "topic": "node-events",
        "setting": "retention.ms",
        "found": "3600000",
        "expected": "-1",
    }
    assert named.items() <= first.items()
    assert check.value("topic_settings_unread_total") == 0


async def test_a_refusal_is_reported_once_counted_each_time_and_hides_no_difference() -> None:
    check = Check(ComparedTopics((HOUR,), {}), REFUSED, REFUSED, LogUnavailable(found="gone"), NONE)
    went = [await check.check() for _ in range(4)]
    assert went == [True, True, True, False]
    assert check.value("topic_settings_differing") == 1
    assert check.value("topic_settings_unread_total") == 3
    events = [line["event"] for line in check.lines()]
    assert events == ["topic_settings_differ", "topic_settings_unread"]
    assert "TopicAuthorizationFailedError" in check.lines()[1]["found"]
    await check.check()
    assert check.value("topic_settings_differing") == 0


def test_an_unanswered_comparison_is_repeated_sooner() -> None:
    assert RETRY_S < EVERY_S
