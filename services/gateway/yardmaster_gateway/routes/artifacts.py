"""`/v1/tasks/{id}/artifacts`: files that the replicas of a task left, and that were kept.

Agents write them to the store of artifacts, and gateways read them there. They are not events: no
decision reads them, and the log has only the patterns of the job. A file is verified while it is
sent: if its content has another digest than its index says, the answer ends before its last bytes.
"""

import re
from collections.abc import AsyncIterator
from contextlib import aclosing
from hashlib import sha256
from typing import Annotated, Final
from urllib.parse import quote

from fastapi import APIRouter, Query, Request
from starlette.responses import StreamingResponse

from yardmaster_gateway import errors
from yardmaster_gateway.artifact_reader import ArtifactReader, store_errors
from yardmaster_gateway.context import Gateway, Read, ReadContext, bearer_token
from yardmaster_gateway.http.problems import problem_responses
from yardmaster_gateway.routes.tasks import find_task
from yardmaster_packages.artifact_store import Artifact, ArtifactPlace, ArtifactStore
from yardmaster_packages.errors import ArtifactDamaged
from yardmaster_projections.rows import AttemptRow, TaskRow
from yardmaster_schemas.api import ArtifactLeftOut, ArtifactList, KeptArtifact

router = APIRouter(tags=["tasks"])

_MEDIA_TYPE: Final = "application/octet-stream"
_CURSOR: Final = re.compile(r"([0-9]{1,4})\.([0-9]{1,6})")

Attempt = Annotated[int | None, Query(ge=1, le=2**31)]
Replica = Annotated[int | None, Query(ge=0, lt=4096)]


@router.get(
    "/tasks/{task_id}/artifacts",
    operation_id="list_artifacts",
    response_model=ArtifactList,
    responses=problem_responses("bad_cursor", "not_found", "no_artifacts", "artifacts_unavailable"),
)
async def list_artifacts(
    read: Read,
    task_id: str,
    attempt: Attempt = None,
    replica: Replica = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    cursor: str | None = None,
) -> ArtifactList:
    """List the kept files of an attempt; by default of the newest one that has any.

    They appear some time after the attempt has ended.
    """
    row = await _task(read, task_id)
    gateway, start = read.gateway, _start(cursor)
    reader = artifact_reader(gateway)
    with store_errors(gateway.ports.telemetry):
        places = await reader.store.places(row.job.project, row.task_id)
        attempts = sorted({place.attempt for place in places})
        chosen = attempts[-1] if attempt is None and attempts else attempt
        wanted = [
            place
            for place in places
            if place.attempt == chosen and (replica is None or place.replica == replica)
        ]
        # It reads the index of each replica: once for a list is enough.
        missing = (
            await _missing(read, reader, row.task_id, wanted, chosen, replica)
            if cursor is None
            else None
        )
        items, left_out, end = await _page(reader, wanted, start, limit)
    return ArtifactList(
        task_id=row.task_id,
        attempt=chosen,
        attempts=attempts,
        items=items,
        left_out=left_out,
        missing=missing,
        next_cursor=end,
        position=str(read.position),
    )


@router.get(
    "/tasks/{task_id}/artifacts/{path:path}",
    operation_id="read_artifact",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "The content of the file; ETag has its SHA-256",
            "content": {_MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}},
        },
        **problem_responses("not_found", "no_artifacts", "artifacts_unavailable"),
    },
)
async def read_artifact(
    request: Request,
    read: Read,
    task_id: str,
    path: str,
    attempt: Attempt = None,
    replica: Annotated[int, Query(ge=0, lt=4096)] = 0,
) -> StreamingResponse:
    """Read a kept file of a replica, of the given attempt or of the newest one with any files."""
    row = await _task(read, task_id)
    gateway = read.gateway
    reader = artifact_reader(gateway)
    project = row.job.project
    with store_errors(gateway.ports.telemetry):
        if attempt is None:
            places = await reader.store.places(project, row.task_id)
            attempt = max((place.attempt for place in places), default=1)
        place = ArtifactPlace(
            project=project, task_id=row.task_id, attempt=attempt, replica=replica
        )
        index = await reader.index(place)
    files = () if index is None else index.files
    number = next((n for n, artifact in enumerate(files) if artifact.path == path), None)
    if number is None:
        where = f"replica {replica} in attempt {attempt} of task {row.task_id}"
        raise errors.NotFound(what=f"artifact {path[:200]} of {where}")
    gateway.check_stream_limit()
    artifact = files[number]
    headers = {
        "Content-Length": str(artifact.size_bytes),
        "ETag": f'"{artifact.digest}"',
        "Content-Disposition": f"attachment; filename*=utf-8''{quote(path.rpartition('/')[2])}",
        "X-Content-Type-Options": "nosniff",
    }
    content = _content(read, bearer_token(request), reader.store, place, number, artifact)
    return StreamingResponse(content, media_type=_MEDIA_TYPE, headers=headers)


