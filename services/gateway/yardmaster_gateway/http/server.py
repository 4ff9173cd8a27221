"""uvicorn in a process that owns its signals."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from yardmaster_gateway.http.connections import ConnectionLimits, limited


class Server(uvicorn.Server):
    """uvicorn without its signal handlers: the caller cancels it."""

    def __init__(self, app: Any, limits: ConnectionLimits) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=limited(limits),
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
    def responding(self) -> bool:
        """Whether a request is in progress."""
        return bool(self.server_state.tasks)

    def close(self) -> None:
        """Stop listening; each connection ends once no request is in progress on it."""
        for listening in getattr(self, "servers", ()):
            listening.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()

    def abort(self) -> None:
        """Close, and cancel the requests in progress."""
        self.close()
        for responding in list(self.server_state.tasks):
            responding.cancel()
