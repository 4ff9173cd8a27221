"""Verdicts on requests that change users, their roles and their tokens.

Quota checks the authority of the actor from its own state, whatever the gateway allowed: an
operator of the cell changes every user, and a user issues and revokes its own tokens. A request
that imports a token file needs no authority, because the first operator comes from such a file.
"""

from collections.abc import Iterable
from typing import Any, Final

from yardmaster_core.access import (
    UNKNOWN,
    User,
    is_valid,
    operates,
    user_after,
    valid_tokens,
)
from yardmaster_core.admission.changes import refused
from yardmaster_core.admission.state import AdmissionState, Pending
from yardmaster_schemas.envelope import Event
from yardmaster_schemas.events import users as u
from yardmaster_schemas.reasons import AdmissionCode

#: The most users at once, and the most user names ever: a removed user keeps its row.
MAX_USERS: Final = 10_000
MAX_NAMES_OF_USERS: Final = 100_000

#: The requests that `judge_access` judges.
REQUESTS: Final = (
    *(u.RoleGrantRequestedV1, u.RoleRevokeRequestedV1, u.TokenIssueRequestedV1),
    *(u.TokenRevokeRequestedV1, u.AccessRevokeRequestedV1),
)

_Refused = Event | None


def judge_access(state: AdmissionState, pending: Pending) -> Event:
    """The verdict on a request that changes a user."""
    request = pending.event
    match request:
        case u.RoleGrantRequestedV1(imported=True):
            return _imported(state, request, pending)
        case u.RoleGrantRequestedV1():
            return _granted(state, request, pending)
        case u.RoleRevokeRequestedV1():
            return _role_revoked(state, request, pending)
        case u.TokenIssueRequestedV1():
            return _issued(state, request, pending)
        case u.TokenRevokeRequestedV1():
            return _token_revoked(state, request, pending)
        case u.AccessRevokeRequestedV1():
            return _removed(state, request, pending)
        case _:
            raise AssertionError(f"{request.TYPE} changes no user")


def _operator(state: AdmissionState, pending: Pending) -> bool:
    """Whether the actor of a request is an operator of the cell."""
    user = state.users.get(pending.actor)
    return user is not None and operates(user, state.cell)


def _forbidden(state: AdmissionState, pending: Pending, own: str | None = None) -> _Refused:
    """Return the refusal of an actor that is neither an operator nor the user `own`, or None."""
    actor = state.users.get(pending.actor)
    is_own = own is not None and own == pending.actor and actor is not None and not actor.removed
    if is_own or _operator(state, pending):
        return None
    return refused(pending.event, AdmissionCode.NOT_ALLOWED)


def _unknown(state: AdmissionState, request: Any) -> _Refused:
    """Return the refusal of a request about a user that does not exist, or None."""
    user = state.users.get(request.principal)
    if user is None or user.removed:
        return refused(request, AdmissionCode.USER_UNKNOWN)
    return None


def _imported(state: AdmissionState, request: u.RoleGrantRequestedV1, pending: Pending) -> Event:
    """Return the verdict on a user from a token file, which must never have existed."""
    # A role in a project that does not exist yet is accepted: a new cell has no projects.
    if state.users.get(request.principal) is not None:
        return refused(request, AdmissionCode.USER_EXISTS)
    return (
        _too_many_users(state, request)
        or _wrong_tokens(state, request, UNKNOWN, request.tokens)
        or _grant(request, pending)
    )


def _granted(state: AdmissionState, request: u.RoleGrantRequestedV1, pending: Pending) -> Event:
    """Return the verdict on new roles and tokens, for a new user (`new`) or a known one."""
    user = state.users.get(request.principal)
    live = user is not None and not user.removed
    if forbidden := _forbidden(state, pending):
        return forbidden
    if request.new and live:
        return refused(request, AdmissionCode.USER_EXISTS)
    if not request.new and not live:
        return refused(request, AdmissionCode.USER_UNKNOWN)
    before = UNKNOWN if user is None else user
    if len({*before.roles, *request.roles}) > u.MAX_ROLES:
        return _over_limit(request, u.MAX_ROLES)
    return (
        (_too_many_users(state, request) if request.new else None)
        or _wrong_scope(state, request, request.roles)
        or _wrong_tokens(state, request, before, request.tokens)
        or _grant(request, pending)
    )


def _grant(request: u.RoleGrantRequestedV1, pending: Pending) -> u.RoleGrantedV1:
    return u.RoleGrantedV1(
        principal=request.principal,
        roles=tuple(sorted(set(request.roles))),
        tokens=tuple(_record(token, pending.taken_ms) for token in request.tokens),
        by=pending.actor,
    )


def _record(token: u.NewToken, now_ms: int) -> u.TokenRecord:
    ends = None if token.lifetime_s is None else now_ms + 1000 * token.lifetime_s
    return u.TokenRecord(id=token.id, digest=token.digest, issued_at_ms=now_ms, expires_at_ms=ends)


def _role_revoked(
    state: AdmissionState, request: u.RoleRevokeRequestedV1, pending: Pending
) -> Event:
    """Return the verdict on the removal of roles that the user must have."""
    if wrong := _forbidden(state, pending) or _unknown(state, request):
        return wrong
    user = state.users.get(request.principal) or UNKNOWN
    for role in request.roles:
        if role not in user.roles:
            return refused(request, AdmissionCode.ROLE_UNKNOWN, about=role.name)
    roles = tuple(sorted(set(request.roles)))
    verdict = u.RoleRevokedV1(principal=request.principal, roles=roles, by=pending.actor)
    return _without_operator(state, request, verdict) or verdict


