"""Logs that earlier versions wrote, from `tests/data/logs`."""

import json
import lzma
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from yardmaster_eventlog.memory import MemoryLog
from yardmaster_eventlog.port import EventLog, Partition, Record
from yardmaster_eventlog.sqlite.log import SqliteLog
from yardmaster_runtime.clock import ManualClock
from yardmaster_schemas.topics import TOPICS

FOLDER: Final = Path(__file__).parents[1] / "data" / "logs"
#: Each kept log: the rules in its folder's name, a slash, and its file's name.
KEPT: Final = tuple(
    f"{path.parent.name}/{path.name.removesuffix('.xz')}"
    for path in sorted(FOLDER.glob("*/*.xz"))
    if path.name.endswith((".db.xz", ".jsonl.xz"))
)
#: Logs of simulated runs, one per policy: they have no views and no topics of nodes.
POLICIES: Final = ("fair_share", "fitgpp", "priority")
SIMULATED: Final = frozenset(
    name for name in KEPT if name.split("/")[1].removesuffix(".db") in POLICIES
)


def rules_of(name: str) -> int:
    """The version of the rules that decided a kept log; 0: before rules had versions."""
    folder = name.split("/")[0]
    return 0 if folder == "before-1" else int(folder.removeprefix("rules-"))


def kept_file(name: str, folder: Path) -> Path:
    """A copy in `folder` of a kept log that is a SQLite file."""
    path = folder / "log.db"
    path.write_bytes(lzma.decompress((FOLDER / f"{name}.xz").read_bytes()))
    return path


async def kept_log(name: str, folder: Path) -> EventLog:
    """A copy of a kept log, in `folder` or in memory, to which a leader can append."""
    if name.endswith(".db"):
        return await SqliteLog.open(kept_file(name, folder), ManualClock(), create=False)
    log = MemoryLog(ManualClock())
    await log.create_topics(list(TOPICS.values()))
    for line in dumped(FOLDER / f"{name}.xz"):
        place = Partition(line["topic"], line["partition"])
        assert await log.append(place, [record_of(line)]) == line["offset"]
    return log


def dumped(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a dump, in its order."""
    with lzma.open(path, "rt") as lines:
        yield from map(json.loads, lines)


def record_of(line: dict[str, Any]) -> Record:
    """The raw record of a dump's line."""
    headers = tuple((name, b64decode(content)) for name, content in line["headers"])
    value = line["value"]
    return Record(b64decode(line["key"]), None if value is None else b64decode(value), headers)
