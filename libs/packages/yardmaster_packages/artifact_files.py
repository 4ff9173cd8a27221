"""Which files of a replica's working folder are its artifacts, and how to read them safely.

The folder belongs to the task's user, and the agent may have more permissions than this user. So no
link is followed: a path is opened one name after the other, each relative to the folder before it.
"""

import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pathspec import GitIgnoreSpec

from yardmaster_packages.limits import ArtifactLimits
from yardmaster_packages.paths import problem_of_path

#: Paths that are named with the reason why they are not kept; the others are only counted.
NAMED_LEFT_OUT: Final = 100
#: Flags to open a path that a task may have replaced: follow no link, wait for no pipe.
_CAREFULLY: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundFile:
    """A file that is an artifact."""

    #: Relative to the working folder, with slashes.
    path: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A path that the patterns select, and that is not kept."""

    path: str
    reason: str


@dataclass(slots=True)
class FoundFiles:
    """The files that the patterns select, sorted by path, within the limits."""

    files: list[FoundFile] = field(default_factory=list)
    #: The first `NAMED_LEFT_OUT` paths that are not kept.
    left_out: list[LeftOut] = field(default_factory=list)
    left_out_count: int = 0

    def leave_out(self, path: str, reason: str) -> None:
        """Count a path that is not kept."""
        self.left_out_count += 1
        if len(self.left_out) < NAMED_LEFT_OUT:
            self.left_out.append(LeftOut(path=path, reason=reason))


def selection(patterns: Sequence[str]) -> GitIgnoreSpec:
    """Return what selects the paths of artifacts: the patterns, by the rules of gitignore.

    Raises:
        ValueError: a pattern is not valid; the message names it.
    """
    for pattern in patterns:
        try:
            GitIgnoreSpec.from_lines([pattern])
        except (ValueError, re.error) as error:  # a class such as [z-a] is no regular expression
            raise ValueError(f"{pattern!r} is not a pattern: {error}") from error
    return GitIgnoreSpec.from_lines(patterns)


def find_artifacts(
    folder: Path, patterns: Sequence[str], *, limits: ArtifactLimits, owner: int | None
) -> FoundFiles:
    """Return the files below `folder` that the patterns select.

    Args:
        owner: the user whose files count; None: files of any user.

    Raises:
        ValueError: a pattern is not valid.
        OSError: the folder cannot be read.
    """
    selected = selection(patterns)
    found = FoundFiles()
    sizes: dict[str, int] = {}
    for seen, (path, status) in enumerate(_walk(folder, found)):
        if seen >= limits.scanned:
            found.leave_out(".", f"the folder has more than {limits.scanned} files and folders")
            break
        if stat.S_ISDIR(status.st_mode) or not selected.match_file(path):
            continue
        problem = _problem(status, owner)
        if problem is None:
            sizes[path] = status.st_size
        else:
            found.leave_out(path, problem)
    total = 0
    for path in sorted(sizes):
        if len(found.files) >= limits.files:
            found.leave_out(path, f"more than {limits.files} files")
        elif total + sizes[path] > limits.total_bytes:
            found.leave_out(path, f"with it, the files have more than {limits.total_bytes} bytes")
        else:
            total += sizes[path]
            found.files.append(FoundFile(path=path, size_bytes=sizes[path]))
    return found


def _problem(status: os.stat_result, owner: int | None) -> str | None:
    """Return why a path is not kept; None if it is."""
    if stat.S_ISLNK(status.st_mode):
        return "it is a symbolic link"
    if not stat.S_ISREG(status.st_mode):
        return "it is not a regular file"
    if owner is not None and status.st_uid != owner:
        return "it belongs to another user"
    return None


def _walk(folder: Path, found: FoundFiles) -> Iterator[tuple[str, os.stat_result]]:
    """Yield what is below a folder; folders that cannot be read are left out."""
    # A stack instead of recursion: a folder may be nested deeper than Python's limit.
    pending = [""]
    while pending:
        parent = pending.pop()
        try:
            with opened_below(folder, parent, os.O_DIRECTORY) as opened, os.scandir(opened) as all_:
                children = [(child.name, child.stat(follow_symlinks=False)) for child in all_]
        except OSError as error:
            if not parent:
                raise
            found.leave_out(parent, f"it cannot be read: {error.strerror}")
            continue
        for name, status in children:
            path = f"{parent}/{name}" if parent else name
            problem = problem_of_path(path)
            if problem is not None:
                found.leave_out(ascii(path)[:200], problem)
                continue
            yield path, status
            if stat.S_ISDIR(status.st_mode):
                pending.append(path)


@contextmanager
def opened_below(folder: Path, path: str, flags: int = 0) -> Iterator[int]:
    """Open a path below a folder without following links; yield its descriptor.

    Raises: OSError.
    """
    names = path.split("/") if path else []
    way = _CAREFULLY | os.O_DIRECTORY
    opened = os.open(folder, way if names else way | flags)
    try:
        for number, name in enumerate(names, start=1):
            last = number == len(names)
            inner = os.open(name, _CAREFULLY | flags if last else way, dir_fd=opened)
            os.close(opened)
            opened = inner
        yield opened
    finally:
        os.close(opened)
