"""The views service: follows a cell's log into a store that gateways read."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from yardmaster.eventlog.errors import LogUnavailable
from yardmaster.eventlog.port import EventLog
from yardmaster.runtime.clock import Clock
from yardmaster.runtime.telemetry import Telemetry
from yardmaster.schemas.fields import Name
from yardmaster.views.follower import Follower, Views


class ViewsSettings(BaseSettings):
    """`YARD_VIEWS_CELL` and its like."""

    model_config = SettingsConfigDict(env_prefix="YARD_VIEWS_", frozen=True, extra="forbid")

    cell: Name = "main"
    partition: Annotated[int, Field(ge=0)] = 0
    #: Without a new record, how long until the log is looked at anyway.
    idle_wait_s: Annotated[float, Field(gt=0, le=600)] = 5.0
    #: How long to wait before an unavailable log is tried again.
    retry_s: Annotated[float, Field(gt=0, le=60)] = 0.5


@dataclass(frozen=True, slots=True)
class ViewsPorts:
    """What the service needs of the world; the log's topics are there already."""

    log: EventLog
    views: Views
    clock: Clock
    telemetry: Telemetry


async def run(ports: ViewsPorts, settings: ViewsSettings) -> None:
    """Follow the log until cancelled.

    Raises:
        SchemaError, CoreError: a machine's topic holds what it may not. The views stay as they were
            before; `yard replay verify` says more.
        LogError: the log is closed, cut or damaged.
    """
    follower = Follower(ports.log, ports.views, settings.cell, settings.partition, ports.telemetry)
    retries = ports.telemetry.counter("log_retries", "Calls repeated, the log being unavailable")
    await follower.start()
    while True:
        try:
            await follower.catch_up()
            await ports.log.wait(follower.ends(), settings.idle_wait_s)
        except LogUnavailable as error:
            # What was read but not projected is read again, from where the store is.
            retries.inc()
            ports.telemetry.warn("log_unavailable", found=str(error))
            await ports.clock.sleep(settings.retry_s)
            await follower.start()
