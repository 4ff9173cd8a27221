"""Calls of the file systems of fsspec that several stores need."""

import os
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

#: Under these keys file systems of fsspec say when a file was written.
_TIMES: Final = ("mtime", "LastModified", "last_modified", "updated", "created")


def children(fs: Any, folder: str) -> dict[str, dict[str, Any]]:
    """Return information about what a folder contains, by name; none if it is missing."""
    fs.invalidate_cache(folder)  # a cached listing hides the files of another process
    try:
        found = fs.ls(folder, detail=True)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    return {info["name"].rstrip("/").rsplit("/", 1)[-1]: info for info in found}


def written_ms(fs: Any, info: Mapping[str, Any]) -> int:
    """Return when a file was written, in milliseconds since 1970, by the store's clock."""
    found: Any = next((info[key] for key in _TIMES if info.get(key) is not None), None)
    if isinstance(found, str):
        found = datetime.fromisoformat(found)
    elif found is None:
        found = fs.modified(info["name"])
    if isinstance(found, datetime):
        found = (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp()
    return int(found * 1000)


def remove_file(fs: Any, path: str) -> bool:
    """Remove a file; return whether it existed."""
    try:
        fs.rm_file(path)
    except FileNotFoundError:
        return False
    return True


def sync_folder(folder: str) -> None:
    """Make the names in a local folder durable."""
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
