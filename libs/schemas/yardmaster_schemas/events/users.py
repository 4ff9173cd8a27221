"""Users, their roles and their tokens: the requests of operators and users, and quota's verdicts.

The log holds a user's name, roles, and digests of tokens, never a token: 256 random bits whose
SHA-256 cannot be reversed.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, ClassVar, Final

from pydantic import ConfigDict, Field

from yardmaster_schemas.envelope import Event
from yardmaster_schemas.events.registry import event
from yardmaster_schemas.fields import CLOSED, Code, Digest, Millis, Name, PrincipalId, Seconds
from yardmaster_schemas.topics import ADMISSIONS, REQUESTS

#: The most roles of a user, and the most tokens.
MAX_ROLES: Final = 64
MAX_TOKENS: Final = 64


class Scope(StrEnum):
    """The scope of a role."""

    CELL = "cell"
    DEPARTMENT = "department"
    PROJECT = "project"


class RoleName(StrEnum):
    """The permissions of a caller."""

    VIEWER = "viewer"
    USER = "user"
    PROJECT_ADMIN = "project_admin"
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class RoleInScope:
    """A role in the cell, in a department or in a project; `name` is the name of that."""

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    role: RoleName
    scope: Scope
    name: Name


@dataclass(frozen=True, slots=True, kw_only=True)
class NewToken:
    """A token to issue: its id, its SHA-256 and its lifetime (None: without an end)."""

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    id: Code
    digest: Digest
    lifetime_s: Annotated[Seconds, Field(ge=1)] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRecord:
    """A token that was issued; it is valid before `expires_at_ms` (None: without an end)."""

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    id: Code
    digest: Digest
    issued_at_ms: Millis
    expires_at_ms: Millis | None = None


Roles = Annotated[tuple[RoleInScope, ...], Field(max_length=MAX_ROLES)]


# Requests --------------------------------------------------------------------------------------


@event(REQUESTS, name="RoleGrantRequested")
@dataclass(frozen=True, slots=True, kw_only=True)
class RoleGrantRequestedV1(Event):
    """A request to give a user roles, and with `new` to add the user with its first tokens.

    `imported`: a gateway found the user in its token file; accepted only for a user that the log
    has never named.
    """

    principal: PrincipalId
    roles: Roles
    tokens: Annotated[tuple[NewToken, ...], Field(max_length=MAX_TOKENS)] = ()
    new: bool = False
    imported: bool = False


@event(REQUESTS, name="RoleRevokeRequested")
@dataclass(frozen=True, slots=True, kw_only=True)
class RoleRevokeRequestedV1(Event):
    """A request to take roles from a user."""

    principal: PrincipalId
    roles: Annotated[tuple[RoleInScope, ...], Field(min_length=1, max_length=MAX_ROLES)]


@event(REQUESTS, name="TokenIssueRequested")
@dataclass(frozen=True, slots=True, kw_only=True)
class TokenIssueRequestedV1(Event):
    """A request for one more token of a user.

    `overlap_s`: the seconds after which the user's other tokens end; None: they stay valid.
    """

    principal: PrincipalId
    token: NewToken
    overlap_s: Seconds | None = None


@event(REQUESTS, name="TokenRevokeRequested")
@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRevokeRequestedV1(Event):
    """A request to end one token of a user."""

    principal: PrincipalId
    token_id: Code


@event(REQUESTS, name="AccessRevokeRequested")
@dataclass(frozen=True, slots=True, kw_only=True)
class AccessRevokeRequestedV1(Event):
    """A request to remove a user: all its roles and tokens."""

    principal: PrincipalId


# Verdicts --------------------------------------------------------------------------------------


@event(ADMISSIONS, name="RoleGranted")
@dataclass(frozen=True, slots=True, kw_only=True)
class RoleGrantedV1(Event):
    """A user has these roles in addition; a new user also has these tokens."""

    principal: PrincipalId
    roles: Roles
    tokens: Annotated[tuple[TokenRecord, ...], Field(max_length=MAX_TOKENS)] = ()
    by: PrincipalId


@event(ADMISSIONS, name="RoleRevoked")
@dataclass(frozen=True, slots=True, kw_only=True)
class RoleRevokedV1(Event):
    """A user no longer has these roles."""

    principal: PrincipalId
    roles: Roles
    by: PrincipalId


@event(ADMISSIONS, name="TokenIssued")
@dataclass(frozen=True, slots=True, kw_only=True)
class TokenIssuedV1(Event):
    """A user has one more token; its others end at `others_end_at_ms` at the latest, if set."""

    principal: PrincipalId
    token: TokenRecord
    others_end_at_ms: Millis | None = None
    by: PrincipalId


@event(ADMISSIONS, name="TokenRevoked")
@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRevokedV1(Event):
    """A token of a user is not valid any more."""

    principal: PrincipalId
    token_id: Code
    by: PrincipalId


@event(ADMISSIONS, name="AccessRevoked")
@dataclass(frozen=True, slots=True, kw_only=True)
class AccessRevokedV1(Event):
    """A user was removed: it has no roles and no tokens any more."""

    principal: PrincipalId
    by: PrincipalId


#: The verdicts that change users.
AccessChange = RoleGrantedV1 | RoleRevokedV1 | TokenIssuedV1 | TokenRevokedV1 | AccessRevokedV1
ACCESS_CHANGES: Final = (
    *(RoleGrantedV1, RoleRevokedV1, TokenIssuedV1, TokenRevokedV1, AccessRevokedV1),
)
