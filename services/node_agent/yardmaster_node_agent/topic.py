"""The node's own topic: made by the scheduler's relay when the node is enrolled, else by the agent.

Where brokers let agents make no topics, an agent that is started before its node is enrolled finds
none. It waits for it, says so, and gives up after `topic_wait_s`: whoever restarts it then sees the
named error rather than an agent that does nothing.
"""

from typing import Final

from yardmaster_eventlog.errors import LogUnavailable, UnknownTopic
from yardmaster_eventlog.port import EventLog, Partition
from yardmaster_node_agent.errors import NotEnrolled
from yardmaster_node_agent.ports import Ports
from yardmaster_node_agent.settings import Settings
from yardmaster_schemas.topics import assignments

#: Between two looks for the topic, in seconds.
LOOK_S: Final = 2.0


async def find_topic(ports: Ports, settings: Settings, patient: EventLog) -> None:
    """Return once the node's topic is there; a log that is away is waited for without an end.

    Raises:
        NotEnrolled: it did not come in time.
        LogError: the log failed otherwise.
    """
    topic = assignments(settings.node)
    place = Partition(topic.name, settings.partition)
    started_s = ports.clock.monotonic_s()
    said = False
    while True:
        try:
            await patient.end(place)
            break
        except UnknownTopic:
            pass
        small = False
        if settings.make_topic and await _made(ports, settings):
            try:
                await patient.end(place)
                break
            except UnknownTopic:
                # Another cell's agent made it, for fewer cells than there are.
                small = True
        waited_s = ports.clock.monotonic_s() - started_s
        if waited_s >= settings.topic_wait_s:
            raise NotEnrolled(node=settings.node, topic=topic.name, waited_s=round(waited_s))
        if not said:
            said = True
            hint = f"yard nodes enrol {settings.node} --pool {settings.pool}"
            if small:
                hint = f"it has no partition {settings.partition}: `kafka-topics --alter` adds one"
            ports.health.report("topic", f"waits for its topic {topic.name}: {hint}")
            ports.telemetry.warn("waits_for_topic", topic=topic.name, hint=hint)
        await ports.clock.sleep(LOOK_S)
    ports.health.report("topic")


async def _made(ports: Ports, settings: Settings) -> bool:
    """Make the topic, where the log lets agents do that."""
    try:
        await ports.log.create_topics([assignments(settings.node)], settings.partition + 1)
    except LogUnavailable as error:
        ports.telemetry.warn("topic_not_made", found=str(error))
        return False
    return True
