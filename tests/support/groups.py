"""A consumer group as its broker has it, for tests in which somebody has to be a member first."""

import asyncio
import time

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

LIMIT_S = 60.0
LOOK_S = 0.05


async def until_joined(bootstrap: str, group: str, members: int) -> None:
    """Wait until so many are in a group, no more, and each was told its share."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
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
    """A group's state, and how many are in it."""
    try:
        (answer,) = await admin.describe_consumer_groups([group])
    except KafkaError as error:  # a broker's very first group takes it a moment
        return str(error), 0
    ((_, _, state, _, _, there, *_),) = answer.groups
    return state, len(there)
