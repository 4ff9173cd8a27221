"""The state of a consumer group on its broker, for tests that need its members first."""

import asyncio
import time

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from yardmaster_eventlog.kafka.settings import KafkaSettings

LIMIT_S = 60.0
LOOK_S = 0.05


async def until_joined(kafka: KafkaSettings, group: str, members: int) -> None:
    """Wait until a group has exactly `members` members and each has its assignment."""
    admin = AIOKafkaAdminClient(**kafka.client())
    await admin.start()
    deadline = time.monotonic() + LIMIT_S
    try:
        while (found := await _look(admin, group)) != ("Stable", members):
            assert time.monotonic() < deadline, (
                f"waited {LIMIT_S:.0f} s for {members} members of {group}: {found}"
            )
            await asyncio.sleep(LOOK_S)
    finally:
        await admin.close()


async def _look(admin: AIOKafkaAdminClient, group: str) -> tuple[str, int]:
    """A group's state and its number of members."""
    try:
        (answer,) = await admin.describe_consumer_groups([group])
    except KafkaError as error:  # a broker's very first group takes it a moment
        return str(error), 0
    ((_, _, state, _, _, there, *_),) = answer.groups
    return state, len(there)
