"""The gateway service: serves the REST API of one cell over HTTP."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from yardmaster.gateway.app import create_app
from yardmaster.gateway.context import GatewayPorts
from yardmaster.gateway.errors import GatewayError
from yardmaster.gateway.settings import GatewaySettings


class CannotListen(GatewayError):
    """{host}:{port} cannot be listened on: {found}. Choose another port."""

    code = "cannot_listen"


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: whoever runs the gateway cancels it."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the process."""
        yield

    def let_go(self) -> None:
        """Stop listening, close connections and end what is being answered: politeness, no more."""
        for listening in getattr(self, "servers", ()):
            listening.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
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


async def run(
    ports: GatewayPorts, settings: GatewaySettings, *, listener: socket.socket | None = None
) -> None:
    """Serve until cancelled, on `listener` or on the settings' address.

    Raises:
        CannotListen: the address is taken.
    """
    with listener if listener is not None else listen(settings.host, settings.port) as bound:
        host, port = bound.getsockname()[:2]
        server = _Server(
            uvicorn.Config(
                create_app(ports, settings),
                log_config=None,
                access_log=False,
                lifespan="off",
                server_header=False,
                timeout_graceful_shutdown=1,
            )
        )
        ports.telemetry.info("listening", host=host, port=port)
        try:
            await server.serve(sockets=[bound])
        finally:
            server.let_go()
