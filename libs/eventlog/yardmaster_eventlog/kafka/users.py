"""Create the users of the brokers, with the access rules and the byte rate of each user.

The requests need an administrator's connection.

The brokers store no password, only SCRAM's salted hash. aiokafka (0.14) has no method for these
requests, so this module defines them; the lock file fixes its version.
"""

import asyncio
import hashlib
import os
from collections.abc import Mapping
from typing import Final

from aiokafka.conn import create_conn
from aiokafka.errors import KafkaError, SaslAuthenticationFailed, for_code
from aiokafka.protocol.admin import CreateAclsRequest_v1
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    Array,
    Boolean,
    CompactArray,
    CompactBytes,
    CompactString,
    Float64,
    Int8,
    Int16,
    Int32,
    Schema,
    String,
    TaggedFields,
)

from yardmaster_eventlog.kafka.access import admin_of
from yardmaster_eventlog.kafka.settings import KafkaSettings
from yardmaster_schemas.access import AGENT_BYTE_RATE, AccessRule, access_rules, is_agent

#: The mechanism of all users but the administrator.
MECHANISM: Final = "SCRAM-SHA-512"
_SCRAM_SHA_512: Final = 2
#: The fewest iterations that Kafka accepts. The passwords are random, so more would not make them
#: safer.
ITERATIONS: Final = 4096
_SALT_BYTES: Final = 32
#: The pause before a broker is asked again whether it accepts a password.
RETRY_S: Final = 0.05

_RESOURCES: Final = {"topic": 2, "group": 3}
_OPERATIONS: Final = {"read": 3, "write": 4, "create": 5, "describe_configs": 10}
_LITERAL: Final = 3
_PREFIXED: Final = 4
_ALLOW: Final = 3


