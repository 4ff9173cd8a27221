"""Checks of the stores that a submission needs.

Its code package must be stored when the job is recorded, and there must be a store for its
artifacts.
"""

from typing import Final

from yardmaster_gateway import errors
from yardmaster_gateway.context import Gateway
from yardmaster_gateway.http.bodies import invalid_body
from yardmaster_packages.artifact_files import selection
from yardmaster_packages.errors import PackagesUnavailable
from yardmaster_packages.store import PackageStore, StoredPackage
from yardmaster_projections.rows import JobRow
from yardmaster_projections.store import Query
from yardmaster_schemas.api import FieldError, Phase
from yardmaster_schemas.job_file import JobSpec

#: A package that was stored longer ago is marked at each submission with it.
MARK_S: Final = 86_400


def check_uploaded(spec: JobSpec) -> None:
    """Check that a job names its context by digest, not as a folder of the caller's machine.

    Raises: InvalidBody.
    """
    if isinstance(spec.run.context, str):
        raise _refused(
            "",
            "the gateway does not see the folder: upload it (PUT /v1/packages/...), and name it by "
            "digest and packed_bytes",
        )


async def check_context(gateway: Gateway, spec: JobSpec) -> None:
    """Check that the package of a job's context is stored for the job's project.

    Raises:
        NoPackages: this gateway stores no packages.
        PackageStoreUnavailable: the store does not answer.
        InvalidBody: the package is not stored, or has another size.
    """
    context = spec.run.context
    if context is None or isinstance(context, str):
        return
    store = package_store(gateway)
    found = await stored_package(gateway, store, spec.project, context.digest)
    if found is None:
        what = f"project {spec.project} has no package {context.digest}; upload the folder first"
        raise _refused("/digest", what)
    limit = store.limits.packed_bytes
    if found.packed_bytes > limit:
        raise _refused("", f"the package has {found.packed_bytes} bytes, the limit is {limit}")
    now_ms = gateway.ports.clock.now_ms()
    if now_ms - found.stored_ms > MARK_S * 1000:
        await _mark_used(gateway, store, spec.project, context.digest)
    if found.packed_bytes != context.packed_bytes:
        what = f"the package has {found.packed_bytes} bytes, not {context.packed_bytes}"
        raise _refused("/packed_bytes", what)


async def _mark_used(gateway: Gateway, store: PackageStore, project: str, digest: str) -> None:
    try:
        await store.mark_used(project, digest)
    except PackagesUnavailable as error:
        raise unavailable(gateway, error) from error


async def is_needed(
    gateway: Gateway, project: str, digest: str, *, ended: bool = False, but: str = ""
) -> bool:
    """Whether a job of a project other than `but` has a package.

    Only jobs that have not ended count, or all that were not erased, if `ended`.

    Raises: ViewsError.
    """
    facets = {"project": frozenset({project}), "package": frozenset({digest})}
    if not ended:
        facets["phase"] = frozenset(str(phase) for phase in Phase if not phase.final)
    page = await gateway.views.page(JobRow, Query(facets=facets, limit=2))
    return any(row.key != but for row in page.rows)


def check_artifacts(gateway: Gateway, spec: JobSpec) -> None:
    """Check that the artifacts of a job can be kept: there is a store, and its patterns are valid.

    Raises:
        NoArtifactStore, InvalidBody.
    """
    if not spec.run.artifacts:
        return
    if gateway.artifacts is None:
        raise errors.NoArtifactStore
    try:
        selection(spec.run.artifacts)
    except ValueError as error:
        found = FieldError(pointer="/run/artifacts", code="invalid", detail=str(error))
        raise invalid_body([found]) from error


def package_store(gateway: Gateway) -> PackageStore:
    """Return the store of packages.

    Raises: NoPackages.
    """
    store = gateway.ports.packages
    if store is None:
        raise errors.NoPackages
    return store


async def stored_package(
    gateway: Gateway, store: PackageStore, project: str, digest: str
) -> StoredPackage | None:
    """Return a package of a project; None if it is not stored.

    Raises: PackageStoreUnavailable.
    """
    try:
        return await store.stat(project, digest)
    except PackagesUnavailable as error:
        raise unavailable(gateway, error) from error


def unavailable(gateway: Gateway, error: PackagesUnavailable) -> errors.PackageStoreUnavailable:
    """Log why the store does not answer, and return the error for the caller."""
    # The URL of the store and the cause are for the operator, not for the caller.
    gateway.ports.telemetry.warn("packages_unavailable", code=error.code, found=str(error)[:500])
    return errors.PackageStoreUnavailable()


def _refused(below: str, found: str) -> errors.InvalidBody:
    pointer = f"/run/context{below}"
    return invalid_body([FieldError(pointer=pointer, code="invalid", detail=found)])
