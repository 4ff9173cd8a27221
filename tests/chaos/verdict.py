"""The verdict after all faults: each sentence names a broken promise."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.chaos.load import Acknowledged
from tests.chaos.tail_cut import Removed
from tests.support.cluster import Cluster
from tests.support.promises import events
from tests.support.witness import read_witness
from yardmaster_core.commit import CommitReader, CountedCycle
from yardmaster_eventlog.port import EventLog, Partition
from yardmaster_runtime.cycle_reader import decode_own, digest_of
from yardmaster_schemas.envelope import Event
from yardmaster_schemas.events.admissions import TaskAdmittedV1, TaskRejectedV1
from yardmaster_schemas.events.decisions import (
    AllocationRevokedV1,
    NodeLostV1,
    PreemptionRequestedV1,
    SlotsAllocatedV1,
    TaskEndedV1,
)
from yardmaster_schemas.events.node_events import NodeJoinedV1
from yardmaster_schemas.events.requests import TaskSubmittedV1
from yardmaster_schemas.reasons import Stop, StopCode

CELL = "main"
#: The start timeout of a pool, by default.
START_TIMEOUT_MS = 300_000
#: How long tasks may take to end after the last fault, in seconds. Cell time passes at half speed
#: while it is ahead of the broker's clock, so a start timeout of 300 s may take 600 s.
ENDED_S = 720.0


async def counted_cycles(log: EventLog, service: str, topic: str) -> list[CountedCycle]:
    """The cycles of a topic, without those that fenced leaders wrote."""
    reader = CommitReader(service, CELL, topic)
    found: list[CountedCycle] = []
    offset = 0
    while stored := await log.read(Partition(topic), offset, max_records=5000):
        for each in stored:
            cycle = reader.feed(each.offset, digest_of(each.record), decode_own(each.record, CELL))
            if cycle is not None:
                found.append(cycle)
        offset = stored[-1].offset + 1
    return found


def events_of(cycles: Sequence[CountedCycle]) -> list[Event]:
    """The decisions of cycles."""
    return [envelope.data for cycle in cycles for _, envelope in cycle.decisions]


def never_started(cycles: Sequence[CountedCycle]) -> list[str]:
    """Attempts that reached the start timeout: no copy of their allocation reached the agent.

    Exempt are attempts during which cell time jumped by as much, because a broker's clock was set
    forward.
    """
    found: list[str] = []
    allocated_ms: dict[tuple[str, int], int] = {}
    now_ms = jumped_ms = 0
    for cycle in cycles:
        if cycle.commit.now_ms - now_ms >= START_TIMEOUT_MS:
            jumped_ms = cycle.commit.now_ms
        now_ms = cycle.commit.now_ms
        for event in events_of([cycle]):
            match event:
                case SlotsAllocatedV1():
                    allocated_ms[event.task_id, event.attempt] = now_ms
                case AllocationRevokedV1(stop=Stop(code=StopCode.START_TIMEOUT)):
                    if allocated_ms[event.task_id, event.attempt] >= jumped_ms:
                        found.append(
                            f"{event.task_id} did not start attempt {event.attempt} before the "
                            "start timeout"
                        )
                case _:
                    pass
    return found


async def broken(
    log: EventLog, acknowledged: Sequence[Acknowledged], removed: Removed
) -> list[str]:
    """Acknowledged jobs that were lost, judged twice, or did not end exactly once.

    Also attempts that never started (`never_started`).
    """
    submitted = Counter(
        event.job_id
        for event in await events(log, "requests")
        if isinstance(event, TaskSubmittedV1)
    )
    verdicts = events_of(await counted_cycles(log, "quota", "admissions"))
    admitted = Counter(event.job_id for event in verdicts if isinstance(event, TaskAdmittedV1))
    rejected = {event.job_id for event in verdicts if isinstance(event, TaskRejectedV1)}
    cycles = await counted_cycles(log, "scheduler", "decisions")
    decided = events_of(cycles)
    ended = Counter(event.task_id for event in decided if isinstance(event, TaskEndedV1))
    found = never_started(cycles)
    for job in acknowledged:
        if not submitted[job.job_id]:
            if job.job_id in removed.jobs:
                continue
            found.append(f"{job.job_id} was acknowledged at {job.position} and is lost")
        elif admitted[job.job_id] != 1:
            kind = "rejected" if job.job_id in rejected else "not judged"
            found.append(f"{job.job_id} was admitted {admitted[job.job_id]} times: {kind}")
        found += [f"{task} ended {ended[task]} times" for task in job.task_ids if ended[task] != 1]
    return found


async def summary(log: EventLog) -> str:
    """The numbers of decisions, ends, preemptions, losses and joins."""
    decided = events_of(await counted_cycles(log, "scheduler", "decisions"))
    joins = sum(isinstance(event, NodeJoinedV1) for event in await events(log, "node-events"))
    preemptions = sum(isinstance(event, PreemptionRequestedV1) for event in decided)
    ends = Counter(str(event.outcome) for event in decided if isinstance(event, TaskEndedV1))
    losses = Counter(str(event.cause) for event in decided if isinstance(event, NodeLostV1))
    return (
        f"{len(decided)} records of decisions, ends {dict(ends)}, "
        f"{preemptions} preemptions, nodes lost {dict(losses)}, {joins} joins"
    )


def judge(
    cluster: Cluster,
    acknowledged: Sequence[Acknowledged],
    witness: Path,
    removed: Removed,
) -> list[str]:
    """Wait until every acknowledged task has ended; return every broken promise."""
    found: list[str] = []
    tasks = [
        task for job in acknowledged if job.job_id not in removed.jobs for task in job.task_ids
    ]
    try:
        cluster.until_ended(tasks, limit_s=ENDED_S)
    except AssertionError as error:
        found.append(str(error).splitlines()[0])
    found += cluster.on_log(lambda log: broken(log, acknowledged, removed))
    try:
        cluster.prove()
    except AssertionError as error:
        found.append(str(error))
    testimony = read_witness(witness)
    found += testimony.problems(removed.attempts)
    print(cluster.on_log(summary))
    print(f"removed: {len(removed.jobs)} jobs, {len(removed.attempts)} attempts")
    print(f"{len(acknowledged)} jobs, {len(tasks)} tasks, {len(testimony.starts)} replicas started")
    return found
