"""The levels of log lines."""

from typing import Literal

#: Lines below the level are not written.
LogLevel = Literal["info", "warning", "error"]
