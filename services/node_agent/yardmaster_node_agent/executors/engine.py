"""A container engine: the few requests of the Docker Engine API that the executor needs.

The version of the API is the newest that the engine and the agent have, as `/version` of the engine
says. The requests are made with httpx: the client library `docker` would block a thread for each
container whose output is followed.

Source: "Docker Engine API", versions 1.41 to 1.51, and its version history.
"""

import asyncio
import json
import re
import struct
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from socket import AF_UNIX, socket
from typing import Any, Final, Literal, Self
from urllib.parse import quote

import httpx

from yardmaster_node_agent.executors.port import ImageFound
from yardmaster_runtime.engine_api import NoCommonVersion, Version, agreed_version, text_of
from yardmaster_runtime.engine_gpus import GpuChoice, device_request, gpu_driver
from yardmaster_schemas.image_names import REFERENCE, repository_of

#: Seconds after which a request without an answer counts as failed.
ANSWER_S: Final = 30.0
#: Seconds that an engine has to answer whether it is there, or has a container.
PROBE_S: Final = 5.0
_NO_IDLE: Final = httpx.Limits(max_connections=None, max_keepalive_connections=0)
#: The head of a frame of output: the stream, three zeros, the length.
_HEAD: Final = struct.Struct(">BxxxL")
#: The stream of a frame that is an error of the engine, and no output.
_ERROR: Final = 3
#: About the most bytes of output that are read ahead of their consumer.
_AHEAD_BYTES: Final = 2**20
#: Names that may be the beginning of an id.
_HEX: Final = re.compile(r"(?:sha256:)?[0-9a-f]+")
#: The most bytes of an engine's error message that are kept.
_MAX_MESSAGE: Final = 500


@dataclass(frozen=True, slots=True)
class OutputPart:
    """A part of a container's output: a line, or a part of a long line, and its time."""

    at: str
    data: bytes

    @classmethod
    def of(cls, frame: bytes) -> Self:
        """Return the part of a frame with a time."""
        at, _, data = frame.partition(b" ")
        return cls(at.decode("ascii"), data)


class EngineAway(Exception):
    """The engine does not answer, or in no version of the API that the agent has.

    What it was asked may have been done.
    """


class OutputIdle(EngineAway):
    """No output came for a while: there is none, or the engine has ceased to send it."""


class LogUnreadable(EngineAway):
    """The engine cannot read more of its log of a container; the message is the engine's."""


class EngineRefused(Exception):
    """The engine refused a request; the message is the engine's."""


