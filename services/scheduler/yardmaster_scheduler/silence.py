"""Listens for heartbeats, and says when a node was not heard for too long.

Heartbeats expire and so decide nothing themselves: what is decided on is the observation, which the
next cycle records. Silence is measured with the shell's own elapsed time, from the later of the
last heartbeat and the moment this shell first knew the node's incarnation: what agents say of time
counts for nothing, and a new leader gives every node its full time.

It lasts up to the last moment of which all heartbeats were read, not up to now: what was not read
may be one. And while the log is away, or the leader is held up, what goes beyond
`ShellLimits.deaf_s` between two such moments is nobody's silence: else an outage longer than their
timeout would lose all nodes. Both only make a loss come later, which is what
`core.fencing` builds on.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NoReturn

from yardmaster_core.machine import Decision
from yardmaster_eventlog.codec import decode
from yardmaster_eventlog.errors import OffsetGone
from yardmaster_eventlog.port import EventLog, Partition, StoredRecord
from yardmaster_runtime.clock import Clock
from yardmaster_runtime.machine.observations import Observations
from yardmaster_scheduler.metrics import ShellMetrics
from yardmaster_scheduler.settings import ShellLimits
from yardmaster_schemas.errors import SchemaError
from yardmaster_schemas.events.decisions import NodeSilenceObservedV1
from yardmaster_schemas.events.expiring import NodeHeartbeatV1
from yardmaster_schemas.sources import written_by_agent
from yardmaster_schemas.topics import HEARTBEATS


@dataclass(frozen=True, slots=True)
class LiveNode:
    """A node that should be heard, and how long it may be silent."""

    name: str
    incarnation: str
    timeout_s: int


class SilenceWatch:
    """Watches the nodes that `live` names, which is asked anew at each check."""

    def __init__(
        self,
        log: EventLog,
        live: Callable[[], Iterable[LiveNode]],
        observations: Observations,
        *,
        clock: Clock,
        limits: ShellLimits,
        metrics: ShellMetrics,
        partition: int = 0,
    ) -> None:
        self._log = log
        self._live = live
        self._observations = observations
        self._clock = clock
        self._limits = limits
        self._metrics = metrics
        self._place = Partition(HEARTBEATS.name, partition)
        #: (node, incarnation) -> when it was last heard: elapsed seconds, and time in ms.
        self._heard: dict[tuple[str, str], tuple[float, int]] = {}
        #: Whatever was written before was heard.
        self._listened_s = clock.monotonic_s()

    async def run(self) -> NoReturn:
        """Watch until cancelled, from the topic's end on.

        Raises:
            LogUnavailable, LogClosed, UnknownTopic.
        """
        offset = await self._log.end(self._place)
        self._listened_s = checked_s = self._clock.monotonic_s()
        self.check()
        while True:
            left_s = checked_s + self._limits.silence_check_s - self._clock.monotonic_s()
            if left_s > 0:
                if await self._log.wait({self._place: offset}, left_s):
                    offset = await self._listen(offset)
                continue
            offset = await self._listen_to_the_end(offset)
            self.check()
            checked_s = self._clock.monotonic_s()

    async def _listen_to_the_end(self, offset: int) -> int:
        """Hear all that was written before this moment, which so becomes `_listened_s`."""
        began_s = self._clock.monotonic_s()
        end = await self._log.end(self._place)
        while offset < end:
            offset = await self._listen(offset)
        self._forgive(began_s - self._listened_s - self._limits.deaf_s)
        self._listened_s = began_s
        return offset

    async def _listen(self, offset: int) -> int:
        try:
            records = await self._log.read(self._place, offset, max_records=self._limits.max_read)
        except OffsetGone:
            # Heartbeats expired unread: of anybody, so everybody has their full time again.
            self._heard.clear()
            return await self._log.end(self._place)
        for stored in records:
            self.hear(stored)
        return records[-1].offset + 1 if records else offset

    def _forgive(self, deaf_s: float) -> None:
        """Take so many seconds off everybody's silence; who was heard in them gains, no harm."""
        if deaf_s > 0:
            self._metrics.deaf.inc(deaf_s)
            self._metrics.telemetry.warn("deaf", for_s=round(deaf_s, 1))
            for life, (since_s, at_ms) in self._heard.items():
                self._heard[life] = (since_s + deaf_s, at_ms)

    def hear(self, stored: StoredRecord) -> None:
        """Take a heartbeat; one that is not the node's own, or of an unknown life, is ignored."""
        try:
            envelope = decode(stored.record)
        except SchemaError:
            self._metrics.heartbeats_ignored.inc()
            return
        beat = envelope.data
        if not isinstance(beat, NodeHeartbeatV1) or not written_by_agent(
            envelope.source, beat.node, beat.incarnation
        ):
            self._metrics.heartbeats_ignored.inc()
            return
        life = (beat.node, beat.incarnation)
        if life not in self._heard:
            # Not live, or not looked at since it joined; what is not live takes no memory.
            self._metrics.heartbeats_ignored.inc()
            return
        self._metrics.heartbeats.inc()
        self._heard[life] = (self._clock.monotonic_s(), self._clock.now_ms())

    def check(self) -> None:
        """Observe which live nodes have been silent for too long."""
        now = (self._clock.monotonic_s(), self._clock.now_ms())
        heard = {}
        for node in self._live():
            life = (node.name, node.incarnation)
            since_s, at_ms = heard[life] = self._heard.get(life, now)
            silent_s = self._listened_s - since_s
            if silent_s <= node.timeout_s:
                continue
            event = NodeSilenceObservedV1(
                node=node.name, incarnation=node.incarnation, last_heard_at_ms=at_ms
            )
            if self._observations.put(Decision(event, node.name)):
                self._metrics.silences.inc()
                self._metrics.telemetry.warn(
                    "node_silent", node=node.name, for_s=round(silent_s, 1)
                )
        self._heard = heard
