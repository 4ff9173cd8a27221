"""Choose the log and the cell that a command reads without a server.

- `--log` takes a file or the URL of a log. Its default is `YARD_LOG`, then the log of the cluster
  on this machine that serves the context's server, then the file of the embedded mode.
- If a context, `--server` or YARD_SERVER names a server and `--log` is not given, the log must be
  the log of that server.
- `YARD_KAFKA__...` configures the connection to brokers as for services.
- `YARD_CELLS` names the cells of a log that has several.
- A log whose first records have expired needs snapshots: those of `--snapshots`, of
  `YARD_SNAPSHOTS`, or of the cluster on this machine that owns the log.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from pydantic import ValidationError

from yardmaster.configuration import Config
from yardmaster.errors import ApiError
from yardmaster_cli.errors import BadUsage, CliError, Exit, bad_setting
from yardmaster_cli.server.reader import Reader
from yardmaster_cli.session import Session
from yardmaster_eventlog.codec import decode
from yardmaster_eventlog.errors import LogCorrupt, OffsetGone, UnknownTopic
from yardmaster_eventlog.port import EventLog, Partition
from yardmaster_eventlog.reader import first_offset
from yardmaster_eventlog.snapshots import SnapshotStore
from yardmaster_runtime.clock import SystemClock
from yardmaster_runtime.errors import LogBeginsLater
from yardmaster_runtime.log_format import check_log_format
from yardmaster_runtime.service import on_kafka, open_log
from yardmaster_runtime.settings import KafkaOptions, SharedSettings
from yardmaster_schemas.access import AUDITOR
from yardmaster_schemas.errors import SchemaError
from yardmaster_schemas.events.requests import LogCreatedV1
from yardmaster_schemas.topics import REQUESTS

T = TypeVar("T")

#: The longest wait for the server's log id, in seconds a try.
SERVER_S: Final = 5.0
SERVER_TRIES: Final = 2
_HINT: Final = (
    "yard contexts use dev selects the cluster of this machine, YARD_DATA=DIR the folder of "
    "another; --log FILE|URL reads a log of any cluster"
)


@dataclass(frozen=True, slots=True)
class ServerLog:
    """The server whose log is to be read, and the id of that log.

    `unknown`: why the server did not tell the id; empty when it did.
    """

    server: str
    log_id: str = ""
    unknown: str = ""


@dataclass(frozen=True, slots=True)
class LogSource:
    """A log and one of its cells; `shown` is the name of the log in messages.

    `server`: the server that must serve this log. None: no check is needed, because the command
    line names the log, or the server's cluster announces it. `snapshots`: the URL of the snapshots
    of the log's state machines, if known.
    """

    settings: SharedSettings
    cell: str
    partition: int
    shown: str
    note: Callable[[str], None]
    server: ServerLog | None = None
    snapshots: str | None = None

    @property
    def store(self) -> SnapshotStore | None:
        """The snapshots of the log's machines.

        Raises: SnapshotsUnavailable: the URL names no store.
        """
        return None if self.snapshots is None else SnapshotStore(self.snapshots)

    def at(self, topic: str) -> Partition:
        """The partition of `topic` that contains the cell's records."""
        return Partition(topic, self.partition)


def log_source(
    session: Session, given: str | None, cell: str | None, snapshots: str | None = None
) -> LogSource:
    """The log that the options and settings name.

    Raises:
        BadUsage: the file does not exist, or the settings name no such cell.
    """
    try:
        settings = SharedSettings()
    except ValidationError as error:
        raise bad_setting(error) from None
    here = session.config.here
    url = given if given is not None and _is_url(given) else ""
    if given is None:
        # A running cluster publishes the URL of its log; the log of the embedded mode is a file. A
        # folder on the command line overrides the environment.
        named = session.config.data.source == "flag --data"
        url = ("" if named else settings.log) or (here.log if here is not None else "") or ""
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
    announced = here is not None and url == (here.log or f"sqlite:///{here.folder / 'log.db'}")
    if announced and here is not None and here.credentials is not None:
        # The log is of the cluster on this machine. Its brokers know the user auditor, who may read
        # every topic.
        chosen = chosen.model_copy(update={"kafka": _auditor(settings, here.credentials)})
    server = None
    if given is None and not announced:
        named = bool(settings.log) or session.config.data.source != "default"
        server = server_of(session, shown, named=named)
    folder = here.folder if announced and here is not None else _folder_of(url)
    place = snapshots or os.environ.get("YARD_SNAPSHOTS") or _snapshots_in(folder)
    return LogSource(chosen, name, number, shown, session.out.note, server, place)


