"""The limits of a gateway's connections: their number, in total and per address, and their times.

The limits apply before authentication, so a client without a token cannot use up all file
descriptors. At a limit, a new connection replaces the oldest connection that has not sent the whole
head of a request yet. So many such half-open connections do not keep other clients out, not even
clients of the same address.
"""

import asyncio
import resource
from collections import Counter
from functools import partial
from typing import Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from yardmaster_gateway.settings import GatewaySettings
from yardmaster_runtime.telemetry.port import Telemetry

#: File descriptors that remain for the log, the views' store, files and the listener.
RESERVED_FILES: Final = 128
#: The start of the paths to which packages are uploaded.
UPLOADS: Final = "/v1/packages/"
_FULL: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: 1\r\n"
    b"content-length: 0\r\n\r\n"
)
_LATE: Final = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


def open_files_limit(wanted: int) -> int:
    """Raise this process's limit of open files to `wanted`, or as far as the system permits.

    Return the number of files up to `wanted` that this process may open.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    reached = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (reached, hard))
    return reached


class ConnectionLimits:
    """Counts the open connections by address, and decides whether another one may be opened."""

    def __init__(self, settings: GatewaySettings, telemetry: Telemetry) -> None:
        files = open_files_limit(settings.max_connections + RESERVED_FILES)
        #: Open connections at most.
        self.most = min(settings.max_connections, max(1, files - RESERVED_FILES))
        #: Open connections of one address at most.
        self.most_per_address = settings.max_connections_per_address or max(1, self.most // 2)
        #: Seconds in which the head of a request must arrive.
        self.head_s = settings.head_s
        #: Seconds in which the body of a request must arrive.
        self.body_s = settings.body_s
        #: Seconds in which the body of an upload must arrive.
        self.upload_s = settings.upload_s
        self._open = 0
        self._open_by_address: Counter[str] = Counter()
        #: Connections that have sent no whole head yet, the oldest first: by address, and all.
        self._half_open: dict[str, dict[LimitedProtocol, None]] = {}
        self._all_half_open: dict[LimitedProtocol, None] = {}
        self._gauge = telemetry.gauge("connections_open", "Open connections of clients")
        self._refused = telemetry.counter(
            "connections_refused",
            "Connections closed at once (full, address_full), for a new one (replaced), or without "
            "a head or body in time (late, body_late)",
            "reason",
        )
        if self.most < settings.max_connections:
            telemetry.warn(
                "few_file_descriptors", limit=files, max_connections=settings.max_connections
            )

    def open(self, address: str, connection: "LimitedProtocol") -> bool:
        """Count a new connection, or return False if it exceeds a limit and must be closed.

        At a limit, the oldest half-open connection is closed in favor of the new one.
        """
        full = self._open >= self.most
        if full or self._open_by_address.get(address, 0) >= self.most_per_address:
            of_address = self._open_by_address.get(address, 0) >= self.most_per_address
            half_open = self._half_open.get(address, {}) if of_address else self._all_half_open
            oldest = next(iter(half_open), None)
            if oldest is None:
                self._refused.labels("full" if full else "address_full").inc()
                return False
            self._refused.labels("replaced").inc()
            oldest.give_up()
        self._open += 1
        self._open_by_address[address] += 1
        self._half_open.setdefault(address, {})[connection] = None
        self._all_half_open[connection] = None
        self._gauge.set(self._open)
        return True

    def head_arrived(self, address: str, connection: "LimitedProtocol") -> None:
        """Note that a connection has sent its first whole head."""
        if self._all_half_open.pop(connection, connection) is None:
            of_address = self._half_open[address]
            del of_address[connection]
            if not of_address:
                del self._half_open[address]

    def close(self, address: str, connection: "LimitedProtocol") -> None:
        """Count the end of a connection that `open` admitted."""
        self.head_arrived(address, connection)
        self._open -= 1
        self._open_by_address[address] -= 1
        if not self._open_by_address[address]:
            del self._open_by_address[address]
        self._gauge.set(self._open)

    def count_late(self, reason: str) -> None:
        """Count a connection that sent no whole head (`late`) or body (`body_late`) in time."""
        self._refused.labels(reason).inc()


class LimitedProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 with the limits of connections.

    uvicorn itself waits without limit for the first head of a connection, for the rest of a later
    head, and for the rest of a body. Here, the deadline of the first head counts from the opening
    of the connection, the deadline of a later head from its first byte, and the deadline of a body
    from the end of its head.
    """

    def __init__(self, limits: ConnectionLimits, **options: Any) -> None:
        super().__init__(**options)
        self._limits = limits
        self._address: str | None = None
        self._deadline: asyncio.TimerHandle | None = None
        #: The request whose body must arrive by `_deadline`; None: a head must arrive by then.
        self._body_of: RequestResponseCycle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Admit the connection, or answer 503 and close it."""
        super().connection_made(transport)
        address = self.client[0] if self.client is not None else ""
        if not self._limits.open(address, self):
            transport.write(_FULL)
            transport.close()
            return
        self._address = address
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Pass received bytes to uvicorn, and update the deadline."""
        if self._address is not None:
            super().data_received(data)
            self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Release the connection's place."""
        if self._address is not None:
            self._limits.close(self._address, self)
            self._address = None
        self._end_deadline()
        super().connection_lost(exc)

    def give_up(self) -> None:
        """Close this half-open connection at once, so that a new one can take its place."""
        address, self._address = self._address, None
        if address is not None:
            self._limits.close(address, self)
        self._end_deadline()
        self.transport.abort()

    def _watch(self) -> None:
        """Set or end the deadline, depending on which part of a request must arrive next."""
        # uvicorn sets the cycle at the first request, and its type leaves that out.
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and self._address is not None:
            self._limits.head_arrived(self._address, self)
        if cycle is not None and not cycle.response_complete:
            if self._deadline is not None and self._body_of is cycle and cycle.more_body:
                return
            self._end_deadline()
            if cycle.more_body:
                self._body_of = cycle
                body_s = self._limits.upload_s if _is_upload(cycle) else self._limits.body_s
                self._deadline = self.loop.call_later(body_s, self._body_late)
        elif self._deadline is None and not self.transport.is_closing():
            self._deadline = self.loop.call_later(self._limits.head_s, self._late)

    def _end_deadline(self) -> None:
        self._body_of = None
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _late(self) -> None:
        self._deadline = None
        self._limits.count_late("late")
        self.transport.write(_LATE)
        self.transport.close()

    def _body_late(self) -> None:
        cycle, self._body_of, self._deadline = self._body_of, None, None
        if cycle is None or cycle.response_complete:
            return  # the request was answered without its body
        self._limits.count_late("body_late")
        if not cycle.response_started:
            self.transport.write(_LATE)
        self.transport.close()


def _is_upload(cycle: RequestResponseCycle) -> bool:
    """Whether a request uploads a package, which is larger than all other bodies."""
    return cycle.scope["method"] == "PUT" and cycle.scope["path"].startswith(UPLOADS)


def limited(limits: ConnectionLimits) -> Any:
    """Return the factory of connections with `limits`, for `uvicorn.Config(http=...)`."""
    return partial(LimitedProtocol, limits)
