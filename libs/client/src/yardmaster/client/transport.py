"""How a call of the client is carried: tries, pauses, streams, and every failure as one exception.

Reads, and writes that carry an idempotency key or a condition, are tried again when the gateway
cannot be reached, is not ready or does not know an outcome. Waiting between tries is the caller's
(`sleep`): this module asks no clock.
"""

import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import httpx
from pydantic import TypeAdapter, ValidationError

from yardmaster.schemas.api import Problem
from yardmaster.schemas.errors import YardmasterError

#: Tries of one call, the first included.
MAX_TRIES: Final = 5
#: Seconds before the second try; doubled for each one after, up to the longest.
FIRST_PAUSE_S: Final = 0.2
LONGEST_PAUSE_S: Final = 5.0
#: Longest wait for an answer that the gateway itself does not delay, in seconds.
ANSWER_S: Final = 15.0
#: Longest silence of a stream, in seconds; bookmarks come more often.
SILENCE_S: Final = 60.0

Params = Mapping[str, str | int | bool | Sequence[str] | None]


class ApiError(YardmasterError):
    """{detail}"""

    code = "api"

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        super().__init__(detail=problem.detail)

    @property
    def status(self) -> int:
        """The HTTP status; 0 when no answer came."""
        return self.problem.status


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
        pause_s = FIRST_PAUSE_S
        for left in range(self._max_tries - 1, -1, -1):
            try:
                response = self._http.request(
                    method,
                    path,
                    params=query(params),
                    content=body,
                    headers=dict(headers),
                    timeout=httpx.Timeout(ANSWER_S + wait_s, connect=5.0),
                )
            except httpx.TransportError as error:
                if left == 0:
                    raise ApiError(self._unreachable(error)) from error
            else:
                if response.is_success:
                    return response
                problem = self._problem(response)
                if left == 0 or response.status_code not in (429, 503, 504):
                    raise ApiError(problem)
                after = response.headers.get("Retry-After", "")
                if after.isdecimal():
                    pause_s = max(pause_s, min(float(after), 60.0))
            self._sleep(pause_s)
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
        raise AssertionError("the last try returns or raises")

    @contextmanager
    def stream(
        self, path: str, params: Params, headers: Mapping[str, str]
    ) -> Iterator[httpx.Response]:
        timeout = httpx.Timeout(SILENCE_S, connect=5.0)
        try:
            with self._http.stream(
                "GET", path, params=query(params), headers=dict(headers), timeout=timeout
            ) as response:
                if not response.is_success:
                    response.read()
                    raise ApiError(self._problem(response))
                yield response
        except httpx.TransportError as error:
            raise ApiError(self._unreachable(error)) from error

    def _problem(self, response: httpx.Response) -> Problem:
        try:
            return Problem.model_validate_json(response.content)
        except ValidationError:
            found = f"status {response.status_code} and no problem document"
            problem = self.no_answer("bad_answer", f"the answer is not understood: {found}")
            return problem.model_copy(update={"status": response.status_code})

    def _unreachable(self, error: httpx.TransportError) -> Problem:
        what = str(error) or type(error).__name__
        return self.no_answer("unreachable", f"{self._server} cannot be reached: {what}")

    def no_answer(self, code: str, detail: str) -> Problem:
        return Problem(
            type="about:blank",
            title=code.replace("_", " "),
            status=0,
            detail=detail,
            code=code,
            hint="check the server's address, and that it runs",
        )


def _trust(server: str, ca: str | None) -> ssl.SSLContext:
    if server.startswith("http://"):
        # Nothing is encrypted. To read all that the machine trusts takes longer than most calls.
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return httpx.create_ssl_context() if ca is None else ssl.create_default_context(cafile=ca)


def query(params: Params) -> dict[str, str | list[str]]:
    """Query parameters as the gateway reads them: lists joined by commas, each label by itself."""
    query: dict[str, str | list[str]] = {}
    for name, value in params.items():
        if value is None:
            continue
        if name == "label":
            for pair in [value] if isinstance(value, str) else value:  # type: ignore[union-attr]
                key, _, wanted = str(pair).partition("=")
                query[f"label.{key}"] = wanted
        elif isinstance(value, bool):
            query[name] = "true" if value else "false"
        elif isinstance(value, str | int):
            query[name] = str(value)
        else:
            query[name] = ",".join(value)
    return query


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
