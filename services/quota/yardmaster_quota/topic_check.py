"""Compares the settings of the log's topics on the brokers with the expected ones.

Each replica of the service compares them when it starts and then every hour, also a replica that
does not lead. So the metric has no gap when the leader changes, and a replica that was just started
reports a difference at once.
"""

from collections.abc import Awaitable, Callable
from typing import Final, NoReturn

from yardmaster_eventlog.errors import LogError
from yardmaster_eventlog.kafka.compare import ComparedTopics, SettingDifference, compare_topics
from yardmaster_runtime.clock import Clock
from yardmaster_runtime.service import kafka_settings
from yardmaster_runtime.settings import LogSettings
from yardmaster_runtime.telemetry.port import Telemetry
from yardmaster_schemas.topics import TOPICS

#: Seconds from one comparison to the next.
EVERY_S: Final = 3600.0
#: Seconds to the next comparison if the brokers did not answer the last one at all.
RETRY_S: Final = 60.0


class TopicCheck:
    """Compares the settings repeatedly; logs a difference once, and again if its value changes."""

    def __init__(
        self, telemetry: Telemetry, clock: Clock, compare: Callable[[], Awaitable[ComparedTopics]]
    ) -> None:
        """`compare` returns the differences; it may raise LogError."""
        self._telemetry = telemetry
        self._clock = clock
        self._compare = compare
        self._reported: frozenset[SettingDifference] = frozenset()
        self._refused = False
        self._differing = telemetry.gauge(
            "topic_settings_differing", "Settings of topics that are not as expected."
        )
        self._unread = telemetry.counter(
            "topic_settings_unread",
            "Comparisons for which the brokers did not return the settings of all topics.",
        )

    async def run(self) -> NoReturn:
        """Compare until cancelled."""
        while True:
            await self._clock.sleep(EVERY_S if await self.check() else RETRY_S)

    async def check(self) -> bool:
        """Compare once; return whether the brokers answered. A refusal counts as an answer."""
        try:
            compared = await self._compare()
        except LogError as error:
            self._not_read(f"{error.code}: {error}")
            return False
        found = frozenset(compared.differences)
        # A topic that cannot be read now may still differ.
        kept = {one for one in self._reported if one.topic in compared.unread}
        for one in compared.differences:
            if one not in self._reported:
                self._telemetry.warn(
                    "topic_settings_differ",
                    topic=one.topic,
                    setting=one.setting,
                    found=one.found,
                    expected=one.expected,
                )
        self._reported = found | kept
        self._differing.set(len(self._reported))
        if compared.unread:
            self._not_read("; ".join(f"{name}: {why}" for name, why in compared.unread.items()))
        else:
            self._refused = False
        return True

    def _not_read(self, found: str) -> None:
        """Count a comparison that could not read all topics; log only the first of a series."""
        self._unread.inc()
        if not self._refused:
            self._refused = True
            self._telemetry.warn("topic_settings_unread", found=found)


async def check_topics(telemetry: Telemetry, clock: Clock, settings: LogSettings) -> NoReturn:
    """Compare the topics of a log on Kafka until cancelled.

    Raises: SecretUnreadable, TlsUnusable.
    """
    kafka = kafka_settings(settings)
    check = TopicCheck(telemetry, clock, lambda: compare_topics(kafka, tuple(TOPICS.values())))
    await check.run()