def artifact_reader(gateway: Gateway) -> ArtifactReader:
    """Return the reader of artifacts.

    Raises: NoArtifactStore.
    """
    if gateway.artifacts is None:
        raise errors.NoArtifactStore
    return gateway.artifacts


async def _task(read: ReadContext, task_id: str) -> TaskRow:
    """The task, if the caller may see it and its job was not erased.

    Raises: NotFound.
    """
    row = await find_task(read, task_id)
    if row.job.erased:
        raise errors.NotFound(what=f"artifact of task {task_id}, because its job was erased")
    return row


async def _missing(
    read: ReadContext,
    reader: ArtifactReader,
    task_id: str,
    places: list[ArtifactPlace],
    attempt: int | None,
    replica: int | None,
) -> int:
    """Return the number of wanted replicas of an attempt without kept files.

    Raises:
        ArtifactDamaged, ArtifactsUnavailable.
    """
    if attempt is None:
        return 0
    row = await read.store.get(AttemptRow, f"{task_id}/{attempt}")
    if row is None:
        return 1  # it has not begun, so its number of replicas may still change
    kept = {place.replica for place in places if await reader.index(place) is not None}
    wanted = {placed.placement.replica for placed in row.replicas}
    return len((wanted if replica is None else wanted & {replica}) - kept)


async def _page(
    reader: ArtifactReader, places: list[ArtifactPlace], start: tuple[int, int], limit: int
) -> tuple[list[KeptArtifact], list[ArtifactLeftOut], str | None]:
    """Return at most `limit` files from a replica and number on, and the cursor of the next page.

    Raises:
        ArtifactDamaged, ArtifactsUnavailable.
    """
    items: list[KeptArtifact] = []
    left_out: list[ArtifactLeftOut] = []
    for place in places:
        index = await reader.index(place) if place.replica >= start[0] else None
        if index is None:
            continue
        first = start[1] if place.replica == start[0] else 0
        last = first + limit - len(items)
        if first < len(index.files) and first == last:
            return items, left_out, _cursor(place.replica, first)
        items += [_item(place, artifact) for artifact in index.files[first:last]]
        if first == 0:
            left_out += [
                ArtifactLeftOut(replica=place.replica, path=one.path, reason=one.reason)
                for one in index.left_out
            ]
        if last < len(index.files):
            return items, left_out, _cursor(place.replica, last)
    return items, left_out, None


def _item(place: ArtifactPlace, artifact: Artifact) -> KeptArtifact:
    return KeptArtifact(
        replica=place.replica,
        path=artifact.path,
        size_bytes=artifact.size_bytes,
        digest=artifact.digest,
    )


def _cursor(replica: int, number: int) -> str:
    return f"{replica}.{number}"


def _start(cursor: str | None) -> tuple[int, int]:
    """Return the replica and the number of the first file of a page.

    Raises: BadCursor.
    """
    if cursor is None:
        return 0, 0
    match = _CURSOR.fullmatch(cursor)
    if match is None:
        raise errors.BadCursor()
    return int(match[1]), int(match[2])


async def _content(
    read: ReadContext,
    token: str,
    store: ArtifactStore,
    place: ArtifactPlace,
    number: int,
    artifact: Artifact,
) -> AsyncIterator[bytes]:
    """Yield the content of a file; fail before its last bytes if it is another one.

    Raises:
        ArtifactDamaged, ArtifactNotFound, ArtifactsUnavailable: the answer is cut off.
    """
    digest, waiting = sha256(), b""
    async with (
        read.gateway.stream(read.caller.user, token),
        aclosing(store.read(place, number)) as pieces,
    ):
        async for piece in pieces:
            digest.update(piece)
            if waiting:
                yield waiting
            waiting = piece
    if digest.hexdigest() != artifact.digest:
        found = f"its content has the digest {digest.hexdigest()}"
        raise ArtifactDamaged(path=f"{place.folder}/{number}", found=found)
    yield waiting
