"""The address of the views' Redis, and limits for its connections.

Environment variables set them in each service, such as `YARD_REDIS__URL`,
`YARD_REDIS__PASSWORD_FILE`, `YARD_REDIS__SSL_CAFILE`.
"""

from pathlib import Path
from typing import Annotated, Any, Final, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from yardmaster_schemas.secret import read_secret

PORT: Final = 6379


class RedisSettings(BaseModel):
    """`url` is `redis://host:port/db`, or `rediss://...` for TLS; it holds no password.

    Redis must not evict keys: `maxmemory-policy noeviction`. If it loses data, the views are
    rebuilt from the log.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    #: `redis://host:port/db`, or `rediss://...` for TLS; without a password.
    url: str = f"redis://127.0.0.1:{PORT}/0"
    #: User name for Redis.
    username: str | None = None
    #: Password for Redis.
    password: SecretStr | None = None
    #: File that contains the password. It is read for each connection, so the password may change
    #: while the process runs.
    password_file: Path | None = None
    #: PEM file of the certificate authorities to trust. Default: those of the system.
    ssl_cafile: Path | None = None
    #: The longest time for an answer or a connection.
    timeout_s: Annotated[float, Field(ge=0.1, le=60)] = 5.0
    #: Connections for reads and writes; one more waits for changes, for all of them.
    max_connections: Annotated[int, Field(ge=1, le=1_000)] = 16

    @field_validator("url")
    @classmethod
    def _plain(cls, url: str) -> str:
        try:
            parts = urlsplit(url)
            if parts.scheme not in ("redis", "rediss") or not parts.hostname:
                raise ValueError
            if (parts.path.strip("/") or "0").isdecimal() and parts.port != 0:
                named = parts.username is not None or parts.password is not None
            else:
                raise ValueError
        except ValueError:
            raise ValueError("is no redis://host:port/db or rediss://host:port/db") from None
        if named or parts.query:
            raise ValueError("contains more than an address: set `username` and `password` instead")
        return url

    @model_validator(mode="after")
    def _one_password(self) -> Self:
        if self.password is not None and self.password_file is not None:
            raise ValueError("password and password_file are both given: one is enough")
        return self

    @property
    def tls(self) -> bool:
        """Whether the connection is encrypted and the server's certificate checked."""
        return urlsplit(self.url).scheme == "rediss"

    def address(self) -> dict[str, Any]:
        """Host, port and database."""
        parts = urlsplit(self.url)
        return {
            "host": parts.hostname,
            "port": parts.port or PORT,
            "db": int(parts.path.strip("/") or "0"),
        }

    def secret(self) -> str | None:
        """The password, from its file where one is named.

        Raises: SecretUnreadable.
        """
        return read_secret("redis.password", self.password, self.password_file)
