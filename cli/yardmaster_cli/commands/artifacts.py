"""`yard artifacts`: list and fetch files that tasks left, and that were kept."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from yardmaster_cli.errors import BadUsage, CliError, Exit
from yardmaster_cli.output.formats import Column
from yardmaster_cli.server.remote import Remote
from yardmaster_cli.session import NounGroup, Session
from yardmaster_packages.artifact_files import selection
from yardmaster_packages.paths import problem_of_path
from yardmaster_schemas.api import ArtifactLeftOut, KeptArtifact
from yardmaster_schemas.counts import count_of
from yardmaster_schemas.durations import duration_s

#: Seconds between two looks whether files are kept.
POLL_S: Final = 0.3

artifacts = NounGroup("artifacts", help="List and get files that tasks left.")

_ATTEMPT = click.option(
    "--attempt",
    type=click.IntRange(min=1),
    metavar="N",
    help="Attempt (default: the newest with any).",
)
_WAIT = click.option(
    "--wait",
    metavar="TIME",
    help="Wait up to TIME until the files of the attempt are kept: 30s, 10m.",
)
_REPLICA = click.option(
    "--replica", type=click.IntRange(min=0), metavar="N", help="Only files of this replica."
)


@dataclass(frozen=True, slots=True)
class _Kept:
    """A kept file of one task."""

    task_id: str
    index: int
    attempt: int
    file: KeptArtifact


@dataclass(slots=True)
class _Found:
    """The kept files of tasks, the paths that were left out, and replicas without any."""

    kept: list[_Kept]
    left_out: list[ArtifactLeftOut]
    missing: int = 0


@artifacts.command("ls")
@click.argument("ref", metavar="REF")
@_ATTEMPT
@_REPLICA
@_WAIT
def list_artifacts(
    session: Session, ref: str, attempt: int | None, replica: int | None, wait: str | None
) -> None:
    """List the files that a task, or each task of a job, left.

    The job file names them with run.artifacts. They are kept after the end of each attempt.
    """
    out = session.out
    found = _find(session.remote, ref, attempt, replica, wait)
    columns = (
        Column("TASK", lambda row: row["task_id"]),
        Column("ATTEMPT", lambda row: row["attempt"], right=True),
        Column("REPLICA", lambda row: row["replica"], right=True),
        Column("BYTES", lambda row: row["size_bytes"], right=True),
        Column("DIGEST", lambda row: row["digest"], wide=True),
        Column("PATH", lambda row: row["path"]),
    )
    rows = [
        {"task_id": one.task_id, "attempt": one.attempt, **one.file.model_dump()}
        for one in found.kept
    ]
    out.items(rows, columns, name="path")
    for left in found.left_out:
        out.note(f"left out of replica {left.replica}: {left.path}: {left.reason}")
    if not found.kept:
        out.note(_none(ref))
    elif found.missing:
        out.note(f"not kept yet: the files of {count_of(found.missing, 'replica')}")


@artifacts.command("get")
@click.argument("ref", metavar="REF")
@click.argument("patterns", nargs=-1, metavar="[PATTERN]...")
@_ATTEMPT
@_REPLICA
@_WAIT
@click.option(
    "--to",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(),
    metavar="DIR",
    help="Folder to write to (default: the current one).",
)
@click.option("--force", is_flag=True, help="Replace files that exist.")
def get(
    session: Session,
    ref: str,
    patterns: tuple[str, ...],
    attempt: int | None,
    replica: int | None,
    wait: str | None,
    to: Path,
    force: bool,
) -> None:
    """Fetch the files that a task, or each task of a job, left.

    PATTERNs select some of them, with the rules of .gitignore. Files of several tasks get a folder
    for each task, named by its index; files of a gang get one for each replica.
    """
    remote, out = session.remote, session.out
    found = _find(remote, ref, attempt, replica, wait)
    kept = list(_selected(found.kept, patterns))
    if not kept:
        raise CliError(_none(ref), exit_code=Exit.NOT_FOUND)
    targets = [(one, to / path) for one, path in zip(kept, _local_paths(kept), strict=True)]
    existing = [path for _, path in targets if path.exists()]
    if existing and not force:
        raise BadUsage(
            f"{existing[0]} exists", hint="--force replaces it; --to DIR chooses a folder"
        )
    for one, path in targets:
        remote.client.save_artifact(one.task_id, one.file, path, attempt=one.attempt)
        out.say(str(path))
    total = sum(one.file.size_bytes for one in kept)
    out.note(f"{count_of(len(kept), 'file')}, {total} bytes")


def _find(
    remote: Remote, ref: str, attempt: int | None, replica: int | None, wait: str | None
) -> _Found:
    deadline = None if wait is None else time.monotonic() + _seconds(wait)
    found = _Found([], [])
    for task in remote.rows_of(remote.resolve(ref)):
        task_id = task["task_id"]
        if deadline is not None:
            newest = max(1, task["attempt"])
            _until_kept(remote, task_id, attempt or newest, replica, deadline)
        pages = list(remote.client.artifact_pages(task_id, attempt=attempt, replica=replica))
        found.missing += pages[0].missing or 0
        for page in pages:
            found.left_out.extend(page.left_out)
            found.kept.extend(
                _Kept(task["task_id"], task["index"], page.attempt or 0, file)
                for file in page.items
            )
    return found


def _seconds(wait: str) -> int:
    try:
        return duration_s(wait)
    except ValueError as error:
        raise BadUsage(f"--wait: {error}") from None


def _until_kept(
    remote: Remote, task_id: str, attempt: int, replica: int | None, deadline: float
) -> None:
    """Wait until the files of all replicas of an attempt are kept.

    Raises: CliError: they are not before the deadline.
    """
    while remote.client.artifacts(task_id, attempt=attempt, replica=replica, limit=1).missing:
        if time.monotonic() >= deadline:
            raise CliError(
                f"the files of attempt {attempt} of {task_id} are not kept yet",
                exit_code=Exit.TIMEOUT,
                hint=f"yard logs {task_id} says why if the agent could not keep them",
            )
        time.sleep(POLL_S)


def _none(ref: str) -> str:
    return (
        f"no artifacts of {ref} are kept: run.artifacts of its job names them, and the agent keeps "
        "them after the end of an attempt"
    )


def _selected(kept: list[_Kept], patterns: tuple[str, ...]) -> Iterator[_Kept]:
    """Yield the files that any pattern selects; all without patterns.

    Raises: BadUsage: a pattern is not valid.
    """
    try:
        wanted = selection(patterns)
    except ValueError as error:
        raise BadUsage(str(error)) from error
    for one in kept:
        if not patterns or wanted.match_file(one.file.path):
            yield one


def _local_paths(kept: list[_Kept]) -> Iterator[Path]:
    """Yield the path of each file below the chosen folder.

    Raises: CliError: the server names a path that would leave the folder.
    """
    tasks = len({one.task_id for one in kept}) > 1
    gang = any(one.file.replica > 0 for one in kept)
    for one in kept:
        problem = problem_of_path(one.file.path)
        if problem is not None:
            found = f"the path {one.file.path!r} is refused: {problem}"
            raise CliError(found, exit_code=Exit.REFUSED)
        folders = [str(one.index)] * tasks + [str(one.file.replica)] * gang
        yield Path(*folders, *one.file.path.split("/"))