def _issued(state: AdmissionState, request: u.TokenIssueRequestedV1, pending: Pending) -> Event:
    """Return the verdict on one more token of a user."""
    if wrong := (
        _forbidden(state, pending, own=request.principal)
        or _unknown(state, request)
        or _wrong_tokens(
            state,
            request,
            state.users.get(request.principal) or UNKNOWN,
            (request.token,),
        )
    ):
        return wrong
    user = state.users.get(request.principal) or UNKNOWN
    if not _operator(state, pending) and (long := _too_long(state, request, user)):
        return long
    overlap = request.overlap_s
    return u.TokenIssuedV1(
        principal=request.principal,
        token=_record(request.token, pending.taken_ms),
        # The time of the cycle may be after the time of the request. So with an overlap of 0, the
        # other tokens end at time 0, and not at the time of the cycle.
        others_end_at_ms=None
        if overlap is None
        else 0
        if overlap == 0
        else pending.taken_ms + 1000 * overlap,
        by=pending.actor,
    )


def _too_long(state: AdmissionState, request: u.TokenIssueRequestedV1, user: User) -> _Refused:
    """Return the refusal of a token that outlives the user's other valid tokens, or None."""
    longest = 0
    for token in valid_tokens(user, state.now_ms):
        if token.expires_at_ms is None:
            return None
        longest = max(longest, token.expires_at_ms - token.issued_at_ms)
    asked = request.token.lifetime_s
    if asked is not None and 1000 * asked <= longest:
        return None
    numbers = {"longest_s": longest // 1000}
    if asked is not None:
        numbers["asked_s"] = asked
    return refused(request, AdmissionCode.LIFETIME_TOO_LONG, numbers=numbers)


def _token_revoked(
    state: AdmissionState, request: u.TokenRevokeRequestedV1, pending: Pending
) -> Event:
    """Return the verdict on the removal of a token that the user must have."""
    if wrong := _forbidden(state, pending, own=request.principal) or _unknown(state, request):
        return wrong
    user = state.users.get(request.principal) or UNKNOWN
    if all(token.id != request.token_id for token in user.tokens):
        return refused(request, AdmissionCode.TOKEN_UNKNOWN)
    verdict = u.TokenRevokedV1(
        principal=request.principal, token_id=request.token_id, by=pending.actor
    )
    return _without_operator(state, request, verdict) or verdict


def _removed(state: AdmissionState, request: u.AccessRevokeRequestedV1, pending: Pending) -> Event:
    """Return the verdict on the removal of a user with all its roles and tokens."""
    if wrong := _forbidden(state, pending) or _unknown(state, request):
        return wrong
    verdict = u.AccessRevokedV1(principal=request.principal, by=pending.actor)
    return _without_operator(state, request, verdict) or verdict


def _without_operator(state: AdmissionState, request: Any, verdict: u.AccessChange) -> _Refused:
    """Return the refusal of a change that leaves the cell no operator with a token, or None."""
    name = request.principal
    after = user_after(state.users.get(name), verdict, state.now_ms)
    for operator in state.operators.get(state.cell) or ():
        user = after if operator == name else state.users.get(operator) or UNKNOWN
        if operates(user, state.cell) and any(valid_tokens(user, state.now_ms)):
            return None
    was = state.users.get(name) or UNKNOWN
    if not operates(was, state.cell) or not any(valid_tokens(was, state.now_ms)):
        return None  # the user was no operator with a valid token, so it does not matter
    return refused(request, AdmissionCode.LAST_OPERATOR)


def _too_many_users(state: AdmissionState, request: u.RoleGrantRequestedV1) -> _Refused:
    """Return the refusal of a user beyond the limits of users and of names, or None."""
    names, live = state.counts_of_users()
    if live >= MAX_USERS:
        return _over_limit(request, MAX_USERS)
    if names >= MAX_NAMES_OF_USERS and state.users.get(request.principal) is None:
        return _over_limit(request, MAX_NAMES_OF_USERS)
    return None


def _over_limit(request: Event, limit: int) -> Event:
    return refused(request, AdmissionCode.LIMIT_EXCEEDED, numbers={"limit": limit})


def _wrong_scope(state: AdmissionState, request: Event, roles: Iterable[u.RoleInScope]) -> _Refused:
    """Return the refusal of a role in a scope that does not exist, or None."""
    for role in roles:
        match role.scope:
            case u.Scope.CELL if role.name != state.cell:
                return refused(request, AdmissionCode.CELL_UNKNOWN, about=role.name)
            case u.Scope.DEPARTMENT if state.departments.get(role.name) is None:
                return refused(request, AdmissionCode.DEPARTMENT_UNKNOWN, about=role.name)
            case u.Scope.PROJECT if state.projects.get(role.name) is None:
                return refused(request, AdmissionCode.PROJECT_UNKNOWN, about=role.name)
    return None


def _wrong_tokens(
    state: AdmissionState, request: Any, user: User, tokens: Iterable[u.NewToken]
) -> _Refused:
    """Return the refusal of tokens with a used id or digest, or of too many tokens, or None."""
    ids = {token.id for token in user.tokens if is_valid(token, state.now_ms)}
    digests: set[str] = set()
    for token in tokens:
        if token.id in ids or token.digest in digests or state.in_use("token", token.digest):
            return refused(request, AdmissionCode.DUPLICATE_ID)
        ids.add(token.id)
        digests.add(token.digest)
    return _over_limit(request, u.MAX_TOKENS) if len(ids) > u.MAX_TOKENS else None
