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
#: Each kept log, by folder and form.
KEPT: Final = tuple(
    f"{path.parent.name}/{path.name.partition('.')[0]}"
    for path in sorted(FOLDER.glob("*/*"))
    if path.name in ("sqlite.db.xz", "kafka.jsonl.xz")
)


async def kept_log(name: str, folder: Path) -> EventLog:
    """A copy of a kept log, in `folder` or in memory, that can be led on."""
    version, form = name.split("/")
    if form == "sqlite":
        path = folder / "log.db"
        path.write_bytes(lzma.decompress((FOLDER / version / "sqlite.db.xz").read_bytes()))
        return await SqliteLog.open(path, ManualClock(), create=False)
    log = MemoryLog(ManualClock())
    await log.create_topics(list(TOPICS.values()))
    for line in dumped(FOLDER / version / "kafka.jsonl.xz"):
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
