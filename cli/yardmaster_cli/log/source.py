"""The log, and the cell of it, that a command reads without a server.

`--log` takes a file or the URL of a log. Its default is `YARD_LOG`, then the log of a running
`yard up`, then the file of the embedded mode. `YARD_KAFKA__...` configures the connection to
brokers as for services, and `YARD_CELLS` names the cells of a log with several.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from yardmaster_cli.errors import BadUsage, bad_setting
from yardmaster_cli.session import Session
from yardmaster_eventlog.port import EventLog, Partition
from yardmaster_runtime.clock import SystemClock
from yardmaster_runtime.log_format import check_log_format
from yardmaster_runtime.service import on_kafka, open_log
from yardmaster_runtime.settings import KafkaOptions, SharedSettings
from yardmaster_schemas.access import AUDITOR

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LogSource:
    """A log and one of its cells; `shown` is the name of the log in messages."""

    settings: SharedSettings
    cell: str
    partition: int
    shown: str

    def at(self, topic: str) -> Partition:
        """The partition with the cell's records of a topic."""
        return Partition(topic, self.partition)


def log_source(session: Session, given: str | None, cell: str | None) -> LogSource:
    """The log that the options and settings name.

    Raises:
        BadUsage: the file does not exist, or the settings name no such cell.
    """
    try:
        settings = SharedSettings()
    except ValidationError as error:
        raise bad_setting(error) from None
    url = given if given is not None and _is_url(given) else ""
    if given is None:
        # A running cluster publishes the URL of its log; the log of the embedded mode is a file. A
        # folder on the command line overrides the environment.
        named = session.config.data.source == "flag --data"
        url = ("" if named else settings.log) or session.config.log or ""
    if url:
        shown = url
    else:
        shown = str(session.log_file(given))
        url = f"sqlite:///{shown}"
    name = cell or settings.cell
    if cell is None and settings.cells and name not in settings.cells:
        name = settings.cells[0]
    if settings.cells and name not in settings.cells:
        raise BadUsage(f"there is no cell {name}", hint=f"cells: {', '.join(settings.cells)}")
    number = settings.cells.index(name) if settings.cells else settings.partition
    chosen = settings.model_copy(update={"log": url, "cell": name, "partition": number})
    dev = session.config.dev
    if dev is not None and dev.credentials is not None and url == dev.log:
        # The cluster of this machine: its brokers know the auditor, who reads every topic.
        chosen = chosen.model_copy(update={"kafka": _auditor(settings, dev.credentials)})
    return LogSource(chosen, name, number, shown)


def _auditor(settings: SharedSettings, credentials: str) -> KafkaOptions:
    """The options of a reader of the local brokers; a user that the environment names remains."""
    if settings.kafka.sasl_username is not None:
        return settings.kafka
    return settings.kafka.model_copy(
        update={
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_username": AUDITOR,
            "sasl_password_file": Path(credentials) / "kafka" / AUDITOR,
        }
    )


def _is_url(text: str) -> bool:
    return text.partition(":")[0] in ("sqlite", "kafka") and "//" in text


def file_source(path: Path, cell: str = "main") -> LogSource:
    """Return the source for a cell of a log in a SQLite file."""
    return LogSource(SharedSettings(log=f"sqlite:///{path}", cell=cell), cell, 0, str(path))


@asynccontextmanager
async def opened(source: LogSource) -> AsyncIterator[EventLog]:
    """Open an existing log.

    Raises:
        NotOurLog, OtherLogFormat, LogCorrupt, LogUnavailable, SecretUnreadable.
    """
    log = await open_log(source.settings, SystemClock(), create=False)
    try:
        if on_kafka(source.settings):
            await check_log_format(log, source.shown)
        yield log
    finally:
        await log.close()


def on_log(source: LogSource, work: Callable[[EventLog], Awaitable[T]]) -> T:
    """Run `work` on the log and return its result."""

    async def run() -> T:
        async with opened(source) as log:
            return await work(log)

    return asyncio.run(run())
