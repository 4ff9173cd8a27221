"""The output of a container as a local file, without loss or repetition.

The engine gives each part of the output a time, and returns parts from a time on. The spool notes
the time of the newest part that it has written, how many parts have this time, and the size of its
file. A later agent process cuts the file to this size and continues there. Each stream has its own
spool, because times only rise within one stream.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter, ValidationError

from yardmaster_node_agent.executors.engine import OutputPart, seconds_of
from yardmaster_schemas.fields import Count


@dataclass(frozen=True, slots=True)
class SpoolPosition:
    """The position of a spool: `parts` parts of the time `at` are in its first `size` bytes."""

    at: str = ""
    parts: Count = 0
    size: Count = 0


_POSITION: Final = TypeAdapter(SpoolPosition)


class Spool:
    """The file of one stream, and next to it a file with its position."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._note = path.with_name(path.name + ".position")
        self._position = self._read()
        self._skip = self._position.parts
        if self._path.exists() and self._path.stat().st_size > self._position.size:
            os.truncate(self._path, self._position.size)

    @property
    def since(self) -> str:
        """The time from which the engine must return the output, in seconds with nanoseconds."""
        return seconds_of(self._position.at) if self._position.at else "0"

    def begin(self) -> None:
        """Expect the parts from `since` on again."""
        self._skip = self._position.parts

    def add(self, parts: Sequence[OutputPart]) -> None:
        """Write parts, except repetitions."""
        at, count, new = self._position.at, self._position.parts, bytearray()
        for part in parts:
            if part.at == at and self._skip > 0:
                self._skip -= 1
                continue
            count = count + 1 if part.at == at else 1
            at = part.at
            new += part.data
        if new or at != self._position.at or count != self._position.parts:
            with self._path.open("ab") as file:
                file.write(new)
            self._position = SpoolPosition(at, count, self._position.size + len(new))
            self._save()

    def _save(self) -> None:
        draft = self._note.with_name(self._note.name + ".new")
        draft.write_text(json.dumps(asdict(self._position)), encoding="ascii")
        draft.rename(self._note)

    def _read(self) -> SpoolPosition:
        try:
            return _POSITION.validate_json(self._note.read_bytes())
        except (OSError, ValidationError):
            return SpoolPosition()
