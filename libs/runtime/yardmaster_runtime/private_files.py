"""Report the files and folders of a service that other users may write.

Such a user can replace what the service believes: a log, a snapshot, a fence. The service starts
nevertheless, because some volumes give their group access on purpose.
"""

from collections.abc import Iterable
from pathlib import Path

from yardmaster_runtime.telemetry.port import Telemetry
from yardmaster_schemas.file_modes import other_writers


def report_writable(telemetry: Telemetry, paths: Iterable[Path]) -> None:
    """Warn of each existing path that other users may write (`writable_by_others`)."""
    for path in paths:
        try:
            writers = other_writers(path.stat().st_mode)
        except OSError:
            continue
        if writers is not None:
            warn_writable(telemetry, str(path), writers)


def warn_writable(telemetry: Telemetry, path: str, writers: str) -> None:
    """Warn that `writers` may write a path."""
    telemetry.warn(
        "writable_by_others",
        path=path,
        found=f"{writers} may write it, and so change what this service believes",
        hint=f"chmod go-w {path}",
    )
