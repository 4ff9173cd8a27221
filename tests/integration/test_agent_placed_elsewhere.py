"""An agent that runs an attempt which the log places elsewhere kills it."""

import base64
import signal
from pathlib import Path

from tests.support.node_agent import AgentCell, sh
from yardmaster_eventlog.codec import encode
from yardmaster_eventlog.port import Partition
from yardmaster_schemas.envelope import Actor, ActorKind, Envelope
from yardmaster_schemas.events.expiring import RecordQuarantinedV1
from yardmaster_schemas.events.node_events import TaskStartedV1
from yardmaster_schemas.reasons import RefusalCode
from yardmaster_schemas.topics import NODE_EVENTS, QUARANTINE


async def refuse_the_start(cell: AgentCell, code: RefusalCode) -> None:
    """Quarantine the newest TaskStarted, as a scheduler does that refuses it."""
    stored = await cell.log.read(Partition(NODE_EVENTS.name), 0, max_records=1000)
    started = [each for each in stored if ("ce_type", b"TaskStarted") in each.record.headers][-1]
    event = RecordQuarantinedV1(
        topic=NODE_EVENTS.name,
        partition=0,
        offset=started.offset,
        code=code,
        found="TaskStarted of node/n1",
        raw_key="",
        raw_value=base64.b64encode(started.record.value or b"").decode(),
    )
    envelope = Envelope(
        type=event.TYPE,
        version=event.VERSION,
        source="scheduler/main.0123456789ab.quarantine",
        epoch=1,
        seq=0,
        subject=NODE_EVENTS.name,
        time_ms=0,
        actor=Actor(kind=ActorKind.SERVICE, id="scheduler"),
        data=event,
    )
    await cell.log.append(Partition(QUARANTINE.name), [encode(envelope, NODE_EVENTS.name)])


async def test_an_attempt_whose_start_is_refused_because_it_is_elsewhere_is_killed(
    tmp_path: Path,
) -> None:
    cell = await AgentCell(tmp_path / "n1").open()
    cell.configure(ask_again_s=0.1)
    async with cell.agent():
        task = await cell.allocate(sh("trap '' TERM; echo ready; exec sleep 600"))
        other = await cell.allocate(sh("echo ready; exec sleep 600"), slots=[(1,)])
        await cell.until_output(other, "ready")
        await cell.until_output(task, "ready")
        await cell.until(TaskStartedV1, count=2)
        await refuse_the_start(cell, RefusalCode.REPEATED)
        last = (await cell.of_type(TaskStartedV1))[-1].task_id
        await refuse_the_start(cell, RefusalCode.NOT_ITS_AUTHOR)
        assert (await cell.exit_of(last)).signal == signal.SIGKILL
        await cell.ended(last)
        (kept,) = {task, other} - {last}
        assert await cell.ended(kept, count=0) == [], "the other attempt continues"
        await cell.revoke(kept)
        await cell.ended(kept)
    await cell.log.close()
