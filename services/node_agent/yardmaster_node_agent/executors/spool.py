"""The output of a container as a local file, without loss or repetition.

The engine gives each part of the output a time, and returns parts from a time on, in the order of
its log. The spool notes the time of the newest part that it has written, how many parts have this
time, and the size of its file. A later agent process cuts the file to this size and continues after
this part. Each stream has its own spool.

Parts that are followed as they come may be repeated: when an engine begins a file of its log, it
may send the first parts of that file twice (Docker 20.10 does). So where a followed part may be a
repetition, the log is read from there to its end (`begin`, `add`, `complete`), and then followed
again. The times show a repetition: it is older than the newest part, or of the same time with data
that a part of this time had. Parts of a long line have the same time. A part from after the clock
was set back looks like a repetition too, and is read for that reason. Only output that is older
than the time from which the log is followed is lost then, because the engine leaves it out.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
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
        #: The time of the part that may be a repetition; None: there is none.
        self._doubtful: str | None = None
        if self._path.exists() and self._path.stat().st_size > self._position.size:
            os.truncate(self._path, self._position.size)
        self._start(self._position)

    def begin(self) -> str:
        """Expect the log from a time on; return that time, in seconds with nanoseconds."""
        self._start(self._position)
        since = min(self._at, self._doubtful or self._at, key=_order)
        return seconds_of(since) if since else "0"

    def add(self, parts: Sequence[OutputPart]) -> None:
        """Write the parts of the log that follow the position."""
        self._write(b"".join(map(self._new_data, parts)))

    def follow(self, parts: Sequence[OutputPart]) -> bool:
        """Write the parts that follow the position, up to the first one that may be a repetition.

        Return whether there was none. After one, the log must be read.
        """
        new = bytearray()
        for part in parts:
            if self._may_repeat(part):
                self._doubtful = part.at
                break
            new += self._new_data(part)
        self._write(new)
        return self._doubtful is None

    def complete(self) -> bool:
        """End a reading of the log; return whether it had the position.

        If it had not, the engine has removed that part of its log. Then read the log once more:
        all that it has is new.
        """
        found = self._skip == 0
        if found:
            self._doubtful = None
        else:
            self._position = replace(self._position, parts=0)
        return found

    def _start(self, position: SpoolPosition) -> None:
        self._at, self._parts, self._skip = position.at, position.parts, position.parts
        #: The hashes of the data of the parts with the newest time.
        self._same: set[int] = set()

    def _may_repeat(self, part: OutputPart) -> bool:
        if part.at == self._at:
            return self._skip == 0 and hash(part.data) in self._same
        return self._skip > 0 or _order(part.at) < _order(self._at)

    def _new_data(self, part: OutputPart) -> bytes:
        """Return the data of a part if it follows the position, and move the position there."""
        if self._skip > 0 and part.at != self._at:
            return b""
        if part.at != self._at:
            self._at, self._parts = part.at, 0
            self._same.clear()
        self._same.add(hash(part.data))
        if self._skip > 0:
            self._skip -= 1
            return b""
        self._parts += 1
        return part.data

    def _write(self, new: bytes | bytearray) -> None:
        size = self._position.size + len(new)
        position = SpoolPosition(self._at, self._parts, size)
        if position == self._position:
            return
        with self._path.open("ab") as file:
            file.write(new)
        self._position = position
        draft = self._note.with_name(self._note.name + ".new")
        draft.write_text(json.dumps(asdict(position)), encoding="ascii")
        draft.rename(self._note)

    def _read(self) -> SpoolPosition:
        try:
            return _POSITION.validate_json(self._note.read_bytes())
        except (OSError, ValidationError):
            return SpoolPosition()


def _order(at: str) -> str:
    """Return a text that sorts as the time does, which has as many digits as it needs."""
    return at.rstrip("Z")
