"""`/v1/users`: the users of the cell, their roles and their tokens.

A token is random. It is only in the answer to the request that issues it; the log gets its digest.
The answer is 202, as for every change; the token is valid once quota has accepted the request.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Annotated, Final

from fastapi import APIRouter, Depends

from yardmaster_core.access import User, valid_tokens
from yardmaster_gateway import errors
from yardmaster_gateway.context import CurrentCaller, CurrentGateway, Gateway, authorize
from yardmaster_gateway.http.bodies import body_of, request_body
from yardmaster_gateway.http.filters import Cursor, Limit
from yardmaster_gateway.http.problems import problem_responses
from yardmaster_gateway.http.writes import Write, WriteContext
from yardmaster_gateway.identity.authentication import digest_of
from yardmaster_gateway.identity.authorization import Action, is_allowed
from yardmaster_schemas.api import (
    Accepted,
    List,
    NewUser,
    RoleBinding,
    RolesChange,
    TokenIssued,
    TokenOrder,
    TokenShown,
    UserShown,
)
from yardmaster_schemas.events.users import (
    AccessRevokeRequestedV1,
    NewToken,
    RoleGrantRequestedV1,
    RoleInScope,
    RoleRevokeRequestedV1,
    TokenIssueRequestedV1,
    TokenRevokeRequestedV1,
)
from yardmaster_schemas.instants import rfc3339
from yardmaster_schemas.position import Position
from yardmaster_schemas.topics import ADMISSIONS

router = APIRouter(tags=["users"])

#: The first characters of a token, by which tools that search for secrets can find it.
TOKEN_PREFIX: Final = "yard_"
#: Hexadecimal digits of a token: 256 bits.
TOKEN_DIGITS: Final = 64
_WRITE: Final = ("forbidden", "busy", "too_large", "outcome_unknown")
_BODY: Final = (*_WRITE, "unsupported_media_type", "invalid_spec")


def _new_token(gateway: Gateway, lifetime_s: int | None) -> tuple[str, NewToken]:
    """A token, and its record for the log."""
    token = TOKEN_PREFIX + gateway.ports.chance.hex("token", TOKEN_DIGITS)
    id_ = f"t{gateway.ports.chance.hex('token id', 11)}"
    return token, NewToken(id=id_, digest=digest_of(token), lifetime_s=lifetime_s)


def _issued(accepted: Accepted, token: str, record: NewToken) -> TokenIssued:
    return TokenIssued(
        request_ids=accepted.request_ids,
        position=accepted.position,
        token=token,
        token_id=record.id,
    )


async def _find(gateway: Gateway, name: str) -> User:
    """Return a user. Read the newest records first, because another gateway may have added it.

    Raises:
        NotFound.
    """
    await gateway.access.catch_up()
    user = gateway.access.users.get(name)
    if user is None or user.removed:
        raise errors.NotFound(what=f"user {name[:64]}")
    return user


async def _find_as_operator(write: WriteContext, name: str) -> User:
    """Return a user, after checking that the caller is an operator.

    Raises:
        Forbidden, NotFound.
    """
    authorize(write.caller, Action.OPERATE)
    return await _find(write.gateway, name)


async def _find_own(write: WriteContext, name: str) -> User:
    """Return a user, after checking that the caller is this user or an operator.

    Raises:
        Forbidden, NotFound.
    """
    if write.caller.user != name:
        authorize(write.caller, Action.OPERATE)
    return await _find(write.gateway, name)


def _roles(given: RolesChange | NewUser) -> tuple[RoleInScope, ...]:
    return tuple(RoleInScope(role=r.role, scope=r.scope, name=r.name) for r in given.roles)


def _lifetime_s(user: User, used: str | None) -> int | None:
    """Return the lifetime in seconds of the token with the id `used`; None: it never expires.

    If the user has no token with this id, it is the lifetime of the newest token.
    """
    token = next((one for one in user.tokens if one.id == used), user.tokens[-1])
    if token.expires_at_ms is None:
        return None
    return max(1, (token.expires_at_ms - token.issued_at_ms) // 1000)


def _cursor(name: str) -> str:
    return urlsafe_b64encode(name.encode()).decode().rstrip("=")


def _name_of(cursor: str) -> str:
    """The name in a cursor.

    Raises:
        BadCursor.
    """
    try:
        return urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode()
    except ValueError:
        raise errors.BadCursor from None


def _shown(name: str, user: User, now_ms: int) -> UserShown:
    return UserShown(
        name=name,
        roles=[RoleBinding(role=r.role, scope=r.scope, name=r.name) for r in user.roles],
        tokens=[
            TokenShown(
                id=token.id,
                issued_at=rfc3339(token.issued_at_ms),
                expires_at=None if token.expires_at_ms is None else rfc3339(token.expires_at_ms),
            )
            for token in valid_tokens(user, now_ms)
        ],
    )


@router.get(
    "/users",
    operation_id="list_users",
    response_model=List[UserShown],
    responses=problem_responses("bad_cursor"),
)
async def list_users(
    gateway: CurrentGateway, caller: CurrentCaller, limit: Limit = 100, cursor: Cursor = None
) -> List[UserShown]:
    """List users by name, with their roles and their valid tokens.

    Operators see all users, and other callers themselves.
    """
    after = "" if cursor is None else _name_of(cursor)
    await gateway.access.catch_up()
    everyone = is_allowed(caller.bindings, Action.OPERATE)
    names = sorted(
        name
        for name, user in gateway.access.users.items()
        if not user.removed and (everyone or name == caller.user) and name > after
    )
    users, now_ms = gateway.access.users, gateway.access.now_ms
    return List(
        items=[_shown(name, users[name], now_ms) for name in names[:limit]],
        next_cursor=_cursor(names[limit - 1]) if len(names) > limit else None,
        position=str(Position.start(gateway.cell).at(ADMISSIONS.name, gateway.access.offset)),
    )


@router.post(
    "/users",
    operation_id="add_user",
    status_code=202,
    response_model=TokenIssued,
    openapi_extra=request_body(NewUser),
    responses=problem_responses(*_BODY, "already_exists"),
)
async def add_user(
    write: Write,
    given: Annotated[NewUser, Depends(body_of(NewUser))],
) -> TokenIssued:
    """Add a user with roles and a first token. The token is in this answer only."""
    authorize(write.caller, Action.OPERATE)
    await write.gateway.access.catch_up()
    user = write.gateway.access.users.get(given.name)
    if user is not None and not user.removed:
        raise errors.AlreadyExists(what=f"user {given.name}")
    token, record = _new_token(write.gateway, given.lifetime_s)
    event = RoleGrantRequestedV1(
        principal=given.name, roles=_roles(given), tokens=(record,), new=True
    )
    accepted = await write.record(write.gateway.cell, event)
    return _issued(accepted, token, record)


@router.delete(
    "/users/{name}",
    operation_id="remove_user",
    status_code=202,
    response_model=Accepted,
    responses=problem_responses(*_WRITE, "not_found"),
)
async def remove_user(write: Write, name: str) -> Accepted:
    """Remove a user: end all its tokens and open streams. Its jobs continue."""
    await _find_as_operator(write, name)
    event = AccessRevokeRequestedV1(principal=name)
    return await write.record(write.gateway.cell, event)


def _add_roles_route(
    verb: str, request: type[RoleGrantRequestedV1 | RoleRevokeRequestedV1], description: str
) -> None:
    """Add the route that gives roles to a user (`grant`), or takes roles from it (`revoke`)."""

    @router.post(
        f"/users/{{name}}/{verb}",
        name=f"{verb}_roles",
        operation_id=f"{verb}_roles",
        description=description,
        status_code=202,
        response_model=Accepted,
        openapi_extra=request_body(RolesChange),
        responses=problem_responses(*_BODY, "not_found"),
    )
    async def change_roles(
        write: Write, name: str, given: Annotated[RolesChange, Depends(body_of(RolesChange))]
    ) -> Accepted:
        await _find_as_operator(write, name)
        event = request(principal=name, roles=_roles(given))
        return await write.record(write.gateway.cell, event)


_add_roles_route("grant", RoleGrantRequestedV1, "Give a user more roles.")
_add_roles_route("revoke", RoleRevokeRequestedV1, "Take roles from a user.")


@router.post(
    "/users/{name}/tokens",
    operation_id="issue_token",
    status_code=202,
    response_model=TokenIssued,
    openapi_extra=request_body(TokenOrder),
    responses=problem_responses(*_BODY, "not_found"),
)
async def issue_token(
    write: Write,
    name: str,
    given: Annotated[TokenOrder, Depends(body_of(TokenOrder))],
) -> TokenIssued:
    """Issue one more token of a user, or of the caller. The token is in this answer only.

    With `overlap_s`, the other tokens of the user end after these seconds. Without `lifetime_s`,
    it lives as long as the one before. The caller's own token cannot live longer than the longest
    that the caller has.
    """
    user = await _find_own(write, name)
    lifetime_s = given.lifetime_s
    if "lifetime_s" not in given.model_fields_set and user.tokens:
        lifetime_s = _lifetime_s(
            user, write.caller.credential_id if write.caller.user == name else None
        )
    token, record = _new_token(write.gateway, lifetime_s)
    event = TokenIssueRequestedV1(principal=name, token=record, overlap_s=given.overlap_s)
    accepted = await write.record(write.gateway.cell, event)
    return _issued(accepted, token, record)


@router.delete(
    "/users/{name}/tokens/{token_id}",
    operation_id="revoke_token",
    status_code=202,
    response_model=Accepted,
    responses=problem_responses(*_WRITE, "not_found"),
)
async def revoke_token(
    write: Write,
    name: str,
    token_id: str,
) -> Accepted:
    """End a token of a user, or of the caller, and the streams that were opened with it."""
    user = await _find_own(write, name)
    if all(token.id != token_id for token in user.tokens):
        raise errors.NotFound(what=f"token {token_id[:64]} of user {name[:64]}")
    event = TokenRevokeRequestedV1(principal=name, token_id=token_id)
    return await write.record(write.gateway.cell, event)
