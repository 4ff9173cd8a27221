"""The common part of all calls of `Client`: open, close, add conditions, parse answers."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel, TypeAdapter, ValidationError

from yardmaster import defaults
from yardmaster.configuration import resolve, sendable, server_url
from yardmaster.errors import ApiError, InputError, no_answer
from yardmaster.retry import LONGEST_OUTAGE_S, MAX_TRIES, Deadline, OutageListener, Params
from yardmaster.transport import Transport
from yardmaster_schemas.api import Accepted, List

M = TypeVar("M", bound=BaseModel)
#: The type of a filter of a list: one value, or several values.
Filter = str | int | bool | Sequence[str] | None


class Connection:
    """A connection to one gateway; see `Client`."""

    def __init__(
        self,
        server: str,
        token: str | None = None,
        *,
        project: str | None = None,
        shares_files: bool = False,
        sleep: Callable[[float], None] = defaults.sleep,
        monotonic_s: Callable[[], float] = defaults.monotonic_s,
        new_key: Callable[[], str] = defaults.new_key,
        ca: str | None = None,
        transport: httpx.BaseTransport | None = None,
        max_tries: int = MAX_TRIES,
        longest_outage_s: float = LONGEST_OUTAGE_S,
    ) -> None:
        self._transport = Transport(
            server_url(server),
            None if token is None else sendable(token, "token"),
            sleep=sleep,
            monotonic_s=monotonic_s,
            ca=ca,
            transport=transport,
            max_tries=max_tries,
            longest_outage_s=longest_outage_s,
        )
        self._project = project
        self._shares_files = shares_files
        self._new_key = new_key

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> Self:
        """A client of the server that `yard` would use, with its token, certificates and project.

        The server is YARD_SERVER, else the context's server (the context is YARD_CONTEXT, or the
        current one of the configuration file), else the cluster on this machine. The token is
        YARD_TOKEN, else the output of the context's `token_command`, else the token of the cluster
        on this machine.
        `env` replaces the environment of this process.

        Raises:
            NoServer: no server is named, and no cluster runs on this machine.
            TokenCommandFailed: the `token_command` of the context failed.
            InputError: a setting is wrong; the message names it.
        """
        config = resolve(env=env)
        return cls(
            config.address(),
            config.bearer(),
            ca=config.ca.value,
            project=config.default_project,
            shares_files=config.shares_files,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the HTTP connections; later calls fail. Leaving `with` does the same."""
        self._transport.close()

    def wait_out_outages(self, listener: OutageListener | None) -> None:
        """Make reads, waits and streams wait for the end of an outage, however long it takes.

        `listener` is notified of each outage; None turns the waiting off. After an outage, reads
        include at least all changes that earlier reads included. Until the gateway has answered
        for the first time, calls do not wait but raise an error as usual.
        """
        self._transport.tolerance.listener = listener

    def report_slow_calls(self, report: Callable[[str], None] | None) -> None:
        """Call `report` from another thread when a call has no answer after 2 s; None turns it off.

        `report` receives the name of the call, such as `GET /v1/tasks`.
        """
        self._transport.tolerance.on_slow = report

    def ready(self) -> bool:
        """Whether the gateway is ready; False also if the gateway cannot be reached."""
        return self._transport.ready()

    def etag(self, path: str) -> str:
        """The current ETag of the object at a path (`/v1/pools/default`)."""
        return str(self._transport.send("GET", path, {}, None, {}, 0.0).headers.get("ETag", "*"))

    def _get(
        self,
        path: str,
        model: type[M],
        params: Params,
        wait_s: float = 0.0,
        deadline: Deadline | None = None,
    ) -> M:
        answer = self._transport.send("GET", path, params, None, {}, wait_s, deadline)
        return self._parse(model, answer)

    def _patch(self, path: str, content: bytes, if_match: str | None) -> Accepted:
        headers = {"If-Match": if_match or self.etag(path)}
        return self._write("PATCH", path, Accepted, content, headers)

    def _put(self, path: str, body: Any, if_match: str | None, create: bool) -> Accepted:
        headers = {"If-None-Match": "*"} if create else {"If-Match": if_match or self.etag(path)}
        return self._write("PUT", path, Accepted, TypeAdapter(type(body)).dump_json(body), headers)

    def _delete(self, path: str, if_match: str | None) -> Accepted:
        headers = {"If-Match": if_match or self.etag(path)}
        return self._write("DELETE", path, Accepted, None, headers)

    def _write(
        self,
        method: str,
        path: str,
        model: type[M],
        content: bytes | None,
        headers: Mapping[str, str] | None = None,
    ) -> M:
        sent = dict(headers or {})
        if method == "POST":
            sent.setdefault("Idempotency-Key", self._new_key())
        if content is not None:
            sent["Content-Type"] = "application/json"
        return self._parse(model, self._transport.send(method, path, {}, content, sent, 0.0))

    @staticmethod
    def _parse(model: type[M], response: httpx.Response) -> M:
        try:
            return model.model_validate_json(response.content)
        except ValidationError as error:
            found = error.errors(include_url=False, include_input=False)[0]
            detail = f"the answer cannot be parsed: {found['msg']}"
            raise ApiError(no_answer("bad_answer", detail)) from error


def all_items(read_page: Callable[..., List[M]], filters: Mapping[str, Any]) -> Iterator[M]:
    """The items of all pages of a list."""
    cursor: str | None = None
    while True:
        page = read_page(**{"limit": 1000, **filters, "cursor": cursor})
        yield from page.items
        cursor = page.next_cursor
        if cursor is None:
            return


def quoted(name: str) -> str:
    """A name as one segment of a path.

    Raises: InputError: the name is not a text.
    """
    if not isinstance(name, str):
        raise InputError(f"expected an id or a name, not {type(name).__name__}")
    return quote(name, safe="")
