"""Upload a folder as the package that a job names as its context."""

import tempfile
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import IO, Final

from pydantic import ValidationError

from yardmaster.connection import quoted
from yardmaster.errors import ApiError, InputError, no_answer
from yardmaster.transport import Transport
from yardmaster_packages.archive import PackedFolder, largest_files, pack
from yardmaster_packages.errors import ContextTooLarge, ContextUnusable
from yardmaster_packages.limits import PackageLimits
from yardmaster_schemas.api import Package
from yardmaster_schemas.job_folders import JobContext

#: Bytes of the archive that are sent at once.
_PIECE_BYTES: Final = 256 * 1024
#: Seconds until the answer to the last byte, beyond the usual: the gateway writes to its store.
_STORE_S: Final = 60.0


def upload(
    transport: Transport,
    folder: Path,
    project: str,
    on_sent: Callable[[int, int], None] | None = None,
) -> JobContext:
    """Upload a folder, unless the project has uploaded an equal one; see `Client.upload_context`.

    The archive is written to a temporary file first, because its digest names it.

    Raises:
        InputError: the folder is missing, too large, or contains what no package may contain.
        ApiError.
    """
    if not folder.exists():
        raise InputError(f"run.context: there is no folder {folder.absolute()}")
    limits = PackageLimits()
    # The gateway knows the limit of the archive, which is a setting of its own.
    limits = PackageLimits(packed_bytes=limits.unpacked_bytes)
    try:
        with tempfile.TemporaryFile() as file:
            packed = pack(folder, file, limits=limits)
            url = f"/v1/packages/{quoted(project)}/{packed.digest}"
            found = _stored(transport, url)
            if found is None:
                found = _put(transport, url, folder, packed, file, on_sent)
    except ContextUnusable as error:
        raise InputError(f"run.context: {error}") from error
    return JobContext(digest=packed.digest, packed_bytes=found.packed_bytes)


def _stored(transport: Transport, url: str) -> Package | None:
    """Return the stored package; None if it is not stored.

    The size comes from the store: another version of zlib may have compressed the folder.
    """
    try:
        return _parsed(transport.send("GET", url, {}, None, {}, 0.0).content)
    except ApiError as error:
        if error.document["code"] != "not_found":
            raise
        return None


def _put(
    transport: Transport,
    url: str,
    folder: Path,
    packed: PackedFolder,
    file: IO[bytes],
    on_sent: Callable[[int, int], None] | None,
) -> Package:
    total = packed.packed_bytes

    def pieces() -> Iterator[bytes]:
        file.seek(0)
        sent = 0
        while piece := file.read(_PIECE_BYTES):
            yield piece
            sent += len(piece)
            if on_sent is not None:
                on_sent(sent, total)

    headers = {"Content-Type": "application/octet-stream", "Content-Length": str(total)}
    try:
        return _parsed(transport.send("PUT", url, {}, pieces, headers, _STORE_S).content)
    except ApiError as error:
        if error.status != HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            raise
        found = f"its archive has {total} bytes, more than the gateway accepts ({error})"
        largest = largest_files(folder)
        raise ContextTooLarge(path=folder, found=found, largest=largest) from error


def _parsed(content: bytes) -> Package:
    try:
        return Package.model_validate_json(content)
    except ValidationError as error:
        raise ApiError(no_answer("bad_answer", "the answer is not a package")) from error
