"""The transport of the client: requests with retries, streams, one exception for all failures.

A request is retried if the gateway cannot be reached, is not ready, or does not know the outcome.
It is attempted `MAX_TRIES` times; reads that wait out an outage are retried until the gateway
answers.
"""

import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import httpx
from pydantic import TypeAdapter

from yardmaster.errors import ApiError, refused, unreachable
from yardmaster.retry import ANSWER_S, MAX_TRIES, OutageTolerance, Params, encode_query, retry

__all__ = ["MAX_TRIES", "ApiError", "Change", "Params", "Transport", "parse_events"]

#: The longest time without data on a stream, in seconds; bookmarks arrive more often.
SILENCE_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Change:
    """One event of a stream; a watch can be resumed after its `id`.

    Events of a watch: `snapshot`, `upsert`, `delete` and `bookmark`.
    """

    event: str
    id: str | None
    data: Any


class Transport:
    """Sends the requests of a `Client` to its gateway."""

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
        self.tolerance = OutageTolerance()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def ready(self) -> bool:
        """Whether `/readyz` answers with 200; False also if nothing answers."""
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
        min_position = self.tolerance.headers(params) if reads else {}

        def once() -> httpx.Response:
            try:
                response = self._http.request(
                    method,
                    path,
                    params=encode_query(params),
                    content=body,
                    headers={**min_position, **headers},
                    timeout=httpx.Timeout(ANSWER_S + wait_s, connect=5.0),
                )
            except httpx.TransportError as error:
                raise unreachable(self._server, error) from error
            if not response.is_success:
                raise _refused(response)
            self.tolerance.record_answer(response.headers.get("Yard-Position"))
            return response

        return retry(
            once,
            sleep=self._sleep,
            max_tries=self._max_tries,
            tolerance=self.tolerance if reads else None,
        )

    def pause(self, seconds: float) -> None:
        """Wait before the next attempt."""
        self._sleep(seconds)

    @contextmanager
    def stream(
        self, path: str, params: Params, headers: Mapping[str, str]
    ) -> Iterator[httpx.Response]:
        """Open an answer that is read while it arrives; it is not retried.

        Raises: ApiError, also if the connection breaks during the stream.
        """
        timeout = httpx.Timeout(SILENCE_S, connect=5.0)
        sent = {**self.tolerance.headers(params), **headers}
        try:
            with self._http.stream(
                "GET", path, params=encode_query(params), headers=sent, timeout=timeout
            ) as response:
                if not response.is_success:
                    response.read()
                    raise _refused(response)
                self.tolerance.record_answer(response.headers.get("Yard-Position"))
                yield response
        except httpx.TransportError as error:
            raise unreachable(self._server, error) from error


def _trust(server: str, ca: str | None) -> ssl.SSLContext:
    if server.startswith("http://"):
        # HTTP needs no certificates, and loading those of the machine takes longer than most calls.
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return httpx.create_ssl_context() if ca is None else ssl.create_default_context(cafile=ca)


def _refused(response: httpx.Response) -> ApiError:
    try:
        document = response.json()
    except ValueError:
        document = None
    return refused(response.status_code, document, response.headers.get("Retry-After"))


def parse_events(lines: Iterator[str]) -> Iterator[Change]:
    """Parse the server-sent events of a response."""
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
                pass  # comments, which only keep the connection open
