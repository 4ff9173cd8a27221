"""Send the client's requests, retry them, and turn every failure into one exception.

A request is retried if the gateway cannot be reached, is not ready, or does not know the outcome.
A request is attempted `MAX_TRIES` times. A read that waits out an outage is retried until the
gateway answers. A request with a deadline is attempted once, because its caller reconnects
(`Reconnection`).
"""

import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import httpx
from pydantic import TypeAdapter
from pydantic_core import to_json

from yardmaster.errors import ApiError, no_answer, refused, unreachable
from yardmaster.retry import (
    ANSWER_S,
    MAX_TRIES,
    Deadline,
    OutageTolerance,
    Params,
    Reconnection,
    encode_query,
    retry,
)
from yardmaster_schemas.api import Department, Job, Node, Pool, Project, Task, WatchKind

__all__ = ["MAX_TRIES", "ApiError", "Change", "Params", "Transport", "parse_events"]

#: The longest time without data on a stream, in seconds; bookmarks arrive more often.
SILENCE_S: Final = 60.0
#: The shortest timeout of a request, in seconds.
LEAST_S: Final = 0.001
#: The longest time to open a connection, in seconds.
CONNECT_S: Final = 5.0
#: The most changes of one step of a watch. A snapshot is one step; each of its changes has up to
#: 200 rows.
MOST_CHANGES: Final = 100_000


Watched = Task | Job | Node | Pool | Project | Department
_MODELS: Final[Mapping[WatchKind, type[Watched]]] = {
    WatchKind.TASK: Task,
    WatchKind.JOB: Job,
    WatchKind.NODE: Node,
    WatchKind.POOL: Pool,
    WatchKind.PROJECT: Project,
    WatchKind.DEPARTMENT: Department,
}


@dataclass(frozen=True, slots=True)
class Change:
    """One event of a stream; a watch can be resumed after its `id`.

    The events of a watch are `snapshot`, `upsert`, `delete` and `bookmark`. `data` is the JSON of
    the event: `kind`, and `items` of a snapshot, `item` of an upsert or `key` of a delete.
    """

    event: str
    id: str | None
    data: Any

    @property
    def items(self) -> tuple[Watched, ...]:
        """The objects of a `snapshot` or an `upsert` of a watch; empty for other events."""
        match self.event, self.data:
            case "snapshot", {"kind": kind, "items": list(items)}:
                return tuple(_object(kind, item) for item in items)
            case "upsert", {"kind": kind, "item": item}:
                return (_object(kind, item),)
            case _:
                return ()


def _object(kind: str, item: Any) -> Watched:
    # The models are strict: they accept JSON text, but no Python dict in place of a dataclass.
    return _MODELS[WatchKind(kind)].model_validate_json(to_json(item))


