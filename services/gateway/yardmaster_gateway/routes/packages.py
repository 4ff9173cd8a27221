"""`/v1/packages/{project}/{digest}`: code packages of users, which jobs name as their context.

A package is stored under the digest of its content, so a client asks first (`HEAD`) and uploads
only what is missing. The bytes of packages are not events: the log names a package by its digest.
"""

from typing import Annotated, Final

from fastapi import APIRouter, Path, Request, Response

from yardmaster_gateway import errors
from yardmaster_gateway.code_context import (
    package_store,
    stored_package,
    unavailable,
)
from yardmaster_gateway.context import (
    CurrentCaller,
    CurrentGateway,
    Gateway,
    authorize_submission,
)
from yardmaster_gateway.http.names import valid_name
from yardmaster_gateway.http.problems import problem_responses
from yardmaster_packages.errors import ArchiveRefused, PackagesUnavailable
from yardmaster_packages.store import PackageStore, StoredPackage
from yardmaster_schemas.api import Package
from yardmaster_schemas.instants import rfc3339

router = APIRouter(tags=["packages"])

PackageDigest = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$")]
_MEDIA_TYPE: Final = "application/octet-stream"
_CONTENT: Final = {_MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}}


@router.get(
    "/packages/{project}/{digest}",
    operation_id="read_package",
    response_model=Package,
    responses=problem_responses("forbidden", "not_found", "no_packages", "packages_unavailable"),
)
async def read_package(
    gateway: CurrentGateway, caller: CurrentCaller, project: str, digest: PackageDigest
) -> Package:
    """Show whether a project has uploaded a package, and its size.

    The caller needs a role that allows to submit jobs of the project.
    """
    store = await _store_for(gateway, caller, project)
    found = await stored_package(gateway, store, project, digest)
    if found is None:
        raise errors.NotFound(what=f"package {digest} of project {project}")
    return _answer(found)


@router.put(
    "/packages/{project}/{digest}",
    operation_id="upload_package",
    status_code=201,
    response_model=Package,
    responses={
        200: {"description": "The package was stored before", "model": Package},
        **problem_responses(
            *("forbidden", "not_found", "too_large", "invalid_package"),
            *("no_packages", "packages_unavailable"),
        ),
    },
    openapi_extra={"requestBody": {"required": True, "content": _CONTENT}},
)
async def upload_package(
    request: Request,
    response: Response,
    gateway: CurrentGateway,
    caller: CurrentCaller,
    project: str,
    digest: PackageDigest,
) -> Package:
    """Upload a folder as a gzip-compressed tar, named by the SHA-256 of the uncompressed tar.

    The package is stored when its size and digest are verified, else nothing is stored. Repeating
    an upload does no harm: of a package that is stored already, the body is not read, and the
    answer is 200. The caller needs a role that allows to submit jobs of the project.
    """
    store = await _store_for(gateway, caller, project)
    packed_bytes = _announced(request, store.limits.packed_bytes)
    found = await stored_package(gateway, store, project, digest)
    if found is not None:
        response.status_code = 200
        return _answer(found)
    if gateway.uploads.locked():
        raise errors.RateLimited(retry_s=5)
    async with gateway.uploads:
        try:
            stored = await store.put(project, digest, request.stream(), packed_bytes=packed_bytes)
        except ArchiveRefused as error:
            raise errors.InvalidPackage(found=str(error)) from error
        except PackagesUnavailable as error:
            raise unavailable(gateway, error) from error
    return _answer(stored)


def _announced(request: Request, limit: int) -> int:
    """Return the size of the body, which is not read yet.

    Raises:
        Malformed, TooLarge.
    """
    given = request.headers.get("content-length", "")
    if not given.isdecimal():
        raise errors.Malformed(found="an upload needs the header Content-Length")
    size = int(given) if len(given) < 16 else limit + 1
    if size > limit:
        raise errors.TooLarge(found=f"the package has {given[:20]} bytes, the limit is {limit}")
    return size


async def _store_for(gateway: Gateway, caller: CurrentCaller, project: str) -> PackageStore:
    """Return the store of packages, if the caller may submit jobs of a project.

    Raises:
        Forbidden, NotFound, NoPackages, ViewsUnavailable.
    """
    await authorize_submission(gateway, caller, project)
    valid_name(project, "project")
    return package_store(gateway)


def _answer(package: StoredPackage) -> Package:
    return Package(
        project=package.project,
        digest=package.digest,
        packed_bytes=package.packed_bytes,
        stored_at=rfc3339(package.stored_ms),
    )
