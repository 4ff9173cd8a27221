"""`/client/FILE`: the wheel of this version, so that tasks and laptops need no package index.

The wheel is built from the installed files, so every installation (a checkout, an image) serves the
version that it runs, without a build tool. The wheel contains no data of users, and downloading it
needs no token.
"""

import base64
import csv
import hashlib
import io
import zipfile
from collections.abc import Iterator
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from fastapi import APIRouter, Request, Response
from starlette.concurrency import run_in_threadpool

from yardmaster_gateway.http.problems import answer, problem_responses
from yardmaster_runtime.distribution import CLIENT_PATH, NAME, other_version, wheel_file

router = APIRouter()

#: The import packages of the distribution; pyproject.toml lists the same packages.
PACKAGES: Final = (
    *("yardmaster", "yardmaster_cli", "yardmaster_core", "yardmaster_eventlog"),
    *("yardmaster_gateway", "yardmaster_kubernetes", "yardmaster_localcluster"),
    "yardmaster_node_agent",
    *("yardmaster_packages", "yardmaster_projections", "yardmaster_quota", "yardmaster_runtime"),
    *("yardmaster_scheduler", "yardmaster_schemas", "yardmaster_simulation", "yardmaster_views"),
)
#: The files of `.dist-info` that belong to a wheel; installers write the others.
_METADATA: Final = ("METADATA", "WHEEL", "entry_points.txt")
#: The time of each file in the wheel: the earliest that zip allows. It is constant, so that equal
#: files give an equal wheel.
_TIME: Final = (1980, 1, 1, 0, 0, 0)
_MEDIA_TYPE: Final = "application/zip"


@router.head(CLIENT_PATH + "/{file}", include_in_schema=False)
@router.get(
    CLIENT_PATH + "/{file}",
    operation_id="client_wheel",
    response_class=Response,
    responses={
        200: {
            "description": "The wheel",
            "content": {_MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}},
        },
        **problem_responses("not_found", anywhere=False),
    },
)
async def client_wheel(file: str, request: Request) -> Response:
    """Download this version's Python package, for `pip install`."""
    known = wheel_file()
    if file != known:
        found = f"There is no {file}; this gateway serves {CLIENT_PATH}/{known}."
        return answer("not_found", found, request.state.trace_id)
    wheel = await run_in_threadpool(_wheel)
    if wheel is None:
        found = (
            f"This gateway's installation of {NAME} is not whole, so it serves no wheel; "
            "`yard doctor` on its host says how to repair it."
        )
        return answer("not_found", found, request.state.trace_id)
    return Response(wheel, media_type=_MEDIA_TYPE)


@cache
def _wheel() -> bytes | None:
    """Return this version's wheel; None if it cannot be built from the installed files.

    This is the case if the distribution is not installed, or if another project's distribution is
    installed that has the same import packages (`other_version`).
    """
    try:
        distribution = Distribution.from_name(NAME)
    except PackageNotFoundError:
        return None
    return None if other_version() is not None else wheel_of(distribution)


def wheel_of(distribution: Distribution) -> bytes:
    """Return a wheel of `PACKAGES`, as they are installed, with the metadata of `distribution`."""
    folder = f"{NAME.replace('-', '_')}-{distribution.version}.dist-info"
    content = io.BytesIO()
    record = io.StringIO()
    rows = csv.writer(record, lineterminator="\n")
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:

        def add(name: str, data: bytes) -> None:
            archive.writestr(zipfile.ZipInfo(name, _TIME), data, zipfile.ZIP_DEFLATED)

        for name, data in (*_package_files(), *_metadata_files(distribution, folder)):
            add(name, data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            rows.writerow((name, f"sha256={digest}", len(data)))
        rows.writerow((f"{folder}/RECORD", "", ""))
        add(f"{folder}/RECORD", record.getvalue().encode())
    return content.getvalue()


def _package_files() -> Iterator[tuple[str, bytes]]:
    for package in PACKAGES:
        spec = find_spec(package)
        if spec is None or spec.origin is None:
            raise ModuleNotFoundError(f"the package {package} is missing", name=package)
        root = Path(spec.origin).parent
        for path in sorted(root.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield f"{package}/{path.relative_to(root).as_posix()}", path.read_bytes()


def _metadata_files(distribution: Distribution, folder: str) -> Iterator[tuple[str, bytes]]:
    for name in _METADATA:
        text = distribution.read_text(name)
        if text is not None:
            yield f"{folder}/{name}", text.encode()
    license_file = distribution.read_text("licenses/LICENSE")
    if license_file is not None:
        yield f"{folder}/licenses/LICENSE", license_file.encode()
