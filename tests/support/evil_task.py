"""A task that tries to act as others in the log of its cluster, with its own agent's credentials.

`python evil_task.py URL USER PASSWORD_FILE VICTIM` prints the outcome of each attempt as JSON.
VICTIM is the JSON of a running replica on another node: task_id, attempt, node, incarnation.
"""

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from yardmaster_eventlog.codec import encode
from yardmaster_eventlog.errors import LogError
from yardmaster_eventlog.port import EventLog, Partition
from yardmaster_runtime.clock import SystemClock
from yardmaster_runtime.service import open_log
from yardmaster_runtime.settings import KafkaOptions, LogSettings
from yardmaster_schemas.envelope import Actor, ActorKind, Envelope, Event
from yardmaster_schemas.events.node_events import SlotsReleasedV1, TaskExitedV1
from yardmaster_schemas.events.requests import NodeCordonRequestedV1

LARGEST = 2**53 - 1
GATEWAY = "gateway/gateway-1.0123456789ab"


def envelope(event: Event, source: str, actor: Actor, epoch: int, seq: int) -> Envelope[Any]:
    """A record in the name of `source` and `actor`."""
    return Envelope(
        type=event.TYPE,
        version=event.VERSION,
        source=source,
        epoch=epoch,
        seq=seq,
        subject=str(getattr(event, "task_id", None) or getattr(event, "node", "")),
        time_ms=int(time.time() * 1000),
        actor=actor,
        data=event,
    )


async def attempt(log: EventLog, topic: str, envelopes: Sequence[Envelope[Any]]) -> str:
    """Append the records; return `written`, or the broker's refusal."""
    try:
        await log.append(Partition(topic), [encode(each, "main") for each in envelopes])
    except LogError as error:
        return str(error.fields.get("found", error))
    return "written"


async def attack(log: EventLog, victim: dict[str, Any]) -> dict[str, str]:
    """Act as an operator, as a gateway, and as the agent of the victim's node."""
    now_ms = int(time.time() * 1000)
    cordon = NodeCordonRequestedV1(node=victim["node"])
    operator = Actor(kind=ActorKind.USER, id="the-operator")
    agent = Actor(kind=ActorKind.NODE, id=victim["node"])
    replica = {**victim, "replica": 0}
    reports = [TaskExitedV1(**replica, exit_code=0), SlotsReleasedV1(**replica)]
    source = f"node/{victim['node']}.{victim['incarnation']}"
    return {
        "operator": await attempt(
            log, "requests", [envelope(cordon, "gateway/evil.0123456789ab", operator, now_ms, 0)]
        ),
        "gateway": await attempt(
            log, "requests", [envelope(cordon, GATEWAY, operator, LARGEST, LARGEST)]
        ),
        "node": await attempt(
            log,
            "node-events",
            [envelope(each, source, agent, now_ms, 1000 + n) for n, each in enumerate(reports)],
        ),
    }


async def main(url: str, user: str, password_file: str, victim: str) -> None:
    kafka = KafkaOptions()
    if url.startswith("kafka:"):
        kafka = KafkaOptions(
            security_protocol="SASL_PLAINTEXT",
            sasl_username=user,
            sasl_password_file=Path(password_file),
        )
    log = await open_log(LogSettings(log=url, kafka=kafka), SystemClock(), create=False)
    try:
        print(json.dumps(await attack(log, json.loads(victim))))
    finally:
        await log.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
