"""The port that maps a bearer token to a caller, and its adapters: static tokens and a file.

A gateway keeps digests of tokens, never tokens. The file is JSON. Only its owner and, for reading,
its group may access it (Kubernetes mounts secrets that way):

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

#: The longest token that is looked up, in characters.
MAX_TOKEN: Final = 4096


class Identity(Protocol):
    """Authenticates callers by their tokens."""

    async def identify(self, token: str) -> Caller | None:
        """The caller of a token; None if the token is unknown or no longer valid."""


def digest_of(token: str) -> str:
    """The SHA-256 of a token, 64 hex digits. No salt is needed: a token has 128 random bits."""
    return sha256(token.encode()).hexdigest()


class StaticTokens:
    """A fixed set of tokens, for tests and for the embedded mode."""

    def __init__(self, callers: Mapping[str, Caller]) -> None:
        self._callers = {digest_of(token): caller for token, caller in callers.items()}

    async def identify(self, token: str) -> Caller | None:
        """The caller of a token; None if the token is unknown."""
        return self._callers.get(digest_of(token))


class FirstOf:
    """Several identities; the first one that knows a token names its caller."""

    def __init__(self, *identities: Identity) -> None:
        self._identities = identities

    async def identify(self, token: str) -> Caller | None:
        """The caller of a token; None if no identity knows it."""
        for each in self._identities:
            caller = await each.identify(token)
            if caller is not None:
                return caller
        return None


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
    user: PrincipalId
    roles: Annotated[list[TokenRole], Field(max_length=64)]


class TokenList(_Strict):
    """The content of a token file."""

    version: Literal[1] = 1
    tokens: Annotated[list[TokenEntry], Field(max_length=10_000)]


class TokenFile:
    """The tokens of a file. The file is read again whenever it changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._version: tuple[int, int] | None = None
        self._callers: dict[str, Caller] = {}
        self._read()

    async def identify(self, token: str) -> Caller | None:
        """The caller of a token according to the current content of the file.

        Raises:
            TokenFileRefused: the file is missing or invalid, or other users may access it.
        """
        self._read()
        return self._callers.get(digest_of(token))

    def _read(self) -> None:
        try:
            status = self._path.stat()
            version = (status.st_mtime_ns, status.st_size)
            if stat.S_IMODE(status.st_mode) & 0o027:
                raise TokenFileRefused(
                    path=self._path, found="other users may access it; run chmod 600"
                )
            if version == self._version:
                return
            content = TokenList.model_validate_json(self._path.read_bytes())
        except OSError as error:
            raise TokenFileRefused(path=self._path, found=str(error.strerror)) from error
        except ValidationError as error:
            # No message of the model quotes a value.
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"])) or "the file"
            raise TokenFileRefused(
                path=self._path, found=f"its content is invalid: {where}: {first['msg']}"
            ) from None
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
        self._version = version
