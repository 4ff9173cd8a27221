"""The views service on Kafka: a Faust app that assigns the cells to workers.

Faust assigns cells to workers; the follower reads the log by position, because the commits define
the order across topics, and a consumer group does not know this order (decision 8 in
docs/explanation/decisions). So the app's two Faust agents, one per projection, read only the topic
`requests`; each of its partitions is a cell. A request is acknowledged once the store covers it, or
if this worker does not follow its cell, because another worker does or the cell has stopped. The
committed offsets of the group decide nothing: a follower starts from the position in Redis, and the
lag of the group is the lag of the followed cells.

A rebalance neither loses nor repeats changes, because each write names the position before it.
"""

import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, NoReturn

import faust
from faust.app.base import BootStrategy
from faust.auth import SASLCredentials, SSLCredentials
from faust.types.auth import CredentialsT
from yarl import URL

from yardmaster_eventlog.kafka.settings import KafkaSettings
from yardmaster_eventlog.port import EventLog
from yardmaster_projections.cached import CachedReader
from yardmaster_projections.errors import ViewsUnavailable
from yardmaster_projections.fold import FOLDS, USAGE, VIEWS
from yardmaster_projections.redis.store import RedisViewStore
from yardmaster_runtime.garbage_collection import tune_gc
from yardmaster_runtime.service import Process, kafka_settings, run_process
from yardmaster_runtime.waiting import first_of, together, within
from yardmaster_schemas.topics import REQUESTS
from yardmaster_views.cells import Cells
from yardmaster_views.follower import Follower, Metrics, Views
from yardmaster_views.group import Group
from yardmaster_views.host import Host, HostMetrics
from yardmaster_views.progress import Progress
from yardmaster_views.settings import ViewsSettings

GROUP: Final = "yardmaster-views"
#: Heartbeats of a member per session timeout.
HEARTBEATS_A_SESSION: Final = 12
COMMIT_S: Final = 1.0
#: The longest that Redis may take to answer a health check, and the pause between two checks, in
#: seconds.
PING_S: Final = 1.0


class _OnlyAMember(BootStrategy):
    """Selects the services of Faust that start."""

    enable_kafka_producer = False
    enable_web = False


class App(faust.App):
    """A Faust app without the parts that the views do not need: folder, producer, web server."""

    BootStrategy = _OnlyAMember

    def _create_directories(self) -> None:
        """Faust needs no folder: it stores nothing on disk."""


def credentials(kafka: KafkaSettings) -> CredentialsT | None:
    """Return the credentials that Yardmaster's own Kafka clients use, in the form of Faust."""
    client = kafka.client()
    match client["security_protocol"]:
        case "SSL":
            return SSLCredentials(context=client["ssl_context"])
        case "SASL_SSL" | "SASL_PLAINTEXT":
            return SASLCredentials(
                username=client["sasl_plain_username"],
                password=client["sasl_plain_password"],
                mechanism=client["sasl_mechanism"],
                ssl_context=client["ssl_context"],
            )
        case _:
            return None


def make_app(settings: ViewsSettings, kafka: KafkaSettings, cells: Cells) -> faust.App:
    """Return a Faust app with one agent per projection, on the partitions of `requests`."""
    app = App(
        settings.group or GROUP,
        broker=[URL(f"kafka://{host}") for host in kafka.bootstrap.split(",")],
        broker_client_id=kafka.client_id,
        broker_credentials=credentials(kafka),
        broker_session_timeout=settings.session_timeout_s,
        broker_heartbeat_interval=settings.session_timeout_s / HEARTBEATS_A_SESSION,
        broker_request_timeout=max(kafka.call_timeout_s, 2 * settings.session_timeout_s),
        broker_commit_interval=COMMIT_S,
        consumer_auto_offset_reset="latest",
        processing_guarantee="at_least_once",
        store="memory://",
        cache="memory://",
        web_enabled=False,
        topic_allow_declare=False,
        topic_disable_leader=True,
        stream_wait_empty=False,
        autodiscover=False,
    )
    topic = app.topic(REQUESTS.name, key_type=bytes, value_type=bytes, value_serializer="raw")

    def acknowledges(view: str) -> Any:
        async def agent(stream: Any) -> None:
            async for event in stream.events():
                message = event.message
                await cells.wait_covered(message.partition, view, REQUESTS.name, message.offset)

        return agent

    app.agent(topic, name=VIEWS.name, concurrency=1)(acknowledges(VIEWS.name))
    app.agent(topic, name=USAGE.name, concurrency=1)(acknowledges(USAGE.name))

    async def assigned(_: object, /, *given: Any, **__: object) -> None:
        cells.assign(frozenset(one.partition for one in given[0] if one.topic == REQUESTS.name))

    app.on_partitions_assigned.connect(assigned, weak=False)
    return app


