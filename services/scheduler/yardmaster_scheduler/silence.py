"""The silence watch: reads heartbeats and observes nodes that are silent for too long.

Heartbeats expire, so the scheduler does not decide on them but on the observation, which the next
cycle records. Silence is measured in this process's elapsed time, from the last heartbeat or from
the moment when this watch first saw the node's incarnation, whichever is later. Times in heartbeats
are ignored.

Every candidate watches, also as a standby, and only the leader observes. So a new leader has heard
what the last one heard, and a silent node is lost in time, however often the leader changes. Only a
process that just started gives every node its full timeout.

Silence is measured up to the last moment for which all heartbeats were read, not up to now, because
an unread record may be a heartbeat. While the log is unavailable or the leader is delayed, the time
beyond `ShellLimits.deaf_s` between two such moments does not count as silence: otherwise an outage
longer than the timeouts would lose all nodes. If heartbeats were lost, the watch continues at the
topic's end and gives every node its full timeout again. These rules can only delay a loss;
`yardmaster_core.fencing` relies on that.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NoReturn

from yardmaster_core.machine import Decision
from yardmaster_eventlog.codec import decode
from yardmaster_eventlog.errors import (
    LogTruncated,
    LogUnavailable,
    OffsetGone,
    ReadPastEnd,
    UnknownTopic,
)
from yardmaster_eventlog.port import EventLog, Partition, StoredRecord
from yardmaster_eventlog.reader import what_is_lost
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
    """Watches the nodes that `live` returns at each check.

    `live` returns None if the nodes are not known at present. `now_ms` returns the time of the next
    cycle, or None if this process does not lead.
    """

    def __init__(
        self,
        log: EventLog,
        live: Callable[[], Iterable[LiveNode] | None],
        observations: Observations,
        *,
        now_ms: Callable[[], int | None],
        clock: Clock,
        limits: ShellLimits,
        metrics: ShellMetrics,
        partition: int = 0,
    ) -> None:
        self._log = log
        self._live = live
        self._observations = observations
        self._now_ms = now_ms
        self._clock = clock
        self._limits = limits
        self._metrics = metrics
        self._partition = Partition(HEARTBEATS.name, partition)
        #: By (node, incarnation), two times in elapsed seconds: the start of its silence, moved
        #: forward by time that does not count, and the time when its last heartbeat was read.
        self._heard: dict[tuple[str, str], tuple[float, float]] = {}
        #: Every heartbeat written before this moment was read.
        self._read_up_to_s = clock.monotonic_s()

    async def run(self) -> NoReturn:
        """Watch until cancelled, from the topic's end.

        While the log is unavailable, or has lost the topic, no node counts as silent.

        Raises:
            LogClosed.
        """
        offset: int | None = None
        checked_s = self._clock.monotonic_s()
        while True:
            try:
                if offset is None:
                    offset = await self._log.end(self._partition)
                    self._read_up_to_s = checked_s = self._clock.monotonic_s()
                    self.check()
                left_s = checked_s + self._limits.silence_check_s - self._clock.monotonic_s()
                if left_s > 0:
                    if await self._log.wait({self._partition: offset}, left_s):
                        offset = await self._read(offset)
                    continue
                offset = await self._read_to_the_end(offset)
            except (LogUnavailable, UnknownTopic):
                await self._clock.sleep(self._limits.silence_check_s)
                continue
            except (LogTruncated, OffsetGone, ReadPastEnd) as lost:
                if lost.fields.get("topic") != HEARTBEATS.name:
                    raise
                self._forget(what_is_lost(lost))
                offset = None
                continue
            self.check()
            checked_s = self._clock.monotonic_s()

    def _forget(self, found: str) -> None:
        """Give every node its full timeout again, because unread heartbeats may have been lost."""
        if self._heard:
            self._metrics.heartbeats_lost.inc()
            self._metrics.telemetry.error("heartbeats_lost", found=found)
        self._heard.clear()

    async def _read_to_the_end(self, offset: int) -> int:
        """Read all heartbeats that were written before now; `_read_up_to_s` becomes this time."""
        started_s = self._clock.monotonic_s()
        end = await self._log.end(self._partition)
        if end < offset:
            raise ReadPastEnd(topic=HEARTBEATS.name, offset=offset, end=end)
        while offset < end:
            offset = await self._read(offset)
        self._extend(started_s - self._read_up_to_s - self._limits.deaf_s)
        self._read_up_to_s = started_s
        return offset

    async def _read(self, offset: int) -> int:
        records = await self._log.read(self._partition, offset, max_records=self._limits.max_read)
        for stored in records:
            self.on_heartbeat(stored)
        return records[-1].offset + 1 if records else offset

    def _extend(self, deaf_s: float) -> None:
        """Shorten every node's silence by `deaf_s`; this can only delay a loss."""
        if deaf_s > 0:
            self._metrics.deaf.inc(deaf_s)
            self._metrics.telemetry.warn("deaf", for_s=round(deaf_s, 1))
            for life, (since_s, heard_s) in self._heard.items():
                self._heard[life] = (since_s + deaf_s, heard_s)

    def on_heartbeat(self, stored: StoredRecord) -> None:
        """Restart a node's silence at its heartbeat.

        A heartbeat is ignored if its source is not the node's agent, or its incarnation is unknown.
        """
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
            # The node is not live, or was not checked since it joined. Other nodes take no memory.
            self._metrics.heartbeats_ignored.inc()
            return
        self._metrics.heartbeats.inc()
        now_s = self._clock.monotonic_s()
        self._heard[life] = (now_s, now_s)

    def check(self) -> None:
        """Observe the live nodes that are silent for longer than their timeout."""
        live, now_ms = self._live(), self._now_ms()
        if live is None:
            return
        now_s = self._clock.monotonic_s()
        heard: dict[tuple[str, str], tuple[float, float]] = {}
        for node in live:
            life = (node.name, node.incarnation)
            since_s, heard_s = heard[life] = self._heard.get(life, (now_s, now_s))
            silent_s = self._read_up_to_s - since_s
            if now_ms is None or silent_s <= node.timeout_s:
                continue
            event = NodeSilenceObservedV1(
                node=node.name,
                incarnation=node.incarnation,
                last_heard_at_ms=now_ms - round((now_s - heard_s) * 1000),
            )
            if self._observations.put(Decision(event, node.name)):
                self._metrics.silences.inc()
                self._metrics.telemetry.warn(
                    "node_silent", node=node.name, for_s=round(silent_s, 1)
                )
        self._heard = heard
