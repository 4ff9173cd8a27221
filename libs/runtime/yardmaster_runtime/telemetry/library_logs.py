"""What libraries log, as lines of the service: one form for all, and no flood.

A client that cannot connect says so ten times a second. Of lines alike, which are those of one
place in a library's source, one in REPEAT_S is written; the next one says how many were not.
"""

import logging
from collections.abc import Callable
from typing import Final

from yardmaster_runtime.telemetry.port import Telemetry

REPEAT_S: Final = 10.0
MAX_TEXT: Final = 500
MAX_TRACE: Final = 4_000
#: Places whose lines are remembered; the one seen first is forgotten first.
MAX_PLACES: Final = 256


class LibraryLogs(logging.Handler):
    """Warnings and errors of any logger; `install` once a process, `remove` at its end."""

    def __init__(self, telemetry: Telemetry, monotonic_s: Callable[[], float]) -> None:
        super().__init__(logging.WARNING)
        self._telemetry = telemetry
        self._monotonic_s = monotonic_s
        self._lines = telemetry.counter(
            "library_lines", "Warnings and errors that libraries logged, written or not.", "library"
        )
        self._before: tuple[list[logging.Handler], int] = ([], logging.WARNING)
        #: When a place's line was last written, and how many were left out since.
        self._places: dict[tuple[str, int], tuple[float, int]] = {}

    def install(self) -> None:
        """Be the one that the process's root logger writes to."""
        root = logging.getLogger()
        self._before = (root.handlers, root.level)
        root.handlers = [self]
        root.setLevel(logging.WARNING)

    def remove(self) -> None:
        """Leave the root logger as it was found."""
        root = logging.getLogger()
        if root.handlers == [self]:
            root.handlers, level = self._before
            root.setLevel(level)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, unless its like was written a moment ago.

        One that cannot be written, since its arguments do not fit its text or nobody takes what
        this process says, is no failure of who logged it.
        """
        try:
            self._say(record)
        except Exception:  # noqa: BLE001 as every handler of logging's own
            self.handleError(record)

    def _say(self, record: logging.LogRecord) -> None:
        library = record.name.partition(".")[0]
        self._lines.labels(library).inc()
        place, now_s = (record.pathname, record.lineno), self._monotonic_s()
        written_s, left_out = self._places.pop(place, (-REPEAT_S, 0))
        if now_s - written_s < REPEAT_S:
            self._places[place] = (written_s, left_out + 1)
            return
        self._places[place] = (now_s, 0)
        if len(self._places) > MAX_PLACES:
            del self._places[next(iter(self._places))]
        fields: dict[str, object] = {
            "logger": record.name,
            "found": record.getMessage()[:MAX_TEXT],
            "left_out": left_out,
        }
        if record.exc_info:
            fields["trace"] = logging.Formatter().formatException(record.exc_info)[-MAX_TRACE:]
        say = self._telemetry.error if record.levelno >= logging.ERROR else self._telemetry.warn
        say("library", **fields)
