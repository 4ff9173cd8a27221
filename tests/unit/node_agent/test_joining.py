"""Refusals of an agent's own joins and starts, which it reads in `quarantine`."""

import base64
import json
from typing import Any

import pytest

from yardmaster_eventlog import codec
from yardmaster_eventlog.errors import LogAccessRefused
from yardmaster_eventlog.memory import MemoryLog
from yardmaster_eventlog.port import Partition, Record
from yardmaster_node_agent.agent_state import ReplicaKey
from yardmaster_node_agent.joining import LOOK_BACK, Refusals
from yardmaster_runtime.clock import ManualClock
from yardmaster_schemas.envelope import Actor, ActorKind, Envelope
from yardmaster_schemas.events.expiring import RecordQuarantinedV1
from yardmaster_schemas.reasons import RefusalCode
from yardmaster_schemas.topics import QUARANTINE

SOURCE = "node/n1.0123456789ab"
JOIN = {"type": "NodeJoined", "source": SOURCE, "epoch": 7, "seq": 3}


class Quarantine:
    """The topic, and an agent that looks into it."""

    def __init__(self) -> None:
        self.log = MemoryLog(ManualClock())
        self.place = Partition(QUARANTINE.name)
        self.twice: set[int] = set()
        self.refusals = Refusals(
            self.log, SOURCE, 7, written_once=lambda seq: seq not in self.twice
        )
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
    await quarantine.put(JOIN, RefusalCode.BEYOND_ENROLLMENT)
    assert await quarantine.refusals.poll() is RefusalCode.BEYOND_ENROLLMENT
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
    assert await Refusals(closed, SOURCE, 7, written_once=bool).poll() is None


STARTED = {
    "type": "TaskStarted",
    "source": SOURCE,
    "epoch": 6,
    "data": {
        "node": "n1",
        "incarnation": "0123456789ab",
        "task_id": "0123456789ab.0",
        "attempt": 2,
        "replica": 1,
    },
}


def start(**changes: Any) -> dict[str, Any]:
    data: Any = STARTED["data"]
    return {**STARTED, "data": {**data, **changes}}


@pytest.mark.parametrize(
    "code",
    [
        RefusalCode.NOT_ITS_AUTHOR,
        RefusalCode.UNKNOWN_TASK,
        RefusalCode.UNKNOWN_ATTEMPT,
        RefusalCode.STALE_ATTEMPT,
    ],
)
async def test_an_own_start_that_the_log_does_not_place_here_is_found_once(
    quarantine: Quarantine, code: RefusalCode
) -> None:
    await quarantine.put(STARTED, code)
    assert await quarantine.refusals.poll() is None
    assert quarantine.refusals.take_not_here() == [ReplicaKey("0123456789ab.0", 2, 1)]
    assert quarantine.refusals.take_not_here() == []


@pytest.mark.parametrize(
    ("refused", "code"),
    [
        (STARTED, RefusalCode.REPEATED),
        (STARTED | {"source": "node/n2.0123456789ab"}, RefusalCode.NOT_ITS_AUTHOR),
        (start(node="n2"), RefusalCode.NOT_ITS_AUTHOR),
        (start(incarnation="f" * 12), RefusalCode.NOT_ITS_AUTHOR),
        (start(replica="x"), RefusalCode.UNKNOWN_ATTEMPT),
        (STARTED | {"data": []}, RefusalCode.UNKNOWN_ATTEMPT),
    ],
)
async def test_other_refusals_and_forged_starts_kill_nothing(
    quarantine: Quarantine, refused: Any, code: RefusalCode
) -> None:
    await quarantine.put(refused, code)
    assert await quarantine.refusals.poll() is None
    assert quarantine.refusals.take_not_here() == []


async def test_the_last_checkpoint_that_the_project_does_not_allow_is_found_once(
    quarantine: Quarantine,
) -> None:
    for uri in ("s3://a/1", "s3://a/2"):
        report = start(uri=uri, step=1) | {"type": "CheckpointDone"}
        await quarantine.put(report, RefusalCode.CHECKPOINT_NOT_ALLOWED)
        await quarantine.put(
            start(uri="s3://a/3") | {"type": "CheckpointDone"}, RefusalCode.REPEATED
        )
    assert await quarantine.refusals.poll() is None
    assert quarantine.refusals.take_not_allowed() == {
        ReplicaKey("0123456789ab.0", 2, 1): "s3://a/2"
    }
    assert quarantine.refusals.take_not_allowed() == {}


@pytest.mark.parametrize("code", [RefusalCode.REPEATED, RefusalCode.EPOCH_AHEAD])
async def test_a_join_that_is_refused_for_its_number_shows_that_the_source_is_overtaken(
    quarantine: Quarantine, code: RefusalCode
) -> None:
    await quarantine.put(JOIN | {"epoch": 6}, code)
    assert await quarantine.refusals.poll() is None
    assert not quarantine.refusals.overtaken
    await quarantine.put(JOIN, code)
    assert await quarantine.refusals.poll() is None
    assert quarantine.refusals.overtaken


async def test_a_join_that_the_log_may_have_twice_shows_nothing(quarantine: Quarantine) -> None:
    quarantine.twice.add(3)
    await quarantine.put(JOIN, RefusalCode.REPEATED)
    assert await quarantine.refusals.poll() is None
    assert not quarantine.refusals.overtaken


async def test_a_report_that_is_refused_for_its_number_is_a_doubt_once(
    quarantine: Quarantine,
) -> None:
    await quarantine.put({**STARTED, "epoch": 7, "seq": 4}, RefusalCode.REPEATED)
    await quarantine.refusals.poll()
    assert quarantine.refusals.take_doubt()
    assert not quarantine.refusals.take_doubt()
    await quarantine.put({**STARTED, "epoch": 7, "seq": 4}, RefusalCode.CONTRADICTION)
    await quarantine.refusals.poll()
    assert not quarantine.refusals.take_doubt()
    assert not quarantine.refusals.overtaken