def _folder_of(url: str) -> Path | None:
    """The data directory of a log in a file."""
    path = url.removeprefix("sqlite:///")
    return None if path == url else Path(path).parent


def _snapshots_in(folder: Path | None) -> str | None:
    place = None if folder is None else folder / "snapshots"
    return str(place) if place is not None and place.is_dir() else None


def server_of(session: Session, shown: str, *, named: bool) -> ServerLog | None:
    """The server that must serve the log `shown`; None if the settings name no server.

    `named`: a setting names the log. The log is then read even if the server does not answer.

    Raises: CliError: the server does not answer, and only a default names the log.
    """
    if not session.config.server_named:
        return None
    server = _log_of_server(session.config)
    if server.unknown and not named:
        raise CliError(
            f"nothing says that {shown} is the log of {server.server}: {server.unknown}",
            exit_code=Exit.UNREACHABLE,
            hint=_HINT,
        )
    return server


def _log_of_server(config: Config) -> ServerLog:
    """Ask the server of the settings which log it serves."""
    server = config.address()
    reader = Reader(
        server,
        config.bearer(),
        sleep=time.sleep,
        ca=config.ca.value,
        max_tries=SERVER_TRIES,
        answer_s=SERVER_S,
    )
    context = config.context.value if config.server.source.startswith("context ") else None
    shown = server if context is None else f"{server} (context {context})"
    try:
        return ServerLog(shown, str(reader.get("/v1/version")["log_id"]))
    except ApiError as error:
        return ServerLog(shown, unknown=str(error.document["detail"]))
    except KeyError:
        return ServerLog(shown, unknown="it does not say which log it serves")


async def identify(log: EventLog, source: LogSource) -> None:
    """Print which log the command reads.

    Raises: CliError: the server that the settings name does not serve this log.
    """
    log_id = await id_of(log, source.at(REQUESTS.name))
    source.note(f"reading {source.shown}: log {log_id or 'without an id'}, cell {source.cell}")
    server = source.server
    if server is None:
        return
    if log_id is None and await first_offset(log, source.at(REQUESTS.name)):
        source.note(
            f"not compared with the log of {server.server}: the record with the id has expired"
        )
    elif server.unknown:
        source.note(f"not compared with the log of {server.server}: {server.unknown}")
    elif server.log_id != log_id:
        raise CliError(
            f"{source.shown} is log {log_id or 'without an id'}, but {server.server} serves log "
            f"{server.log_id}",
            exit_code=Exit.CONFLICT,
            hint=_HINT,
        )


async def id_of(log: EventLog, requests: Partition) -> str | None:
    """The id of the log, from a cell's first record; None if it is missing or has no id, or if it
    is damaged, which the reader of the log reports.
    """
    try:
        first = await log.read(requests, 0, max_records=1)
        event = decode(first[0].record).data if first else None
    except (UnknownTopic, OffsetGone, SchemaError, LogCorrupt):
        return None
    return event.log_id if isinstance(event, LogCreatedV1) else None


def _auditor(settings: SharedSettings, credentials: str) -> KafkaOptions:
    """The options to read from the local brokers as the auditor, or as the environment's user."""
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
    """Return the source for a cell of a log in a SQLite file; nothing is printed about it."""
    settings = SharedSettings(log=f"sqlite:///{path}", cell=cell)
    return LogSource(settings, cell, 0, str(path), note=lambda _: None)


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


@contextmanager
def needing_every_record(what: str, hint: str) -> Iterator[None]:
    """Turn LogBeginsLater into an error which says that `what` needs every record of the log.

    Raises: CliError: the log has lost its first records; `hint` says what to do.
    """
    try:
        yield
    except LogBeginsLater as error:
        raise CliError(
            f"{error.fields['expired']}, and {what} needs every record of the log",
            exit_code=Exit.CHECK_FAILED,
            hint=hint,
        ) from None


def on_log(source: LogSource, work: Callable[[EventLog], Awaitable[T]]) -> T:
    """Open the log, print which log it is, run `work` on it and return the result.

    Raises: CliError: the server that the settings name does not serve this log.
    """

    async def run() -> T:
        async with opened(source) as log:
            await identify(log, source)
            return await work(log)

    return asyncio.run(run())