class Engine:
    """The engine that listens on a Unix socket. Each method may raise EngineAway."""

    def __init__(self, path: Path) -> None:
        self._socket = path
        # Each client reads the authorities of TLS when it is made, so there is one for all
        # requests. It keeps no connection open, so it needs no closing.
        transport = httpx.AsyncHTTPTransport(uds=str(path), limits=_NO_IDLE)
        self._client = httpx.AsyncClient(transport=transport)
        #: The version of the API that is used; None if the engine has to be asked.
        self._version: Version | None = None
        #: The engine's last answer to `/version`.
        self._said: dict[str, Any] = {}

    async def missing(self) -> str | None:
        """Return why no engine can be used at present; None if one can, within `PROBE_S`."""
        try:
            async with asyncio.timeout(PROBE_S):
                # httpx does not close the socket of a connection that is refused.
                with socket(AF_UNIX) as probe:
                    probe.setblocking(False)
                    await asyncio.get_running_loop().sock_connect(probe, str(self._socket))
                self._version = await self._agreed_version()
        except TimeoutError:
            return f"{self._socket}: no answer in {PROBE_S:g} s"
        except OSError as error:
            return f"{self._socket}: {error}"
        except EngineAway as error:
            return str(error)
        return None

    async def identity(self) -> str:
        """Return the id of the engine."""
        return str((await self._ask("GET", "/info"))["ID"])

    async def gpu_request(self, devices: Sequence[str], wanted: GpuChoice) -> dict[str, object]:
        """Return the request for GPUs of a container, as this engine can give them.

        Raises: NoGpus.
        """
        info = await self._ask("GET", "/info")
        return device_request(gpu_driver(self._said, info, wanted), devices, info)

    async def image(self, reference: str) -> ImageFound | None:
        """Return an image that the engine has; None if it has none of that name.

        Engines also find an image by the first digits of its id. Such a name is no name of the
        image: the allow-lists of images could not refuse it.
        """
        found = await self._ask("GET", f"/images/{quote(reference)}/json", absent=(404,))
        if found is None or _only_by_id(reference, found.get("RepoTags") or ()):
            return None
        return ImageFound(str(found["Id"]), _digest(reference, found.get("RepoDigests") or ()))

    async def pull(
        self, reference: str, auth: str | None = None
    ) -> AsyncGenerator[Mapping[str, Any], None]:
        """Pull an image, and yield the engine's messages about it; `auth` is the login's header.

        The caller limits how long it waits; when it closes the generator, the engine ends the pull.

        Raises:
            EngineRefused: the registry or the engine refused it.
        """
        name, _, digest = reference.partition("@")
        last = name.rpartition("/")[2]
        named = {"fromImage": reference}
        if not digest and ":" not in last:
            named["tag"] = "latest"  # without a tag, all of the repository would be pulled
        headers = {} if auth is None else {"X-Registry-Auth": auth}
        async with self._open(
            "POST", "/images/create", named, idle_s=None, headers=headers
        ) as answer:
            if answer.status_code != httpx.codes.OK:
                raise EngineRefused(_message(await answer.aread()))
            async for line in answer.aiter_lines():
                message = json.loads(line) if line else {}
                # Newer versions may leave out the older field, `error`.
                error = (message.get("errorDetail") or {}).get("message") or message.get("error")
                if error:
                    raise EngineRefused(str(error)[:_MAX_MESSAGE])
                yield message

    async def create(self, name: str, container: Mapping[str, Any]) -> bool:
        """Create a container; return False if there is one of that name.

        Raises: EngineRefused.
        """
        made = await self._ask(
            "POST", "/containers/create", {"name": name}, content=container, absent=(409,)
        )
        return made is not None

    async def inspect(self, name: str, *, idle_s: float = ANSWER_S) -> dict[str, Any] | None:
        """Return what the engine says of a container; None if there is none."""
        found: dict[str, Any] | None
        try:
            found = await self._ask("GET", f"/containers/{name}/json", absent=(404,), idle_s=idle_s)
        except EngineRefused as error:
            raise EngineAway(str(error)) from None  # it says nothing of the container
        return found

    async def start(self, container_id: str) -> None:
        """Start a container; one that has ended is started again.

        This waits for the answer for as long as the engine needs. So after EngineAway, the engine
        has ended, and does not start the container later.

        Raises: EngineRefused: it cannot be started, or does not exist.
        """
        await self._ask("POST", f"/containers/{container_id}/start", idle_s=None)

    async def signal(self, container_id: str, number: int) -> None:
        """Send a signal to the main process of a container; do nothing if it does not run."""
        await self._ask(
            *("POST", f"/containers/{container_id}/kill", {"signal": str(number)}),
            absent=(404, 409),
        )

    async def remove(self, name: str, *, force: bool = False) -> bool:
        """Remove a container; return False if it runs and `force` is not given."""
        removed = await self._ask(
            *("DELETE", f"/containers/{name}", {"force": str(force).lower(), "v": "true"}),
            absent=(404, 409),
            refused=(409,),
        )
        return removed is not False

    async def was_started(self, container_id: str, created: str) -> bool:
        """Return whether the engine remembers that it started a container since its creation."""
        return "start" in await self.remembered(container_id, created)

    async def remembered(self, container_id: str, created: str) -> set[str]:
        """Return what the engine remembers of a container since its creation: `start`, `stop`.

        `stop` is a stop by the engine itself or by `docker stop`; a signal is none. The engine
        remembers its last 256 events, and none from before its own start.
        """
        events = ["start", "stop"]
        filters = {"container": [container_id], "event": events, "type": ["container"]}
        now = str((await self._ask("GET", "/info"))["SystemTime"])
        found = await self._events(seconds_of(created), seconds_of(now), filters)
        return {str(each["Action"]) for each in found}

    async def remembers_before(self, seconds: float) -> bool:
        """Return whether the engine remembers anything from before a time since the epoch."""
        return bool(await self._events("0", f"{seconds:.9f}", {}))

    async def _events(
        self, since: str, until: str, filters: Mapping[str, list[str]]
    ) -> list[dict[str, Any]]:
        query = {"since": since, "until": until, "filters": json.dumps(filters)}
        async with self._open("GET", "/events", query) as answer:
            body = await answer.aread()
        if answer.status_code != httpx.codes.OK:
            raise EngineAway(_message(body))
        return [json.loads(line) for line in body.splitlines() if line.strip()]

    async def labelled(self, *labels: str, statuses: Sequence[str] = ()) -> list[str]:
        """Return the ids of all containers with labels `name=value`, also of ended ones.

        `statuses`: only those of one of them.
        """
        filters: dict[str, Sequence[str]] = {"label": labels}
        if statuses:
            filters["status"] = statuses
        query = {"all": "true", "filters": json.dumps(filters)}
        found = await self._ask("GET", "/containers/json", query)
        return [str(each["Id"]) for each in found or ()]

    async def running(self, label: str) -> list[str]:
        """Return the ids of all containers with a label `name=value` that have not ended."""
        try:
            return await self.labelled(label, statuses=("running", "paused"))
        except EngineRefused as error:
            raise EngineAway(str(error)) from None  # it says nothing of the containers

    async def output(
        self,
        container_id: str,
        stream: Literal["stdout", "stderr"],
        since: str,
        *,
        follow: bool,
        idle_s: float = ANSWER_S,
    ) -> AsyncGenerator[list[OutputPart], None]:
        """Yield the output of a stream from a time on (s, with nanoseconds), many parts at a time.

        `follow`: also later output, as it comes, until the container ends.

        Raises:
            LogUnreadable: after the output before the part that cannot be read.
            OutputIdle: nothing came for `idle_s`.
        """
        query = {stream: "true", "timestamps": "true", "since": since}
        query["follow"] = str(follow).lower()
        path = f"/containers/{container_id}/logs"
        rest = b""
        async with self._open("GET", path, query, idle_s=idle_s) as answer:
            if answer.status_code != httpx.codes.OK:
                return
            async with aclosing(_joined(answer)) as arrived:
                async for data in arrived:
                    frames, rest, error = _frames(rest + data)
                    if frames:
                        yield [OutputPart.of(frame) for frame in frames]
                    if error is not None:
                        raise LogUnreadable(error)

    async def _ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        content: Mapping[str, Any] | None = None,
        absent: tuple[int, ...] = (),
        refused: tuple[int, ...] = (),
        idle_s: float | None = ANSWER_S,
    ) -> Any:
        """Return the answer's JSON; None for a status in `absent`, False for one in `refused`."""
        async with self._open(method, path, query, content=content, idle_s=idle_s) as answer:
            body = await answer.aread()
        if answer.status_code in refused:
            return False
        if answer.status_code in absent:
            return None
        if answer.status_code >= httpx.codes.INTERNAL_SERVER_ERROR and method == "GET":
            raise EngineAway(_message(body))  # it says nothing of what was asked for
        if answer.status_code >= httpx.codes.BAD_REQUEST:
            raise EngineRefused(_message(body))
        return json.loads(body) if body.strip() else {}

    @asynccontextmanager
    async def _open(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        content: Mapping[str, Any] | None = None,
        idle_s: float | None = ANSWER_S,
        headers: Mapping[str, str] | None = None,
    ) -> AsyncIterator[httpx.Response]:
        """Send a request on a connection of its own.

        An engine that was replaced may refuse the version of the API: then ask for it and repeat
        the request.

        Raises: EngineAway: it does not answer, or breaks off.
        """
        known = self._version
        version = known or await self._agreed_version()
        while True:
            self._version = version
            address = f"http://engine/v{text_of(version)}{path}"
            try:
                async with self._client.stream(
                    method, address, params=query, json=content, timeout=idle_s, headers=headers
                ) as answer:
                    if known is not None and answer.status_code == httpx.codes.BAD_REQUEST:
                        known, version = None, await self._agreed_version()
                        if version != self._version:
                            continue
                    yield answer
                    return
            except httpx.ReadTimeout as error:
                raise OutputIdle(f"{self._socket}: {error!r}") from None
            except httpx.TransportError as error:
                raise EngineAway(f"{self._socket}: {error!r}") from None

    async def _agreed_version(self) -> Version:
        """Ask the engine for its versions of the API; return the newest that the agent has too.

        Raises: EngineAway: it does not answer, or there is none.
        """
        try:
            answer = await self._client.get("http://engine/version", timeout=ANSWER_S)
        except httpx.TransportError as error:
            raise EngineAway(f"{self._socket}: {error!r}") from None
        if answer.status_code != httpx.codes.OK:
            raise EngineAway(f"{self._socket}: {_message(answer.content)}")
        try:
            self._said = answer.json()
            return agreed_version(self._said)
        except NoCommonVersion as error:
            raise EngineAway(f"{self._socket}: {error}") from None
        except (ValueError, KeyError, TypeError):
            raise EngineAway(f"{self._socket}: what answers is no container engine") from None


