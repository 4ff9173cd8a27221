"""HTTP servers in a process that owns its signals: the gateway's, and every service's health."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from yardmaster_runtime.errors import MachineError


class CannotListen(MachineError):
    """{host}:{port} cannot be listened on: {found}. Choose another port."""

    code = "cannot_listen"


class Server(uvicorn.Server):
    """uvicorn without its signal handlers: whoever runs it cancels it."""

    def __init__(self, app: Any) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                lifespan="off",
                server_header=False,
                timeout_graceful_shutdown=1,
            )
        )

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the process."""
        yield

    @property
    def answering(self) -> bool:
        """Whether a request is being answered."""
        return bool(self.server_state.tasks)

    def close(self) -> None:
        """Stop listening; connections end as soon as nothing is answered on them."""
        for listening in getattr(self, "servers", ()):
            listening.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()

    def let_go(self) -> None:
        """Close, and end what is being answered: politeness, no more."""
        self.close()
        for answering in list(self.server_state.tasks):
            answering.cancel()


def listen(host: str, port: int) -> socket.socket:
    """A socket that waits for connections; port 0 lets the system choose.

    Raises:
        CannotListen.
    """
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        raise CannotListen(host=host, port=port, found=error.strerror or error) from error


async def serve(app: Any, listener: socket.socket) -> None:
    """Serve an ASGI app on a socket until cancelled; the socket is closed then."""
    with listener:
        server = Server(app)
        try:
            await server.serve(sockets=[listener])
        finally:
            server.let_go()
