"""The brokers' users: each may do what the catalog of topics says of its service, and no more."""

import pytest

from yardmaster_schemas.access import (
    ADMIN,
    AGENTS,
    SERVICES,
    AccessRule,
    access_rules,
    agent_user,
)
from yardmaster_schemas.topics import TOPICS


def may(user: str, operation: str, topic: str) -> bool:
    """Whether a rule of the user allows the operation."""
    return any(
        rule.resource == "topic"
        and rule.operation == operation
        and (topic.startswith(rule.name) if rule.prefixed else topic == rule.name)
        for rule in access_rules(user)
    )


@pytest.mark.parametrize("user", [*SERVICES, AGENTS, agent_user("n1")])
def test_a_user_reads_and_writes_the_topics_of_its_service(user: str) -> None:
    service = user if user in SERVICES else "node_agent"
    for topic in TOPICS.values():
        assert may(user, "write", topic.name) == (service in topic.writers), topic.name
        assert may(user, "read", topic.name) == (service in topic.readers), topic.name


def test_an_agent_reads_the_assignments_of_its_own_node_alone() -> None:
    user = agent_user("n1")
    assert may(user, "read", "assignments.n1")
    assert may(user, "create", "assignments.n1")
    for topic in ("assignments.n2", "assignments.n11", "assignments."):
        assert not may(user, "read", topic)
        assert not may(user, "create", topic)
    assert not any(may(user, "write", f"assignments.{node}") for node in ("n1", "n2"))


def test_the_shared_user_of_agents_reads_the_assignments_of_all_nodes() -> None:
    assert may(AGENTS, "read", "assignments.n7")
    assert not may(AGENTS, "write", "assignments.n7")


def test_the_scheduler_alone_writes_assignments() -> None:
    users = [*SERVICES, AGENTS, agent_user("n7")]
    assert [user for user in users if may(user, "write", "assignments.n7")] == ["scheduler"]


def test_the_auditor_reads_and_writes_nothing() -> None:
    assert {rule.operation for rule in access_rules("auditor")} == {"read", "describe_configs"}


def test_quota_and_the_auditor_alone_read_the_settings_of_the_topics_of_the_log() -> None:
    for user in [*SERVICES, AGENTS, agent_user("n1")]:
        described = {topic for topic in TOPICS if may(user, "describe_configs", topic)}
        assert described == (set(TOPICS) if user in ("quota", "auditor") else set()), user


@pytest.mark.parametrize("user", [ADMIN, "", "Quota", "node_agent", "agent", "anyone"])
def test_another_name_has_no_rules(user: str) -> None:
    assert access_rules(user) == ()


def test_the_members_of_a_group_may_join_their_own_group_alone() -> None:
    groups = {
        user: [rule for rule in access_rules(user) if rule.resource == "group"]
        for user in (*SERVICES, AGENTS)
    }
    assert groups == {
        "gateway": [],
        "auditor": [],
        AGENTS: [],
        **{
            service: [AccessRule("group", f"yardmaster-{service}", "read")]
            for service in ("quota", "scheduler", "views")
        },
    }
