"""The connections to Redis, with pools, deadlines and one retry; redis-py's errors become ours.

A command that fails because its connection broke is sent a second time, on a new connection. Every
command of this package may be repeated (a repeated conditional write finds that its condition no
longer holds). A command that exceeds the deadline is not repeated, so a Redis that hangs costs one
`timeout_s`.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.resources import files
from typing import Any, Final

from hiredis import pack_command
from redis.asyncio import BlockingConnectionPool, ConnectionPool, Redis
from redis.asyncio.connection import Connection, SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider
from redis.exceptions import (
    AuthenticationError,
    ConnectionError,
    OutOfMemoryError,
    RedisError,
    WatchError,
)

from yardmaster_projections.errors import ViewsUnavailable
from yardmaster_projections.redis.settings import RedisSettings
from yardmaster_schemas.secret import SecretUnreadable

#: A command's name and arguments.
Command = tuple[str | bytes | int, ...]

#: The most arguments of a read that a script makes. A read with more arguments is a transaction:
#: for many strings a script is slower than Redis's own commands, although the client handles the
#: one answer of a script faster than several answers.
MAX_SCRIPTED: Final = 300
#: How often a transaction is tried while other processes write its keys.
MAX_TRANSACTIONS: Final = 100
_OUT_OF_MEMORY: Final = "OOM command not allowed"
_ANNOTATED: Final = "of pipeline caused error: "
_NO_CONNECTION: Final = "No connection available."


class _CancelSafe:
    """Corrects two defects of redis-py's connections.

    redis-py sends by `asyncio.wait_for`, which in Python 3.11 loses a cancellation that arrives
    when the send completes. And it packs commands in Python, although hiredis can pack them in C.
    """

    def __init__(self, *, is_open: Callable[[], bool], **options: Any) -> None:
        super().__init__(**options)
        self._is_open = is_open

    async def _connect(self) -> None:
        if not self._is_open():
            raise ConnectionError("the store is closed")
        await super()._connect()  # type: ignore[misc]

    def pack_command(self, *arguments: Any) -> list[bytes]:
        name = arguments[0]
        if isinstance(name, str) and " " in name:
            arguments = (*name.split(), *arguments[1:])
        return [pack_command(arguments)]

    async def send_packed_command(self, *arguments: Any, **options: Any) -> None:
        task = asyncio.current_task()
        assert task is not None, "coroutines run in tasks"
        cancellations = task.cancelling()
        await super().send_packed_command(*arguments, **options)  # type: ignore[misc]
        if task.cancelling() > cancellations:
            # The answer is still to come; no later caller of this connection may get it.
            await self.disconnect(nowait=True)  # type: ignore[attr-defined]
            raise asyncio.CancelledError


class _PlainConnection(_CancelSafe, Connection):
    pass


class _TlsConnection(_CancelSafe, SSLConnection):
    pass


class _Password(CredentialProvider):
    """Reads the password for each new connection, so that its file may change."""

    def __init__(self, settings: RedisSettings) -> None:
        self._settings = settings

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        try:
            secret = self._settings.secret()
        except SecretUnreadable as error:
            raise AuthenticationError(str(error)) from error
        assert secret is not None, "there is a provider only where a password is configured"
        username = self._settings.username
        return (secret,) if username is None else (username, secret)

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        # The method of the base class does the same, but logs a warning for each connection.
        return self.get_credentials()


@contextmanager
def _translated() -> Iterator[None]:
    """Raise redis-py's errors as `ViewsUnavailable`."""
    try:
        yield
    except (RedisError, OSError) as error:
        raise ViewsUnavailable(found=_reason(error)) from error


def _is_full(error: BaseException | None) -> bool:
    # An error in a script has no type of its own.
    return isinstance(error, OutOfMemoryError) or _OUT_OF_MEMORY in str(error)


def _reason(error: Exception) -> str:
    # redis-py names the command, whose keys may hold names of users.
    text = str(error).rpartition(_ANNOTATED)[2]
    reason = " ".join(text.split())[:300] or type(error).__name__
    if reason == _NO_CONNECTION:
        return "all connections are in use"
    if _is_full(error):
        return f"Redis is full, it reads but does not write until maxmemory is raised ({reason})"
    return reason


