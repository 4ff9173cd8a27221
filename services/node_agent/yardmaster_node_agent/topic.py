"""Wait for the node's own topic, or create it.

The scheduler's relay creates the topic when the node is enrolled; otherwise the agent does. If
brokers do not let agents create topics, an agent that starts before its node is enrolled finds no
topic. It reports that it waits, and raises NotEnrolled after `topic_wait_s`, so that operators see
an error instead of an agent that does nothing.
"""

from typing import Final

from yardmaster_eventlog.errors import (
    LogTruncated,
    LogUnavailable,
    OffsetGone,
    ReadPastEnd,
    UnknownTopic,
)
from yardmaster_eventlog.port import EventLog, Partition
from yardmaster_node_agent.agent_state import Reached
from yardmaster_node_agent.errors import NotEnrolled
from yardmaster_node_agent.ports import Ports
from yardmaster_node_agent.settings import Settings
from yardmaster_runtime.cycle_reader import digest_of
from yardmaster_schemas.topics import assignments

#: Seconds between two checks whether the topic exists.
POLL_S: Final = 2.0


async def find_topic(ports: Ports, settings: Settings, retrying: EventLog) -> None:
    """Return when the node's topic exists; wait without limit while the log is unavailable.

    Raises:
        NotEnrolled: the topic was not created in time.
        LogError: another error of the log.
    """
    topic = assignments(settings.node)
    partition = Partition(topic.name, settings.partition)
    started_s = ports.clock.monotonic_s()
    reported = False
    while True:
        try:
            await _end_of(retrying, partition)
            break
        except UnknownTopic:
            pass
        small = False
        if settings.make_topic and await _create_topic(ports, settings):
            try:
                await _end_of(retrying, partition)
                break
            except UnknownTopic:
                # An agent of another cell created the topic with too few partitions.
                small = True
        waited_s = ports.clock.monotonic_s() - started_s
        if waited_s >= settings.topic_wait_s:
            raise NotEnrolled(node=settings.node, topic=topic.name, waited_s=round(waited_s))
        if not reported:
            reported = True
            hint = f"yard nodes enroll {settings.node} --pool {settings.pool}"
            if small:
                hint = f"it has no partition {settings.partition}: `kafka-topics --alter` adds one"
            ports.health.report("topic", f"waits for its topic {topic.name}: {hint}")
            ports.telemetry.warn("waits_for_topic", topic=topic.name, hint=hint)
        await ports.clock.sleep(POLL_S)
    ports.health.report("topic")


async def position_at_end(log: EventLog, partition: Partition) -> Reached:
    """Return the position after all records, with the digest of the last record if it is stored.

    Raises: LogError.
    """
    while True:
        end, digest = await _end_of(log, partition), None
        try:
            for last in await log.read(partition, end - 1, max_records=1) if end else ():
                digest = digest_of(last.record).hex()
        except OffsetGone:
            pass  # the record has expired
        except (LogTruncated, ReadPastEnd) as error:
            if error.fields.get("topic") != partition.topic:
                raise
            continue
        return Reached(offset=end, digest=digest)


async def _end_of(log: EventLog, partition: Partition) -> int:
    """Return the end of the topic, also if it has lost records that this process has read."""
    while True:
        try:
            return await log.end(partition)
        except LogTruncated as error:
            # For topics that expire, a log raises LogTruncated once for each loss; then call again.
            if error.fields.get("topic") != partition.topic:
                raise


async def _create_topic(ports: Ports, settings: Settings) -> bool:
    """Create the topic; False if the log does not let the agent do it."""
    try:
        await ports.log.create_topics([assignments(settings.node)], settings.partition + 1)
    except LogUnavailable as error:
        ports.telemetry.warn("topic_not_made", found=str(error))
        return False
    return True
