"""Refusals of an agent's own join, which it reads in `quarantine`."""

import base64
import json
from typing import Any

import pytest

from yardmaster_eventlog import codec
from yardmaster_eventlog.errors import LogAccessRefused
from yardmaster_eventlog.memory import MemoryLog
from yardmaster_eventlog.port import Partition, Record
from yardmaster_node_agent.joining import LOOK_BACK, JoinRefusals
from yardmaster_runtime.clock import ManualClock
from yardmaster_schemas.envelope import Actor, ActorKind, Envelope
from yardmaster_schemas.events.expiring import RecordQuarantinedV1
from yardmaster_schemas.reasons import RefusalCode
from yardmaster_schemas.topics import QUARANTINE

SOURCE = "node/n1.0123456789ab"
JOIN = {"type": "NodeJoined", "source": SOURCE, "epoch": 7}


class Quarantine:
    """The topic, and an agent that looks into it."""

    def __init__(self) -> None:
        self.log = MemoryLog(ManualClock())
        self.place = Partition(QUARANTINE.name)
        self.refusals = JoinRefusals(self.log, SOURCE, 7)
        self.seq = 0

    async def put(
        self, refused: Any, code: RefusalCode = RefusalCode.NOT_ENROLLED, *, cut: bool = False
    ) -> None:
        raw = json.dumps(refused).encode()
        event = RecordQuarantinedV1(
            topic="node-events",
            partition=0,
            offset=self.seq,
            code=code,
            found="",
            raw_key="",
            raw_value=base64.b64encode(raw[:20] if cut else raw).decode(),
        )
        self.seq += 1
        envelope = Envelope(
            type=event.TYPE,
            version=event.VERSION,
            source="scheduler/main.0123456789ab.quarantine",
            epoch=1,
            seq=self.seq,
            subject="node-events",
            time_ms=0,
            actor=Actor(kind=ActorKind.SERVICE, id="scheduler"),
            data=event,
        )
        await self.log.append(self.place, [codec.encode(envelope, "node-events")])


@pytest.fixture
async def quarantine() -> Quarantine:
    quarantine = Quarantine()
    await quarantine.log.create_topics([QUARANTINE])
    return quarantine


async def test_the_newest_refusal_of_the_own_join_is_found_once(quarantine: Quarantine) -> None:
    await quarantine.put(JOIN)
    await quarantine.put(JOIN, RefusalCode.BEYOND_ENROLMENT)
    assert await quarantine.refusals.poll() is RefusalCode.BEYOND_ENROLMENT
    assert await quarantine.refusals.poll() is None
    await quarantine.put(JOIN)
    assert await quarantine.refusals.poll() is RefusalCode.NOT_ENROLLED


@pytest.mark.parametrize(
    "other",
    [
        JOIN | {"source": "node/n2.0123456789ab"},
        JOIN | {"source": "node/n1"},
        JOIN | {"epoch": 6},
        JOIN | {"type": "TaskProgressed"},
        [],
        "text",
    ],
)
async def test_records_of_other_nodes_and_of_earlier_epochs_are_ignored(
    quarantine: Quarantine, other: Any
) -> None:
    await quarantine.put(other)
    assert await quarantine.refusals.poll() is None


async def test_records_that_cannot_be_read_are_skipped(quarantine: Quarantine) -> None:
    await quarantine.log.append(quarantine.place, [Record(b"x", b"no event")])
    await quarantine.put(JOIN, cut=True)
    await quarantine.put(JOIN)
    assert await quarantine.refusals.poll() is RefusalCode.NOT_ENROLLED


async def test_the_first_poll_reads_only_the_end_of_a_long_topic(quarantine: Quarantine) -> None:
    await quarantine.put(JOIN)
    for _ in range(LOOK_BACK):
        await quarantine.put("other")
    assert await quarantine.refusals.poll() is None


async def test_a_topic_that_the_agent_may_not_read_is_ignored(quarantine: Quarantine) -> None:
    class Closed:
        async def end(self, _partition: Partition) -> int:
            raise LogAccessRefused(
                broker="b", user="agent", mechanism="PLAIN", found="no READ on quarantine"
            )

    closed: Any = Closed()
    assert await JoinRefusals(closed, SOURCE, 7).poll() is None
