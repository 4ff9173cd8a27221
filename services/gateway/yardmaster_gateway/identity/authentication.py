"""The port that maps a bearer token to a caller, and the token file that a new cell starts with.

A gateway keeps digests of tokens, never tokens. The users are in the log (`access`). A token file
names users that the gateway records in the log if the log does not know them. The file is JSON.
Only its owner may access it, and its group may read it (Kubernetes mounts secrets that way):

```
{"version": 1, "tokens": [{"id": "laptop", "digest": "<sha256 of the token, hex>", "user": "ana",
  "roles": [{"role": "operator", "scope": "cell", "name": "main"}]}]}
```
"""

import stat
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Final, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from yardmaster_gateway.errors import TokenFileRefused
from yardmaster_gateway.identity.authorization import Caller
from yardmaster_schemas.events.users import (
    MAX_ROLES,
    MAX_TOKENS,
    NewToken,
    RoleInScope,
    RoleName,
    Scope,
)
from yardmaster_schemas.fields import Code, Digest, Name, UserName

#: The longest token that is looked up, in characters.
MAX_TOKEN: Final = 4096


class Identity(Protocol):
    """Authenticates callers by their tokens."""

    async def identify(self, token: str) -> Caller | None:
        """The caller of a token; None if the token is unknown or no longer valid.

        Raises:
            Unauthenticated: the token has expired.
            NotReady: it cannot be known now which tokens are valid.
        """


def digest_of(token: str) -> str:
    """The SHA-256 of a token, 64 hex digits. No salt is needed: a token has 256 random bits."""
    return sha256(token.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class FileUser:
    """A user of a token file, with its roles and the digests of its tokens, which never expire."""

    name: str
    roles: tuple[RoleInScope, ...]
    tokens: tuple[NewToken, ...]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class TokenRole(_Strict):
    """A role of a token's user."""

    role: RoleName
    scope: Scope
    name: Name


class TokenEntry(_Strict):
    """A token's digest, its user and the user's roles."""

    id: Code
    digest: Digest
    user: UserName
    roles: Annotated[list[TokenRole], Field(max_length=MAX_ROLES)]


class TokenList(_Strict):
    """The content of a token file."""

    version: Literal[1] = 1
    tokens: Annotated[list[TokenEntry], Field(max_length=10_000)]


def read_token_file(path: Path) -> tuple[FileUser, ...]:
    """The users of a token file.

    Raises:
        TokenFileRefused: the file is missing or invalid, or other users may access it.
    """
    try:
        status = path.stat()
        if stat.S_IMODE(status.st_mode) & 0o027:
            raise TokenFileRefused(path=path, found="other users may access it; run chmod 600")
        content = TokenList.model_validate_json(path.read_bytes())
    except OSError as error:
        raise TokenFileRefused(path=path, found=str(error.strerror)) from error
    except ValidationError as error:
        # No message of the model quotes a value.
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise TokenFileRefused(
            path=path, found=f"its content is invalid: {where}: {first['msg']}"
        ) from None
    entries: dict[str, list[TokenEntry]] = {}
    for entry in content.tokens:
        entries.setdefault(entry.user, []).append(entry)
    return tuple(_user(path, name, own) for name, own in entries.items())


def _user(path: Path, name: str, entries: Sequence[TokenEntry]) -> FileUser:
    def refuse(found: str) -> TokenFileRefused:
        return TokenFileRefused(path=path, found=f"user {name} has {found}")

    roles = {frozenset(_roles(entry)) for entry in entries}
    if len(roles) > 1:
        raise refuse(
            "entries with different roles, but roles belong to the user; give each entry the same "
            "roles, or a user of its own"
        )
    if len({entry.id for entry in entries}) < len(entries):
        raise refuse("two entries with the same id; give each its own")
    if len(entries) > MAX_TOKENS:
        raise refuse(f"more than {MAX_TOKENS} tokens")
    tokens = tuple(NewToken(id=entry.id, digest=entry.digest) for entry in entries)
    return FileUser(name, tuple(sorted(next(iter(roles)))), tokens)


def _roles(entry: TokenEntry) -> list[RoleInScope]:
    return [RoleInScope(role=r.role, scope=r.scope, name=r.name) for r in entry.roles]
