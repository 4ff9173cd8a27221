"""Warnings and errors that libraries log, as rate-limited log lines of the service.

A client that cannot connect may log ten lines a second. Of the lines from one place in a library's
source, one is written per REPEAT_S; the next one counts the lines left out.
"""

import logging
from collections.abc import Callable
from typing import Final

from yardmaster_runtime.telemetry.port import Telemetry

REPEAT_S: Final = 10.0
MAX_TEXT: Final = 500
MAX_TRACE: Final = 4_000
#: Places that are remembered; the oldest is forgotten first.
MAX_PLACES: Final = 256


class LibraryLogs(logging.Handler):
    """The root logger's only handler; call `install` once per process and `remove` at its end."""

    def __init__(self, telemetry: Telemetry, monotonic_s: Callable[[], float]) -> None:
        super().__init__(logging.WARNING)
        self._telemetry = telemetry
        self._monotonic_s = monotonic_s
        self._lines = telemetry.counter(
            "library_lines", "Warnings and errors that libraries logged, written or not.", "library"
        )
        self._before: tuple[list[logging.Handler], int] = ([], logging.WARNING)
        #: By place: the time of the last written line, and the number of lines left out since.
        self._places: dict[tuple[str, int], tuple[float, int]] = {}

    def install(self) -> None:
        """Replace the root logger's handlers."""
        root = logging.getLogger()
        self._before = (root.handlers, root.level)
        root.handlers = [self]
        root.setLevel(logging.WARNING)

    def remove(self) -> None:
        """Restore the root logger's handlers."""
        root = logging.getLogger()
        if root.handlers == [self]:
            root.handlers, level = self._before
            root.setLevel(level)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, unless one from the same place was written less than REPEAT_S ago.

        Never raises: arguments that do not fit the text, or a closed stream, must not fail the
        library.
        """
        try:
            self._write(record)
        except Exception:  # noqa: BLE001 as in logging's own handlers
            self.handleError(record)

    def _write(self, record: logging.LogRecord) -> None:
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
        error = record.levelno >= logging.ERROR
        (self._telemetry.error if error else self._telemetry.warn)("library", **fields)
