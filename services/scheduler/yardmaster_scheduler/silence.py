"""The silence watch: reads heartbeats and observes nodes that are silent for too long.

Heartbeats expire, so the scheduler does not decide on them but on the observation, which the next
cycle records. Silence is measured in this process's elapsed time, from the last heartbeat or from
the moment when this watch first saw the node's incarnation, whichever is later. Times in heartbeats
are ignored, and a new leader gives every node its full timeout.

Silence is measured up to the last moment for which all heartbeats were read, not up to now, because
an unread record may be a heartbeat. While the log is unavailable or the leader is delayed, the time
beyond `ShellLimits.deaf_s` between two such moments does not count as silence: otherwise an outage
longer than the timeouts would lose all nodes. Both rules can only delay a loss;
`yardmaster_core.fencing` relies on that.
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
    """A node that should send heartbeats, and its timeout."""

    name: str
    incarnation: str
    timeout_s: int


class SilenceWatch:
    """Watches the nodes that `live` returns at each check."""

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
        self._partition = Partition(HEARTBEATS.name, partition)
        #: By (node, incarnation), the last heartbeat: elapsed seconds, and time in ms.
        self._heard: dict[tuple[str, str], tuple[float, int]] = {}
        #: Every heartbeat written before this moment was read.
        self._read_up_to_s = clock.monotonic_s()

    async def run(self) -> NoReturn:
        """Watch until cancelled, from the topic's end.

        Raises:
            LogUnavailable, LogClosed, UnknownTopic.
        """
        offset = await self._log.end(self._partition)
        self._read_up_to_s = checked_s = self._clock.monotonic_s()
        self.check()
        while True:
            left_s = checked_s + self._limits.silence_check_s - self._clock.monotonic_s()
            if left_s > 0:
                if await self._log.wait({self._partition: offset}, left_s):
                    offset = await self._read(offset)
                continue
            offset = await self._read_to_the_end(offset)
            self.check()
            checked_s = self._clock.monotonic_s()

    async def _read_to_the_end(self, offset: int) -> int:
        """Read all heartbeats that were written before now; `_read_up_to_s` becomes this time."""
        started_s = self._clock.monotonic_s()
        end = await self._log.end(self._partition)
        while offset < end:
            offset = await self._read(offset)
        self._extend(started_s - self._read_up_to_s - self._limits.deaf_s)
        self._read_up_to_s = started_s
        return offset

    async def _read(self, offset: int) -> int:
        try:
            records = await self._log.read(
                self._partition, offset, max_records=self._limits.max_read
            )
        except OffsetGone:
            # Heartbeats of any node expired unread, so every node gets its full timeout again.
            self._heard.clear()
            return await self._log.end(self._partition)
        for stored in records:
            self.on_heartbeat(stored)
        return records[-1].offset + 1 if records else offset

    def _extend(self, deaf_s: float) -> None:
        """Shorten every node's silence by `deaf_s`; this can only delay a loss."""
        if deaf_s > 0:
            self._metrics.deaf.inc(deaf_s)
            self._metrics.telemetry.warn("deaf", for_s=round(deaf_s, 1))
            for life, (since_s, at_ms) in self._heard.items():
                self._heard[life] = (since_s + deaf_s, at_ms)

    def on_heartbeat(self, stored: StoredRecord) -> None:
        """Take a heartbeat; ignore a wrong source and an unknown incarnation."""
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
            # Not live, or not checked since it joined. Nodes that are not live take no memory.
            self._metrics.heartbeats_ignored.inc()
            return
        self._metrics.heartbeats.inc()
        self._heard[life] = (self._clock.monotonic_s(), self._clock.now_ms())

    def check(self) -> None:
        """Observe the live nodes that are silent for longer than their timeout."""
        now = (self._clock.monotonic_s(), self._clock.now_ms())
        heard = {}
        for node in self._live():
            life = (node.name, node.incarnation)
            since_s, at_ms = heard[life] = self._heard.get(life, now)
            silent_s = self._read_up_to_s - since_s
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
