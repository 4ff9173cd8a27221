"""`/v1/whoami`, `/v1/version`: who asks, and what answers."""

from importlib.metadata import PackageNotFoundError, version

from fastapi import APIRouter

from yardmaster_gateway.context import CurrentCaller, CurrentGateway
from yardmaster_gateway.problems import problem_responses
from yardmaster_schemas.api import RoleBinding, Version, WhoAmI

router = APIRouter(tags=["caller"])


def software_version() -> str:
    """The version of this distribution; 0 when it runs from a plain checkout."""
    try:
        return version("yardmaster")
    except PackageNotFoundError:
        return "0"


@router.get("/whoami", operation_id="whoami", response_model=WhoAmI, responses=problem_responses())
async def whoami(caller: CurrentCaller) -> WhoAmI:
    """Who the caller is, and with which roles."""
    return WhoAmI(
        user=caller.user,
        method=caller.method,
        issuer=caller.issuer,
        credential_id=caller.credential_id,
        roles=[RoleBinding(role=b.role, scope=b.scope, name=b.name) for b in caller.bindings],
    )


@router.get(
    "/version", operation_id="read_version", response_model=Version, responses=problem_responses()
)
async def read_version(caller: CurrentCaller, gateway: CurrentGateway) -> Version:
    """The gateway's version, and the log it serves."""
    created, created_ms = await gateway.log_created()
    return Version(
        version=software_version(),
        api="v1",
        cell=gateway.cell,
        log_id=created.log_id,
        mode=created.mode,
        created_ms=created_ms,
    )
