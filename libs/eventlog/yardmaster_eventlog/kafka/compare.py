"""Compare the settings of the catalog's topics on the brokers with those of `topic_settings`.

A retention that was shortened deletes records that a restart needs. Only this comparison notices
the change before the records are gone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import for_code

from yardmaster_eventlog.kafka.access import admin_of
from yardmaster_eventlog.kafka.settings import KafkaSettings, topic_settings
from yardmaster_schemas.topics import Topic

#: The shown value of a setting that the brokers do not return.
NOT_SET: Final = "not set"


@dataclass(frozen=True, slots=True)
class SettingDifference:
    """A setting of a topic whose value on the brokers differs from `topic_settings`."""

    topic: str
    setting: str
    found: str
    expected: str

    def __str__(self) -> str:
        return f"{self.topic}: {self.setting} is {self.found}, expected {self.expected}"


@dataclass(frozen=True, slots=True)
class ComparedTopics:
    """The result of a comparison; `unread` says why the settings of a topic were not returned."""

    differences: tuple[SettingDifference, ...]
    unread: Mapping[str, str]


def differences(
    topic: str, expected: Mapping[str, str], found: Mapping[str, str | None]
) -> tuple[SettingDifference, ...]:
    """Return the settings in `expected` that have a different value, or none, in `found`."""
    values = {setting: found.get(setting) for setting in expected}
    return tuple(
        SettingDifference(topic, setting, NOT_SET if value is None else value, expected[setting])
        for setting, value in values.items()
        if value != expected[setting]
    )


async def compare_topics(settings: KafkaSettings, topics: Sequence[Topic]) -> ComparedTopics:
    """Compare the settings of topics on the brokers, over a connection of its own.

    Only the settings that `topic_settings` sets are compared. The user needs the right to describe
    the configuration of the topics.

    Raises: LogUnavailable, LogNotTrusted, LogAccessRefused, TlsUnusable.
    """
    expected = {topic.name: topic_settings(topic, settings) for topic in topics}
    wanted = [
        ConfigResource(ConfigResourceType.TOPIC, name, dict.fromkeys(config))
        for name, config in expected.items()
    ]
    found: tuple[SettingDifference, ...] = ()
    unread: dict[str, str] = {}
    async with admin_of(settings) as admin:
        answers = await admin.describe_configs(wanted)
    for code, why, _, name, entries in (one for answer in answers for one in answer.resources):
        if code:
            unread[name] = f"{for_code(code).__name__} {why or ''}".strip()
        else:
            values = {entry[0]: entry[1] for entry in entries}
            found += differences(name, expected[name], values)
    return ComparedTopics(found, unread)
