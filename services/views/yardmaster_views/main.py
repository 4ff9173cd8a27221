"""The views service: folds the log of a cell into stores that gateways read.

This module runs one cell in one process, for the embedded mode. On Kafka, Faust assigns the cells
to workers (`faust_app.py`).
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
    """The ports of the service; the topics of the log exist already."""

    log: EventLog
    views: Views
    clock: Clock
    telemetry: Telemetry
    #: The store of metered usage; None: usage is not metered.
    usage: Views | None = None


async def run(ports: ViewsPorts, settings: ViewsSettings) -> None:
    """Follow the log until cancelled.

    Raises: see `Host.run`.
    """
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