class _AlterUsersResponse(Response):  # type: ignore[misc]
    API_KEY = 51
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "results",
            CompactArray(
                ("user", CompactString("utf-8")),
                ("error_code", Int16),
                ("error_message", CompactString("utf-8")),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class _AlterUsersStruct(RequestStruct):  # type: ignore[misc]
    """The body of Kafka's request AlterUserScramCredentials."""

    API_KEY = 51
    API_VERSION = 0
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = _AlterUsersResponse
    SCHEMA = Schema(
        (
            "deletions",
            CompactArray(
                ("name", CompactString("utf-8")), ("mechanism", Int8), ("tags", TaggedFields)
            ),
        ),
        (
            "upsertions",
            CompactArray(
                ("name", CompactString("utf-8")),
                ("mechanism", Int8),
                ("iterations", Int32),
                ("salt", CompactBytes),
                ("salted_password", CompactBytes),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class _AlterUsers(Request[_AlterUsersStruct]):  # type: ignore[misc]
    API_KEY = 51

    def __init__(self, passwords: Mapping[str, str]) -> None:
        self._passwords = passwords

    def build(self, struct: type[_AlterUsersStruct]) -> _AlterUsersStruct:
        """Return the request: every user with a new salt."""
        users: list[tuple[object, ...]] = []
        for name, password in self._passwords.items():
            salt = os.urandom(_SALT_BYTES)
            salted = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, ITERATIONS)
            users.append((name, _SCRAM_SHA_512, ITERATIONS, salt, salted, {}))
        return struct([], users, {})


class _CreateRules(Request[CreateAclsRequest_v1]):  # type: ignore[misc]
    """Kafka's request CreateAcls for many rules; aiokafka's own request has one rule."""

    API_KEY = 30

    def __init__(self, rules: Mapping[str, list[AccessRule]]) -> None:
        self._rules = rules

    def build(self, struct: type[CreateAclsRequest_v1]) -> CreateAclsRequest_v1:
        """Return the request; the brokers keep one copy of a rule that they know."""
        return struct(
            [
                (
                    _RESOURCES[rule.resource],
                    rule.name,
                    _PREFIXED if rule.prefixed else _LITERAL,
                    f"User:{user}",
                    "*",
                    _OPERATIONS[rule.operation],
                    _ALLOW,
                )
                for user, rules in self._rules.items()
                for rule in rules
            ]
        )


class _AlterQuotasResponse(Response):  # type: ignore[misc]
    API_KEY = 49
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "entries",
            Array(
                ("error_code", Int16),
                ("error_message", String("utf-8")),
                ("entity", Array(("type", String("utf-8")), ("name", String("utf-8")))),
            ),
        ),
    )


class _AlterQuotasStruct(RequestStruct):  # type: ignore[misc]
    """The body of Kafka's request AlterClientQuotas."""

    API_KEY = 49
    API_VERSION = 0
    RESPONSE_TYPE = _AlterQuotasResponse
    SCHEMA = Schema(
        (
            "entries",
            Array(
                ("entity", Array(("type", String("utf-8")), ("name", String("utf-8")))),
                (
                    "ops",
                    Array(("key", String("utf-8")), ("value", Float64), ("remove", Boolean)),
                ),
            ),
        ),
        ("validate_only", Boolean),
    )


class _AlterQuotas(Request[_AlterQuotasStruct]):  # type: ignore[misc]
    API_KEY = 49

    def __init__(self, rates: Mapping[str, int]) -> None:
        self._rates = rates

    def build(self, struct: type[_AlterQuotasStruct]) -> _AlterQuotasStruct:
        """Return the request: the rate of each user, for all its connections to a broker."""
        entries = [
            ([("user", user)], [("producer_byte_rate", float(rate), False)])
            for user, rate in self._rates.items()
        ]
        return struct(entries, False)


async def create_users(
    settings: KafkaSettings,
    passwords: Mapping[str, str],
    *,
    agent_byte_rate: int = AGENT_BYTE_RATE,
) -> None:
    """Create users with the rules of `access_rules`, or change their passwords.

    Agents run where tasks run, so a broker slows each of them down above a rate.

    Brokers learn of a change shortly after it is acknowledged. Passwords are changed last, and this
    returns when each broker that answers accepts them: a user that can connect has its rules.

    Args:
        settings: those of an administrator.
        passwords: by user.
        agent_byte_rate: bytes per second that an agent may write to each broker.

    Raises: LogUnavailable, LogNotTrusted, LogAccessRefused, TlsUnusable.
    """
    if not passwords:
        return
    async with admin_of(settings) as admin:
        rules = {user: [*access_rules(user)] for user in passwords}
        answer = await admin._send_to_controller(_CreateRules(rules))
        for code, why in answer.creation_responses:
            _check(code, f"rule: {why}")
        rates = {user: agent_byte_rate for user in passwords if is_agent(user)}
        if rates:
            answer = await admin._send_to_controller(_AlterQuotas(rates))
            for code, why, _ in answer.entries:
                _check(code, f"byte rate: {why}")
        answer = await admin._send_to_controller(_AlterUsers(passwords))
        for user, code, why, _ in answer.results:
            _check(code, f"user {user}: {why}")
        *_, last = passwords.items()
        for broker in admin._client.cluster.brokers():
            await _until_accepted(settings, broker.host, broker.port, *last)


async def _until_accepted(
    settings: KafkaSettings, host: str, port: int, user: str, password: str
) -> None:
    """Wait until a broker accepts a user's password, or does not answer.

    Brokers apply changes in order, so they accept all passwords that were changed with it.
    """
    client = {
        **settings.client(),
        "sasl_mechanism": MECHANISM,
        "sasl_plain_username": user,
        "sasl_plain_password": password,
    }
    del client["bootstrap_servers"]
    while True:
        try:
            connection = await create_conn(host, port, **client)
        except SaslAuthenticationFailed:
            await asyncio.sleep(RETRY_S)
        except (KafkaError, OSError):
            return
        else:
            connection.close()
            return


def _check(code: int, what: str) -> None:
    if code:
        raise for_code(code)(what)
