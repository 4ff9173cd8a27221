"""The users of the brokers and of Redis, and what each may do.

The rules of the brokers are derived from the catalog of topics.

Each service has one user, and so has each node: the user `agent-<node>` reads `assignments.<node>`
and no other assignments. If all agents share one configuration, as the pods of a DaemonSet do, they
share the user `agents`, which reads the assignments of all nodes. The user `admin` creates topics,
users and rules; the brokers use it too, and it needs no rules.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from yardmaster_schemas.topics import ASSIGNMENTS_PREFIX, TOPICS, Topic, assignments

ADMIN: Final = "admin"
AGENTS: Final = "agents"
#: The user that reads the log and writes nothing.
AUDITOR: Final = "auditor"
#: Users of services and auditors; each is named as its service in the catalog.
SERVICES: Final = ("gateway", "quota", "scheduler", "views", AUDITOR)
_AGENT: Final = "node_agent"
_NODE_PREFIX: Final = "agent-"
#: Services whose replicas share their cells in the consumer group `yardmaster-<service>`.
_GROUPED: Final = ("quota", "scheduler", "views")

_COMMON: Final = "-@admin -@dangerous -@scripting +evalsha +script|load +client|setname"
#: The users of Redis, and what each may do. The views service writes, and gateways only read.
REDIS_USERS: Final = {
    "views": f"~* &* +@all {_COMMON}",
    "gateway": f"~* &* +@all -@write {_COMMON}",
}

#: Bytes per second that an agent may write to each broker. The output of 8 tasks at their limit
#: (128 MiB) then takes a minute, and a day of flood 169 GiB.
AGENT_BYTE_RATE: Final = 2 * 1024 * 1024

#: The users that may read the settings of the topics on the brokers: quota compares them, and an
#: auditor may.
_DESCRIBERS: Final = ("quota", AUDITOR)

Operation = Literal["read", "write", "create", "describe_configs"]


@dataclass(frozen=True, slots=True)
class AccessRule:
    """Permission for one operation on a topic or a consumer group.

    Attributes:
        prefixed: the rule holds for all names that begin with `name`.
    """

    resource: Literal["topic", "group"]
    name: str
    operation: Operation
    prefixed: bool = False


def agent_user(node: str) -> str:
    """The user of a node's agent."""
    return _NODE_PREFIX + node


def is_agent(user: str) -> bool:
    """Whether a user is that of a single agent; false for the shared user of all agents."""
    return user.startswith(_NODE_PREFIX)


def access_rules(user: str) -> Sequence[AccessRule]:
    """The rules of a user; none for a user that the brokers should not have.

    Describing a topic is part of reading and of writing it.
    """
    if user == ADMIN:
        return ()
    service = user if user in SERVICES else _AGENT
    if service == _AGENT and user != AGENTS and not user.startswith(_NODE_PREFIX):
        return ()
    rules = [rule for topic in TOPICS.values() for rule in _of_topic(topic, service)]
    if service in _DESCRIBERS:
        rules += [AccessRule("topic", name, "describe_configs") for name in TOPICS]
    # The user of one agent may use the topics of its node, every other user those of all nodes.
    if user.startswith(_NODE_PREFIX):
        own = assignments(user.removeprefix(_NODE_PREFIX))
        rules += [*_of_topic(own, service), AccessRule("topic", own.name, "create")]
    else:
        every = _of_topic(assignments(""), service, prefixed=True)
        rules += every
        if every:
            rules.append(AccessRule("topic", ASSIGNMENTS_PREFIX, "create", prefixed=True))
    if service in _GROUPED:
        rules.append(AccessRule("group", f"yardmaster-{service}", "read"))
    return rules


def _of_topic(topic: Topic, service: str, *, prefixed: bool = False) -> list[AccessRule]:
    allowed: dict[Operation, tuple[str, ...]] = {"read": topic.readers, "write": topic.writers}
    return [
        AccessRule("topic", topic.name, operation, prefixed)
        for operation, services in allowed.items()
        if service in services
    ]
