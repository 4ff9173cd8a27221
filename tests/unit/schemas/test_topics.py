"""The catalog of topics matches the table of the architecture and contains every event."""

import pytest

from yardmaster_schemas.events import EVENTS, machine
from yardmaster_schemas.topics import (
    ADMISSIONS,
    DAY_MS,
    DECISIONS,
    DETAILS,
    HOUR_MS,
    INPUT_ORDER,
    KIB,
    TOPICS,
    assignments,
    topic,
)

#: name: (written by, key, claims of others)
TABLE = {
    "details": (("gateway",), "job", False),
    "requests": (("gateway",), "cell", True),
    "admissions": (("quota",), "cell", False),
    "node-events": (("node_agent",), "cell", True),
    "decisions": (("scheduler",), "cell", False),
    "heartbeats": (("node_agent",), "node", True),
    "task-logs": (("node_agent",), "task", True),
    "quarantine": (("quota", "scheduler"), "topic", False),
    "cuts": ((), "cell", False),
}


@pytest.mark.parametrize("name", TABLE)
def test_a_topic_matches_the_table(name: str) -> None:
    found = topic(name)
    assert found is TOPICS[name]
    assert (found.writers, found.key, found.claims) == TABLE[name]


def test_the_table_has_all_topics() -> None:
    assert set(TOPICS) == set(TABLE)


def test_a_node_has_a_topic_of_its_own_assignments() -> None:
    found = topic("assignments.gpu-07")
    assert found == assignments("gpu-07")
    assert found is not None
    assert found.name == "assignments.gpu-07"
    assert found.retention_ms == 7 * DAY_MS
    assert (found.writers, found.readers) == (("scheduler",), ("node_agent", "scheduler"))


@pytest.mark.parametrize("name", ["", "request", "assignments", "Decisions"])
def test_an_unknown_name_is_not_a_topic(name: str) -> None:
    assert topic(name) is None


def test_inputs_are_applied_in_the_order_of_the_catalog() -> None:
    assert INPUT_ORDER == ("requests", "admissions", "node-events", "decisions")
    assert [name for name in TOPICS if name in INPUT_ORDER] == list(INPUT_ORDER)


def test_decisions_are_kept_forever_and_personal_data_can_be_erased() -> None:
    for name in INPUT_ORDER:
        assert TOPICS[name].retention_ms is None
        assert not TOPICS[name].compacted
    assert DETAILS.compacted
    for name in set(TOPICS) - set(INPUT_ORDER) - {"details", "cuts"}:
        kept_ms = TOPICS[name].retention_ms
        assert kept_ms is not None
        assert kept_ms >= HOUR_MS


def test_a_record_of_an_agent_costs_its_reader_no_more_than_its_size() -> None:
    for found in TOPICS.values():
        if found.writers == ("node_agent",):
            assert found.compression == "uncompressed"
            assert found.max_batch_bytes == 128 * KIB


def test_every_event_belongs_to_known_topics_and_only_events_of_machines_to_two() -> None:
    for cls in EVENTS.values():
        assert cls.TOPICS
        assert set(cls.TOPICS) <= set(TOPICS)
        if len(cls.TOPICS) > 1:
            assert cls.__module__ == machine.__name__
            assert (ADMISSIONS.name, DECISIONS.name) == cls.TOPICS
    assert {name for cls in EVENTS.values() for name in cls.TOPICS} == set(TOPICS)


def test_an_event_is_registered_under_the_name_of_its_class() -> None:
    for (type_, version), cls in EVENTS.items():
        assert (type_, version) == (cls.TYPE, cls.VERSION)
        assert cls.__name__ == f"{type_}V{version}"
