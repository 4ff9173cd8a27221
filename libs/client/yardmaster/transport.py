"""How a call of the client is carried: tries, pauses, streams, and every failure as one exception.

Reads, and writes that carry an idempotency key or a condition, are tried again when the gateway
cannot be reached, is not ready or does not know an outcome: `MAX_TRIES` times, or, reads of a
caller that outlasts outages, until the gateway answers. Waiting between tries is the caller's
(`sleep`): this module asks no clock.
"""

import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import httpx
from pydantic import TypeAdapter

from yardmaster.calls import ANSWER_S, MAX_TRIES, Endurance, Params, query, tried
from yardmaster.errors import ApiError, refused, unreachable

__all__ = ["MAX_TRIES", "ApiError", "Change", "Params", "Transport", "events"]

#: Longest silence of a stream, in seconds; bookmarks come more often.
SILENCE_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Change:
    """One event of a watch: `snapshot`, `upsert`, `delete` or `bookmark`; `id` resumes after it."""

    event: str
    id: str | None
    data: Any


class Transport:
    """Sends requests to one gateway; `Client` says which."""

    def __init__(
        self,
        server: str,
        token: str | None,
        *,
        sleep: Callable[[float], None],
        ca: str | None,
        transport: httpx.BaseTransport | None,
        max_tries: int,
    ) -> None:
        headers = {"User-Agent": "yardmaster-client"}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        self._http = httpx.Client(
            base_url=server.rstrip("/"),
            headers=headers,
            timeout=httpx.Timeout(ANSWER_S, connect=5.0),
            transport=transport,
            verify=_trust(server, ca),
        )
        self._server = server
        self._sleep = sleep
        self._max_tries = max_tries
        self.endurance = Endurance()

    def close(self) -> None:
        """Let go of the connections."""
        self._http.close()

    def ready(self) -> bool:
        """Whether `/readyz` says so; False also when nothing answers."""
        try:
            return self._http.get("/readyz").status_code == httpx.codes.OK
        except httpx.TransportError:
            return False

    def send(
        self,
        method: str,
        path: str,
        params: Params,
        body: bytes | None,
        headers: Mapping[str, str],
        wait_s: float,
    ) -> httpx.Response:
        reads = method == "GET"
        at_least = self.endurance.headers(params) if reads else {}

        def once() -> httpx.Response:
            try:
                response = self._http.request(
                    method,
                    path,
                    params=query(params),
                    content=body,
                    headers={**at_least, **headers},
                    timeout=httpx.Timeout(ANSWER_S + wait_s, connect=5.0),
                )
            except httpx.TransportError as error:
                raise unreachable(self._server, error) from error
            if not response.is_success:
                raise _refused(response)
            self.endurance.answered(response.headers.get("Yard-Position"))
            return response

        return tried(
            once,
            sleep=self._sleep,
            max_tries=self._max_tries,
            endurance=self.endurance if reads else None,
        )

    def pause(self, seconds: float) -> None:
        """Wait before the next try."""
        self._sleep(seconds)

    @contextmanager
    def stream(
        self, path: str, params: Params, headers: Mapping[str, str]
    ) -> Iterator[httpx.Response]:
        """An answer that is read as it comes; not tried again.

        Raises: ApiError, also when the stream is cut.
        """
        timeout = httpx.Timeout(SILENCE_S, connect=5.0)
        sent = {**self.endurance.headers(params), **headers}
        try:
            with self._http.stream(
                "GET", path, params=query(params), headers=sent, timeout=timeout
            ) as response:
                if not response.is_success:
                    response.read()
                    raise _refused(response)
                self.endurance.answered(response.headers.get("Yard-Position"))
                yield response
        except httpx.TransportError as error:
            raise unreachable(self._server, error) from error


def _trust(server: str, ca: str | None) -> ssl.SSLContext:
    if server.startswith("http://"):
        # Nothing is encrypted. To read all that the machine trusts takes longer than most calls.
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return httpx.create_ssl_context() if ca is None else ssl.create_default_context(cafile=ca)


def _refused(response: httpx.Response) -> ApiError:
    try:
        document = response.json()
    except ValueError:
        document = None
    return refused(response.status_code, document, response.headers.get("Retry-After"))


def events(lines: Iterator[str]) -> Iterator[Change]:
    """Server-sent events of a response's lines."""
    event, id_, data = "message", None, list[str]()
    for line in lines:
        if not line:
            if data:
                yield Change(event, id_, TypeAdapter(Any).validate_json("\n".join(data)))
            event, data = "message", []
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match field:
            case "event":
                event = value
            case "id":
                id_ = value
            case "data":
                data.append(value)
            case _:
                pass  # comments keep the connection open