async def _joined(answer: httpx.Response) -> AsyncGenerator[bytes, None]:
    """Yield all bytes of an answer that have arrived, as soon as there are any.

    The engine sends each line as a chunk of its own. The consumer writes to a disk each time, which
    takes longer than to read many lines.
    """
    arrived, more, taken = bytearray(), asyncio.Event(), asyncio.Event()
    closed = False

    async def read() -> None:
        async for chunk in answer.aiter_bytes():
            arrived.extend(chunk)
            more.set()
            while len(arrived) >= _AHEAD_BYTES and not closed:
                taken.clear()
                await taken.wait()

    reader = asyncio.create_task(read())
    reader.add_done_callback(lambda _: more.set())
    try:
        ended = False
        while not ended:
            await more.wait()
            more.clear()
            ended = reader.done()
            data = bytes(arrived)
            arrived.clear()
            taken.set()
            if data:
                yield data
        await reader
    finally:
        # httpcore does not close a connection if its reader is cancelled while it closes it.
        closed = True
        taken.set()
        await answer.aclose()
        await asyncio.gather(reader, return_exceptions=True)


def _frames(data: bytes) -> tuple[list[bytes], bytes, str | None]:
    """Split the whole frames off; return them, the rest, and the engine's error after them.

    After an error, the engine sends no more of its log.
    """
    frames: list[bytes] = []
    at = 0
    while len(data) - at >= _HEAD.size:
        kind, size = _HEAD.unpack_from(data, at)
        if len(data) - at - _HEAD.size < size:
            break
        at += _HEAD.size
        if kind == _ERROR:
            return frames, b"", data[at : at + size].decode(errors="replace").strip()
        frames.append(data[at : at + size])
        at += size
    return frames, data[at:], None


