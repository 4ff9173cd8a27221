"""Connections to Redis: commands go out together, their answers come back together.

Commands that belong together are sent in one piece on one connection, which costs one round trip
and needs nothing of the server but MULTI, WATCH and EXEC. A connection on which anything went wrong
(a deadline, a cancelled caller) is thrown away: what would still come on it belongs to nobody.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from hiredis import pack_command
from redis.asyncio.connection import Connection, SSLConnection
from redis.exceptions import ExecAbortError, OutOfMemoryError, RedisError, ResponseError

from yardmaster_projections.errors import ViewsUnavailable
from yardmaster_projections.redis.settings import RedisSettings
from yardmaster_schemas.secret import SecretUnreadable

#: A command's name and arguments.
Command = tuple[str | bytes | int, ...]

MULTI: Final[Command] = ("MULTI",)
EXEC: Final[Command] = ("EXEC",)
UNWATCH: Final[Command] = ("UNWATCH",)
#: How often a read of several commands is tried in a Redis that is full.
MAX_READS: Final = 8


class _Heeding:
    """A connection that is cancelled when its caller is.

    redis-py sends by `asyncio.wait_for`, which in Python 3.11 loses a cancellation that comes as
    what it waits for is done.
    """

    async def send_packed_command(self, *arguments: Any, **options: Any) -> None:
        task = asyncio.current_task()
        assert task is not None, "coroutines run in tasks"
        asked = task.cancelling()
        await super().send_packed_command(*arguments, **options)  # type: ignore[misc]
        if task.cancelling() > asked:
            raise asyncio.CancelledError


class _Plain(_Heeding, Connection):
    pass


class _Encrypted(_Heeding, SSLConnection):
    pass


class Link:
    """One connection, in the hands of one caller."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        #: False once something went wrong on it.
        self.sound = True
        #: Whether it lay unused before; the server may have gone since.
        self.was_idle = False

    async def run(self, commands: Sequence[Command]) -> list[Any]:
        """Send all commands, and return their answers.

        Raises:
            ViewsUnavailable: not all were answered. They may have been carried out all the same.
        """
        connection = self._connection
        self.sound = False
        answers: list[Any] = []
        refused: ResponseError | None = None
        try:
            packed = b"".join([pack_command(command) for command in commands])  # type: ignore[arg-type]
            await connection.send_packed_command(packed, check_health=False)
            for _ in commands:
                try:
                    answers.append(await connection.read_response())
                except ResponseError as error:
                    # A refused transaction says why where the command was queued, not at its end.
                    if refused is None or isinstance(refused, ExecAbortError):
                        refused = error
                    answers.append(None)
        except (RedisError, OSError) as error:
            raise ViewsUnavailable(found=_told(error)) from error
        for answer in answers:
            if isinstance(answer, list) and refused is None:
                refused = next((one for one in answer if isinstance(one, ResponseError)), None)
        if refused is not None:
            raise ViewsUnavailable(found=_told(refused)) from refused
        self.sound = True
        return answers

    async def read(self, watched: Sequence[str], commands: Sequence[Command]) -> list[Any]:
        """Answers to commands that read, all of one moment; every write changes one of `watched`.

        Raises: ViewsUnavailable.
        """
        try:
            found: list[Any] = (await self.run([MULTI, *commands, EXEC]))[-1]
            return found
        except ViewsUnavailable as error:
            if not isinstance(error.__cause__, OutOfMemoryError):
                raise
        # A full Redis queues nothing, not even what reads; but it says whether a key has changed.
        for _ in range(MAX_READS):
            _, *found, _, same = await self.run([("WATCH", *watched), *commands, MULTI, EXEC])
            if same is not None:
                return found
        raise ViewsUnavailable(found=f"they changed under each of {MAX_READS} reads")

    async def close(self) -> None:
        """Hang up, without waiting for the other side."""
        self.sound = False
        await self._connection.disconnect(nowait=True)


def _told(error: Exception) -> str:
    said = " ".join(str(error).split())[:300] or type(error).__name__
    if isinstance(error, OutOfMemoryError):
        return f"Redis is full, it reads but does not write until maxmemory is raised ({said})"
    return said


class Wire:
    """All of a store's connections: opened when they are needed, kept for the next caller."""

    def __init__(self, settings: RedisSettings) -> None:
        self._settings = settings
        self._slots = asyncio.Semaphore(settings.max_connections)
        self._idle: list[Link] = []
        self._closed = False

    async def run(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands that may be sent twice: reads. A connection that died idle is replaced.

        Raises: ViewsUnavailable.
        """
        return await self._twice(lambda link: link.run(commands))

    async def read(self, watched: Sequence[str], commands: Sequence[Command]) -> list[Any]:
        """See `Link.read`.

        Raises: ViewsUnavailable.
        """
        return await self._twice(lambda link: link.read(watched, commands))

    async def _twice(self, ask: Callable[[Link], Awaitable[list[Any]]]) -> list[Any]:
        async with self.link() as link:
            try:
                return await ask(link)
            except ViewsUnavailable:
                if not link.was_idle:
                    raise
        async with self.link() as link:
            return await ask(link)

    @asynccontextmanager
    async def link(self) -> AsyncIterator[Link]:
        """A connection of the caller's own.

        Raises: ViewsUnavailable when none can be made, or all are in use for too long.
        """
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                await self._slots.acquire()
        except TimeoutError:
            count = self._settings.max_connections
            raise ViewsUnavailable(found=f"all {count} connections are in use") from None
        try:
            link = self._idle.pop() if self._idle else await self.connect()
            try:
                yield link
            finally:
                if link.sound and not self._closed:
                    link.was_idle = True
                    self._idle.append(link)
                else:
                    await link.close()
                    if link.was_idle:
                        # What ended one ended the others, most likely.
                        await self._hang_up()
        finally:
            self._slots.release()

    async def connect(self) -> Link:
        """A new connection, beside those that are counted.

        Raises: ViewsUnavailable.
        """
        settings = self._settings
        if self._closed:
            raise ViewsUnavailable(found="the store is closed")
        try:
            options: dict[str, Any] = {
                **settings.address(),
                "username": settings.username,
                "password": settings.secret(),
                "socket_timeout": settings.timeout_s,
                "socket_connect_timeout": settings.timeout_s,
                "protocol": 2,
                "client_name": "yardmaster",
                "driver_info": None,
            }
            if settings.tls:
                cafile = settings.ssl_cafile
                options |= {"ssl_ca_certs": str(cafile) if cafile is not None else None}
            connection = (_Encrypted if settings.tls else _Plain)(**options)
            try:
                await connection.connect()  # type: ignore[no-untyped-call]
            except BaseException:
                await connection.disconnect(nowait=True)
                raise
        except (RedisError, OSError, SecretUnreadable) as error:
            raise ViewsUnavailable(found=_told(error)) from error
        return Link(connection)

    async def close(self) -> None:
        """Hang up; later calls fail."""
        self._closed = True
        await self._hang_up()

    async def _hang_up(self) -> None:
        while self._idle:
            await self._idle.pop().close()