async def serve(process: Process, settings: ViewsSettings) -> None:
    """Run a worker until cancelled.

    Raises: see `Cells.run`.
    """
    kafka = kafka_settings(settings)
    # Cached rows live long, like the state of a machine.
    tune_gc()
    log = await process.open_log(settings)
    try:
        workers = _Workers(process, settings, log)
        cells = Cells(settings.partitions, workers.serve, process.telemetry, process.health)
        group = Group(lambda: make_app(settings, kafka, cells), process, settings)
        await first_of(cells.run(), group.run(), _watch_store(process, settings))
    finally:
        await log.close()


async def _watch_store(process: Process, settings: ViewsSettings) -> NoReturn:
    """Report the health of the store, so that workers without cells report it like all others.

    Any cell will do, because the check is about the store.
    """
    cell = next(iter(settings.partitions.values()))
    store = RedisViewStore(settings.redis, cell, process.clock)
    reported = False
    try:
        while True:
            found = None
            try:
                await within(process.clock, PING_S, store.ping())
            except ViewsUnavailable as error:
                found = f"{error.code}: {error}"
            except TimeoutError:
                found = f"{ViewsUnavailable.code}: Redis does not answer within {PING_S:g} s"
            if found is not None or reported:
                process.health.report("store", found)
                reported = True
            await process.clock.sleep(PING_S)
    finally:
        with suppress(Exception):
            await store.close()


class _Workers:
    """Follows a cell: a host per projection, each with its own store and position."""

    def __init__(self, process: Process, settings: ViewsSettings, log: EventLog) -> None:
        self._process = process
        self._settings = settings
        self._log = log
        self._metrics = Metrics(process.telemetry)
        self._host_metrics = HostMetrics(process.telemetry)

    async def serve(self, partition: int, cell: str, progress: Mapping[str, Progress]) -> None:
        """Follow a cell until cancelled."""
        settings, process = self._settings, self._process
        hosts: list[Host] = []
        stores = {
            name: RedisViewStore(settings.redis, cell, process.clock, space=name) for name in FOLDS
        }
        try:
            for name, fold in FOLDS.items():
                reader = CachedReader(stores[name], max_rows=settings.max_cached_rows)
                follower = Follower(
                    self._log,
                    Views(stores[name], reader),
                    cell,
                    partition,
                    self._metrics,
                    fold=fold,
                    max_unsaved=settings.max_unsaved_rows,
                )
                hosts.append(
                    Host(
                        follower,
                        self._log,
                        process.clock,
                        process.telemetry,
                        self._host_metrics,
                        settings,
                        interval_s=settings.usage_interval_s if fold is USAGE else 0.0,
                        health=process.health,
                        progress=progress[name],
                    )
                )
            await together(*(host.run() for host in hosts))
        finally:
            for store in stores.values():
                with suppress(Exception):
                    await store.close()
            for host in hosts:
                host.release()


def main() -> None:
    """The console script."""
    sys.exit(run_process(ViewsSettings, "views", serve))


if __name__ == "__main__":
    main()