def _digest(reference: str, repo_digests: Iterable[str]) -> str | None:
    """Return the digest that the image has under the name of a reference.

    An image may have several: of its manifest for this platform, and of lists of such manifests.
    """
    if "@" in reference:
        return reference.partition("@")[2]
    wanted = repository_of(reference)
    for each in sorted(repo_digests):
        name, _, digest = each.partition("@")
        if _is_name(name) and repository_of(name) == wanted:
            return digest
    return None


def _is_name(text: str) -> bool:
    """Whether it names an image; engines also list `<none>`."""
    return REFERENCE.fullmatch(text) is not None


def _only_by_id(reference: str, tags: Iterable[str]) -> bool:
    """Whether the engine found an image by its id, as none of its tags is the reference."""
    if not _HEX.fullmatch(reference):
        return False
    names = {each.rpartition("/")[2] for each in tags}
    return names.isdisjoint((reference, f"{reference}:latest"))


def _message(body: bytes) -> str:
    try:
        return str(json.loads(body)["message"])[:_MAX_MESSAGE]
    except (ValueError, KeyError, TypeError):
        return body[:_MAX_MESSAGE].decode(errors="replace")


def seconds_of(time: str) -> str:
    """Return an RFC 3339 time in UTC with nanoseconds as seconds since the epoch."""
    whole, _, fraction = time.rstrip("Z").partition(".")
    seconds = int(datetime.fromisoformat(f"{whole}+00:00").timestamp())
    return f"{seconds}.{fraction.ljust(9, '0')[:9]}"
