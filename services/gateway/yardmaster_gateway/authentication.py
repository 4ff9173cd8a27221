"""The port that says who a bearer token stands for, and its adapters: static, and a file.

A gateway keeps digests of tokens, never tokens. The file is JSON, for its owner and, to read, its
group (Kubernetes mounts secrets so); nobody else's:

```
{"version": 1, "tokens": [{"id": "laptop", "digest": "<sha256 of the token, hex>", "user": "ana",
  "roles": [{"role": "operator", "scope": "cell", "name": "main"}]}]}
```
"""

import stat
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Final, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from yardmaster_gateway.authorization import Binding, Caller
from yardmaster_gateway.errors import TokenFileRefused
from yardmaster_schemas.events.admissions import RoleName, Scope
from yardmaster_schemas.fields import Code, Digest, Name, PrincipalId

#: The longest token that is looked at.
MAX_TOKEN: Final = 4096


class Identity(Protocol):
    """Who callers are."""

    async def identify(self, token: str) -> Caller | None:
        """The caller that a token stands for; None when it stands for nobody (any more)."""


def digest_of(token: str) -> str:
    """What is kept of a token: its SHA-256, 64 hex digits (a token has 128 bits of chance)."""
    return sha256(token.encode()).hexdigest()


class StaticTokens:
    """Tokens known from the start; for tests and for one process that makes its own."""

    def __init__(self, callers: Mapping[str, Caller]) -> None:
        self._callers = {digest_of(token): caller for token, caller in callers.items()}

    async def identify(self, token: str) -> Caller | None:
        """The caller that a token stands for."""
        return self._callers.get(digest_of(token))


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class TokenRole(_Strict):
    """A role of a token's user."""

    role: RoleName
    scope: Scope
    name: Name


class TokenEntry(_Strict):
    """A token's digest and whom it stands for."""

    id: Code
    digest: Digest
    user: PrincipalId
    roles: Annotated[list[TokenRole], Field(max_length=64)]


class TokenList(_Strict):
    """The content of a token file."""

    version: Literal[1] = 1
    tokens: Annotated[list[TokenEntry], Field(max_length=10_000)]


class TokenFile:
    """Tokens of a file, read again when it changed; refused while others may read it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int] | None = None
        self._callers: dict[str, Caller] = {}
        self._read()

    async def identify(self, token: str) -> Caller | None:
        """The caller that a token stands for, as the file says now.

        Raises:
            TokenFileRefused: the file is gone, damaged or open to others.
        """
        self._read()
        return self._callers.get(digest_of(token))

    def _read(self) -> None:
        try:
            status = self._path.stat()
            seen = (status.st_mtime_ns, status.st_size)
            if stat.S_IMODE(status.st_mode) & 0o027:
                raise TokenFileRefused(path=self._path, found="it is open to others; chmod 600 it")
            if seen == self._seen:
                return
            content = TokenList.model_validate_json(self._path.read_bytes())
        except OSError as error:
            raise TokenFileRefused(path=self._path, found=str(error.strerror)) from error
        except ValidationError as error:
            raise TokenFileRefused(path=self._path, found=f"{error.error_count()} errors") from None
        self._callers = {
            entry.digest: Caller(
                user=entry.user,
                method="token",
                issuer="file",
                credential_id=entry.id,
                bindings=tuple(Binding(r.role, r.scope, r.name) for r in entry.roles),
            )
            for entry in content.tokens
        }
        self._seen = seen
