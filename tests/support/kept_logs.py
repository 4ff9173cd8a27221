"""Logs that earlier versions wrote, from `tests/data/logs`."""

import lzma
from pathlib import Path
from typing import Final

from yardmaster_eventlog.port import EventLog
from yardmaster_eventlog.sqlite.log import SqliteLog
from yardmaster_runtime.clock import ManualClock

FOLDER: Final = Path(__file__).parents[1] / "data" / "logs"
#: Each kept log: the rules in its folder's name, a slash, and its file's name.
KEPT: Final = tuple(
    f"{path.parent.name}/{path.name.removesuffix('.xz')}"
    for path in sorted(FOLDER.glob("*/*.db.xz"))
)


def rules_of(name: str) -> int:
    """The version of the rules that decided a kept log."""
    return int(name.split("/")[0].removeprefix("rules-"))


def kept_file(name: str, folder: Path) -> Path:
    """A copy of a kept log in `folder`, a SQLite file."""
    path = folder / "log.db"
    path.write_bytes(lzma.decompress((FOLDER / f"{name}.xz").read_bytes()))
    return path


async def kept_log(name: str, folder: Path) -> EventLog:
    """A copy of a kept log in `folder`, to which a leader can append."""
    return await SqliteLog.open(kept_file(name, folder), ManualClock(), create=False)
