"""Users, their roles and tokens: a pure fold of quota's verdicts.

Quota and every gateway fold the same events with `user_after`, so all of them agree on the rights
of each user.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from yardmaster_schemas.events.users import (
    AccessChange,
    AccessRevokedV1,
    RoleGrantedV1,
    RoleInScope,
    RoleName,
    RoleRevokedV1,
    Scope,
    TokenIssuedV1,
    TokenRecord,
    TokenRevokedV1,
)


@dataclass(frozen=True, slots=True)
class User:
    """A user: its roles, sorted, and its tokens, in the order in which they were issued.

    A removed user keeps its row, without roles and tokens, so that a token file does not add the
    user again.
    """

    roles: tuple[RoleInScope, ...] = ()
    tokens: tuple[TokenRecord, ...] = ()
    removed: bool = False


UNKNOWN: Final = User()


def is_valid(token: TokenRecord, now_ms: int) -> bool:
    """Whether a token that was not revoked is valid at a time."""
    return token.expires_at_ms is None or now_ms < token.expires_at_ms


def valid_tokens(user: User, now_ms: int) -> Iterator[TokenRecord]:
    """The tokens of a user that are valid at a time."""
    return (token for token in user.tokens if is_valid(token, now_ms))


def operates(user: User, cell: str) -> bool:
    """Whether a user has the role `operator` in the whole cell."""
    role = RoleInScope(role=RoleName.OPERATOR, scope=Scope.CELL, name=cell)
    return role in user.roles


def user_after(user: User | None, event: AccessChange, now_ms: int) -> User:
    """The user after a verdict in a cycle at `now_ms`.

    A new token replaces those that ended before the cycle.
    """
    before = UNKNOWN if user is None else user
    match event:
        case RoleGrantedV1():
            roles = tuple(sorted({*before.roles, *event.roles}))
            return User(roles, (*before.tokens, *event.tokens))
        case RoleRevokedV1():
            return replace(before, roles=tuple(r for r in before.roles if r not in event.roles))
        case TokenIssuedV1():
            others = tuple(
                _ending(token, event.others_end_at_ms) for token in valid_tokens(before, now_ms)
            )
            kept = tuple(token for token in others if is_valid(token, now_ms))
            return replace(before, tokens=(*kept, event.token))
        case TokenRevokedV1():
            kept = tuple(token for token in before.tokens if token.id != event.token_id)
            return replace(before, tokens=kept)
        case AccessRevokedV1():
            return User(removed=True)


def _ending(token: TokenRecord, end_ms: int | None) -> TokenRecord:
    """Return the token, valid until `end_ms` at the latest; for None, as long as before."""
    if end_ms is None or (token.expires_at_ms is not None and token.expires_at_ms <= end_ms):
        return token
    return replace(token, expires_at_ms=end_ms)