class Transport:
    """Sends the requests of a `Client` to its gateway."""

    def __init__(
        self,
        server: str,
        token: str | None,
        *,
        sleep: Callable[[float], None],
        monotonic_s: Callable[[], float],
        ca: str | None,
        transport: httpx.BaseTransport | None,
        max_tries: int,
        longest_outage_s: float,
    ) -> None:
        headers = {"User-Agent": "yardmaster-client"}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        self._http = httpx.Client(
            base_url=server.rstrip("/"),
            headers=headers,
            timeout=httpx.Timeout(ANSWER_S, connect=CONNECT_S),
            transport=transport,
            verify=_trust(server, ca),
        )
        self._server = server
        self._sleep = sleep
        self._monotonic_s = monotonic_s
        self._max_tries = max_tries
        self._longest_outage_s = longest_outage_s
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
        body: bytes | Callable[[], Iterator[bytes]] | None,
        headers: Mapping[str, str],
        wait_s: float,
        deadline: Deadline | None = None,
    ) -> httpx.Response:
        """Send a request, and retry it after transient failures.

        A large `body` is a function that returns its pieces; it is called again for each attempt.
        """
        reads = method == "GET"
        min_position = self.tolerance.headers(params) if reads else {}
        answer_s = ANSWER_S + wait_s
        if deadline is not None:
            answer_s = min(answer_s, max(LEAST_S, deadline.left_s()))

        def once() -> httpx.Response:
            try:
                response = self._http.request(
                    method,
                    path,
                    params=encode_query(params),
                    content=body() if callable(body) else body,
                    headers={**min_position, **headers},
                    timeout=httpx.Timeout(answer_s, connect=min(answer_s, CONNECT_S)),
                )
            except httpx.TransportError as error:
                raise unreachable(self._server, error) from error
            if not response.is_success:
                raise _refused(response)
            self.tolerance.record_answer(response.headers.get("Yard-Position"))
            return response

        with self.tolerance.reporting_slowness(f"{method} {path}", wait_s):
            if deadline is not None:
                return once()
            return retry(
                once,
                sleep=self._sleep,
                max_tries=self._max_tries,
                tolerance=self.tolerance if reads else None,
            )

    def deadline(self, timeout_s: float | None) -> Deadline:
        """The end of a wait that begins now."""
        return Deadline(timeout_s, self._monotonic_s)

    def reconnection(self, deadline: Deadline) -> Reconnection:
        """The pauses between the attempts of a wait or stream that begins now."""
        return Reconnection(
            self.tolerance,
            deadline,
            sleep=self._sleep,
            monotonic_s=self._monotonic_s,
            longest_outage_s=self._longest_outage_s,
        )

    @contextmanager
    def stream(
        self,
        path: str,
        params: Params,
        headers: Mapping[str, str],
        deadline: Deadline | None = None,
    ) -> Iterator[httpx.Response]:
        """Open an answer that the caller reads while it arrives; the request is not retried.

        Raises: ApiError, also if the connection breaks during the stream.
        """
        silence_s = SILENCE_S
        if deadline is not None:
            silence_s = min(silence_s, max(LEAST_S, deadline.left_s()))
        timeout = httpx.Timeout(silence_s, connect=min(silence_s, CONNECT_S))
        sent = {**self.tolerance.headers(params), **headers}
        try:
            with ExitStack() as opened:
                with self.tolerance.reporting_slowness(f"GET {path}", 0.0):
                    response = opened.enter_context(
                        self._http.stream(
                            "GET", path, params=encode_query(params), headers=sent, timeout=timeout
                        )
                    )
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


def event_lines(response: httpx.Response) -> Iterator[str]:
    """Yield the lines of a stream of server-sent events as they arrive, without their line feeds.

    `iter_lines` of httpx also ends lines at other characters, such as U+2028 and U+0085. JSON does
    not escape them, and tasks may print them.
    """
    parts: list[bytes] = []
    for chunk in response.iter_bytes():
        *ended, rest = chunk.split(b"\n")
        for end in ended:
            parts.append(end)
            yield b"".join(parts).removesuffix(b"\r").decode(errors="replace")
            parts.clear()
        parts.append(rest)


def parse_events(lines: Iterator[str]) -> Iterator[Change]:
    """Parse the server-sent events of a response; an event without an id has the previous id."""
    return (change for change, _ in _events(lines, None))


def parse_steps(lines: Iterator[str], after: str | None) -> Iterator[list[Change]]:
    """Parse the server-sent events of a watch into steps.

    The last change of a step has the id of the step. The other changes have the id of the previous
    step, or `after` in the first step. A step whose last change has not arrived is dropped, because
    the gateway sends the whole step again to a client that resumes.

    Raises: ApiError when a step has more than `MOST_CHANGES` changes.
    """
    step: list[Change] = []
    for change, ends_step in _events(lines, after):
        step.append(change)
        if ends_step:
            yield step
            step = []
        elif len(step) > MOST_CHANGES:
            detail = f"more than {MOST_CHANGES} changes arrived without an id"
            raise ApiError(no_answer("bad_answer", detail, status=httpx.codes.OK))


def _events(lines: Iterator[str], id_: str | None) -> Iterator[tuple[Change, bool]]:
    """Yield the events of a response, each with whether it has its own id.

    An event without an id has the previous id, at first `id_`.
    """
    event, own_id, data = "message", False, list[str]()
    for line in lines:
        if not line:
            if data:
                found = TypeAdapter(Any).validate_json("\n".join(data))
                yield Change(event, id_, found), own_id
            event, own_id, data = "message", False, []
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match field:
            case "event":
                event = value
            case "id":
                id_, own_id = value, True
            case "data":
                data.append(value)
            case _:
                pass  # comments, which only keep the connection open
