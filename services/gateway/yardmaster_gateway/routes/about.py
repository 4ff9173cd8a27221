"""`/v1/whoami` and `/v1/version`: the caller's identity, and the server's version."""

from fastapi import APIRouter

from yardmaster_gateway.context import CurrentCaller, CurrentGateway
from yardmaster_gateway.http.problems import problem_responses
from yardmaster_runtime.distribution import installed_version
from yardmaster_schemas.api import RoleBinding, Version, WhoAmI

router = APIRouter(tags=["caller"])


@router.get("/whoami", operation_id="whoami", response_model=WhoAmI, responses=problem_responses())
async def whoami(caller: CurrentCaller) -> WhoAmI:
    """Show the authenticated user and the user's roles."""
    return WhoAmI(
        user=caller.user,
        method=caller.method,
        issuer=caller.issuer,
        credential_id=caller.credential_id,
        roles=[
            RoleBinding(role=binding.role, scope=binding.scope, name=binding.name)
            for binding in caller.bindings
        ],
    )


@router.get(
    "/version", operation_id="read_version", response_model=Version, responses=problem_responses()
)
async def read_version(caller: CurrentCaller, gateway: CurrentGateway) -> Version:
    """Show the gateway's version and the log that it serves."""
    log = await gateway.log_identity()
    return Version(
        version=installed_version(),
        api="v1",
        cell=gateway.cell,
        log_id=log.log_id,
        mode=log.mode,
        created_ms=log.created_ms,
    )