class Client:
    """All connections of a store: `max_connections` for its commands, and one that listens."""

    def __init__(self, settings: RedisSettings) -> None:
        self._open = True
        options: dict[str, Any] = {
            **settings.address(),
            "socket_timeout": settings.timeout_s,
            "socket_connect_timeout": settings.timeout_s,
            "retry": Retry(NoBackoff(), 1, supported_errors=(ConnectionError,)),
            "protocol": 2,
            "client_name": "yardmaster",
            "driver_info": None,
            "connection_class": _TlsConnection if settings.tls else _PlainConnection,
            "is_open": lambda: self._open,
        }
        if settings.password is not None or settings.password_file is not None:
            options["credential_provider"] = _Password(settings)
        if settings.tls:
            cafile = settings.ssl_cafile
            options["ssl_ca_certs"] = str(cafile) if cafile is not None else None
        self._redis = Redis.from_pool(
            BlockingConnectionPool(
                max_connections=settings.max_connections, timeout=settings.timeout_s, **options
            )
        )
        self._read = self.script("read.lua")
        self._listener = Redis.from_pool(ConnectionPool(max_connections=1, **options))

    async def close(self) -> None:
        """Close all connections; later calls fail."""
        self._open = False
        await self._listener.aclose()
        await self._redis.aclose()

    async def run(self, *command: str | bytes | int) -> Any:
        """Run one command.

        Raises: ViewsUnavailable.
        """
        with _translated():
            return await self._redis.execute_command(*command)  # type: ignore[no-untyped-call]

    async def listen(self, *command: str | bytes | int) -> Any:
        """Run a command that blocks, on the connection that listens; one caller at a time.

        Raises: ViewsUnavailable.
        """
        with _translated():
            return await self._listener.execute_command(*command)  # type: ignore[no-untyped-call]

    async def read(self, guards: Sequence[str], commands: Sequence[Command]) -> list[Any]:
        """The values of the keys `guards`, then the answers to `commands`, all from one atomic
        read.

        Raises: ViewsUnavailable.
        """
        if sum(map(len, commands)) > MAX_SCRIPTED:
            try:
                return await self._transaction([("MGET", *guards), *commands])
            except ViewsUnavailable as error:
                if not _is_full(error.__cause__):
                    raise
        found: list[Any] = await self._read(guards, arguments_of(commands))
        return found

    async def _transaction(self, commands: Sequence[Command]) -> list[Any]:
        with _translated():
            async with self._redis.pipeline(transaction=True) as pipe:
                for command in commands:
                    pipe.execute_command(*command)
                return await pipe.execute()

    async def transaction(
        self, watched: Sequence[str], work: Callable[[Any], Awaitable[Any]]
    ) -> Any:
        """Run `work` with a pipeline, by which `work` reads, calls `multi` and queues writes.

        `work` runs again if a key in `watched` has changed before the writes are made.

        Raises: ViewsUnavailable.
        """
        with _translated():
            async with self._redis.pipeline(transaction=True) as pipe:
                for _ in range(MAX_TRANSACTIONS):
                    try:
                        await pipe.watch(*watched)
                        result = await work(pipe)
                        await pipe.execute()
                    except WatchError:
                        continue
                    return result
        raise ViewsUnavailable(found=f"other processes wrote first {MAX_TRANSACTIONS} times")

    async def scan(self, pattern: str, count: int) -> AsyncIterator[list[bytes]]:
        """Names of keys, about `count` at a time.

        Raises: ViewsUnavailable.
        """
        cursor = 0
        while True:
            cursor, names = await self.run("SCAN", cursor, "MATCH", pattern, "COUNT", count)
            if names:
                yield names
            if cursor == 0:
                return

    def script(
        self, name: str
    ) -> Callable[[Sequence[str], Iterable[str | bytes | int]], Awaitable[Any]]:
        """A function that runs a Lua script of this package, and loads it if Redis has lost it.

        Raises (when called): ViewsUnavailable.
        """
        source = files("yardmaster_projections.redis").joinpath(name).read_text("utf-8")
        script = self._redis.register_script(source)

        async def call(keys: Sequence[str], arguments: Iterable[str | bytes | int]) -> Any:
            with _translated():
                return await script(keys, arguments)

        return call


def arguments_of(commands: Iterable[Command]) -> Iterator[str | bytes | int]:
    """The commands as arguments of a script: for each, its name, its number of arguments, and its
    arguments.
    """
    for name, *arguments in commands:
        yield name
        yield len(arguments)
        yield from arguments
