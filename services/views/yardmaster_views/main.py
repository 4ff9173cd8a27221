"""The views service: follows a cell's log into stores that gateways read.

Here are its parts as the embedded mode runs them, for one cell in one process. On Kafka they are
hosted by Faust, which shares the cells out among workers (`faust_app.py`).
"""

from dataclasses import dataclass

from yardmaster_eventlog.port import EventLog
from yardmaster_projections.fold import USAGE, VIEWS
from yardmaster_runtime.clock import Clock
from yardmaster_runtime.telemetry.port import Telemetry
from yardmaster_runtime.waiting import together
from yardmaster_views.follower import Follower, Metrics, Views
from yardmaster_views.host import Host, HostMetrics
from yardmaster_views.settings import ViewsSettings

__all__ = ["ViewsPorts", "ViewsSettings", "run"]


@dataclass(frozen=True, slots=True)
class ViewsPorts:
    """What the service needs of the world; the log's topics are there already."""

    log: EventLog
    views: Views
    clock: Clock
    telemetry: Telemetry
    #: Where metered usage goes; None: nothing is metered.
    usage: Views | None = None


async def run(ports: ViewsPorts, settings: ViewsSettings) -> None:
    """Follow the log until cancelled; raises what `Host.run` raises."""
    metrics = Metrics(ports.telemetry)
    host_metrics = HostMetrics(ports.telemetry)
    stores = [(VIEWS, ports.views)]
    if ports.usage is not None:
        stores.append((USAGE, ports.usage))
    hosts = []
    for fold, views in stores:
        follower = Follower(ports.log, views, settings.cell, settings.partition, metrics, fold=fold)
        hosts.append(
            Host(
                follower,
                ports.log,
                ports.clock,
                ports.telemetry,
                host_metrics,
                settings,
                interval_s=settings.usage_interval_s if fold is USAGE else 0.0,
            )
        )
    await together(*(host.run() for host in hosts))
