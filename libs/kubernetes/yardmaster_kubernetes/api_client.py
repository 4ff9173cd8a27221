"""Requests to the API server of Kubernetes, and its watches.

Watches have connections of their own: they would use up those of requests.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from http import HTTPStatus
from typing import Final, Self

import httpx
import msgspec

from yardmaster_kubernetes.configuration import ApiConnection
from yardmaster_kubernetes.errors import (
    ApiRefused,
    ApiUnavailable,
    Conflicting,
    KubernetesError,
    NotPermitted,
    ObjectMissing,
    VersionGone,
)
from yardmaster_kubernetes.objects import Metadata

CONNECT_S: Final = 10.0
REQUEST_S: Final = 30.0
#: Requests at a time; more wait.
IN_FLIGHT: Final = 16
#: How long a request waits for its turn.
TURN_S: Final = 60.0
MAX_TEXT: Final = 500

_ERRORS: Final[Mapping[int, type[ApiRefused]]] = {
    HTTPStatus.UNAUTHORIZED: NotPermitted,
    HTTPStatus.FORBIDDEN: NotPermitted,
    HTTPStatus.NOT_FOUND: ObjectMissing,
    HTTPStatus.CONFLICT: Conflicting,
    HTTPStatus.GONE: VersionGone,
}


class FailureStatus(msgspec.Struct, rename="camel", frozen=True):
    """The server's words about a request that failed."""

    message: str = ""
    code: int = 0


class KubernetesClient:
    """A client of one API server; a context manager that closes its connections."""

    def __init__(self, connection: ApiConnection) -> None:
        self._connection = connection
        self._token: str | None = None
        self._requests = httpx.AsyncClient(
            base_url=connection.server,
            verify=connection.tls,
            timeout=httpx.Timeout(REQUEST_S, connect=CONNECT_S, pool=TURN_S),
            limits=httpx.Limits(max_connections=IN_FLIGHT),
        )
        self._watches = httpx.AsyncClient(
            base_url=connection.server,
            verify=connection.tls,
            limits=httpx.Limits(max_connections=None),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._requests.aclose()
        await self._watches.aclose()

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: object = None,
        content_type: str = "application/json",
    ) -> bytes:
        """Send a request and return the body of its answer.

        Raises:
            ApiUnavailable: it is not known whether a write was done.
            ApiRefused: nothing was written.
            ConfigurationUnusable: there is no token.
        """
        content = None if body is None else msgspec.json.encode(body)
        headers = {"Content-Type": content_type} if content is not None else {}
        request = self._requests.build_request(
            method, path, params=params, content=content, headers=headers
        )
        try:
            answer = await self._send(self._requests, request)
            await answer.aread()
        except httpx.TransportError as error:
            raise _no_answer(request, error) from error
        if not answer.is_success:
            raise failure(answer)
        return answer.content

    @asynccontextmanager
    async def watch(
        self, path: str, params: Mapping[str, str], silence_s: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """The lines of a watch, until the server ends it.

        Raises:
            ApiUnavailable: the connection failed, or no byte arrived for `silence_s`.
            ApiRefused.
        """
        timeout = httpx.Timeout(REQUEST_S, connect=CONNECT_S, read=silence_s)
        request = self._watches.build_request("GET", path, params=params, timeout=timeout)
        try:
            answer = await self._send(self._watches, request)
            try:
                if not answer.is_success:
                    await answer.aread()
                    raise failure(answer)
                async with aclosing(_lines(answer)) as lines:
                    yield lines
            finally:
                await answer.aclose()
        except httpx.TransportError as error:
            raise _no_answer(request, error) from error

    async def bind(self, pod: Metadata, node: str) -> None:
        """Bind a pod to a node; a pod that was made again under the same name is not bound.

        Raises:
            Conflicting: the pod has a node, is being deleted, has scheduling gates, or is another.
            KubernetesError: as `request`.
        """
        await self.request(
            "POST",
            f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/binding",
            body={
                "apiVersion": "v1",
                "kind": "Binding",
                "metadata": {"name": pod.name, "uid": pod.uid},
                "target": {"apiVersion": "v1", "kind": "Node", "name": node},
            },
        )

    async def delete_pod(self, pod: Metadata, grace_s: int) -> None:
        """Delete a pod, but not another one of its name; `grace_s` before its processes are killed.

        Raises:
            Conflicting: the pod of this name is another.
            KubernetesError: as `request`.
        """
        await self.request(
            "DELETE",
            f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}",
            # The body overrides the grace of the query, so that is not used.
            body={
                "apiVersion": "v1",
                "kind": "DeleteOptions",
                "gracePeriodSeconds": grace_s,
                "preconditions": {"uid": pod.uid},
            },
        )

    async def _send(self, client: httpx.AsyncClient, request: httpx.Request) -> httpx.Response:
        """Send with the known token; when it is refused, with the token read again."""
        for again in (False, True):
            if self._token is None or again:
                self._token = self._connection.read_token()
            if self._token:
                request.headers["Authorization"] = f"Bearer {self._token}"
            answer = await client.send(request, stream=True)
            if answer.status_code != HTTPStatus.UNAUTHORIZED or again:
                return answer
            await answer.aclose()
        raise AssertionError("the second answer is returned")


async def _lines(answer: httpx.Response) -> AsyncGenerator[bytes, None]:
    """The lines of an answer; httpx's own would end at every line break of Unicode."""
    rest = b""
    async for chunk in answer.aiter_bytes():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line


def failure(answer: httpx.Response) -> KubernetesError:
    """The error of an answer that is no success."""
    named = f"{answer.request.method} {answer.request.url.path}"
    try:
        found = msgspec.json.decode(answer.content, type=FailureStatus).message
    except msgspec.MsgspecError:
        found = answer.text
    found = found[:MAX_TEXT] or answer.reason_phrase
    status = answer.status_code
    if status == HTTPStatus.TOO_MANY_REQUESTS or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        wanted = answer.headers.get("Retry-After", "")
        after_s = float(wanted) if wanted.isascii() and wanted.isdigit() else 0.0
        return ApiUnavailable(request=named, found=f"{status} {found}", retry_after_s=after_s)
    return _ERRORS.get(status, ApiRefused)(request=named, status=status, found=found)


def _no_answer(request: httpx.Request, error: httpx.TransportError) -> ApiUnavailable:
    return ApiUnavailable(
        request=f"{request.method} {request.url.path}",
        found=f"{type(error).__name__} {error}".strip(),
    )
