"""Keeps a copy of objects of the API server, and reports each change of them.

A watch reports changes from a version on. When the server no longer has that version (410), or
reports an error, the objects are listed again and compared by UID: so an object that was deleted in
between is reported, also if another one has its name now. The version of a change or a bookmark is
kept only after all changes before it were handled; after a failure the watch resumes there, and a
change may be reported twice. A connection can die without a sign, so each watch is limited, and one
without any byte for longer than that has failed. Failures end nothing: the next try follows after
a pause, which grows up to a limit and differs between processes.

The clients for Python do one or the other of this, none does all.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final, Generic, NoReturn, Protocol, TypeVar

import msgspec

from yardmaster_kubernetes.api_client import FailureStatus, KubernetesClient
from yardmaster_kubernetes.errors import (
    AnswerUnreadable,
    ApiUnavailable,
    KubernetesError,
    VersionGone,
    WatchBroken,
)
from yardmaster_kubernetes.objects import Metadata
from yardmaster_runtime.chance import Chance
from yardmaster_runtime.clock import Clock
from yardmaster_schemas.backoff import Backoff

#: The digits of a random number, and the number of its values.
_DIGITS: Final = 4
_VALUES: Final = 16**_DIGITS
_CHANGES: Final = frozenset({"ADDED", "MODIFIED", "DELETED"})


class ApiObject(Protocol):
    """An object of the API server, whole or in part."""

    @property
    def metadata(self) -> Metadata:
        """Identity and version."""


T = TypeVar("T", bound=ApiObject)


@dataclass(frozen=True)
class Selection(Generic[T]):
    """Objects to watch: their path, their type, and which of them."""

    path: str
    type: type[T]
    #: Selectors as the API has them: `fieldSelector`, `labelSelector`.
    selectors: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class ObjectChange(Generic[T]):
    """An object as it is now; a deleted one as it was when it was seen last."""

    object: T
    deleted: bool


@dataclass(frozen=True)
class ReflectorLimits:
    """Sizes and times; a watch lasts up to a quarter shorter or longer than `watch_s`."""

    page: int = 500
    watch_s: float = 300.0
    #: A watch without a byte for its own length and this time has failed.
    silence_margin_s: float = 15.0
    first_pause_s: float = 0.5
    longest_pause_s: float = 30.0
    #: The objects are listed again after this number of failures in a row: a server that was
    #: restored from a backup may never have the version.
    failures_until_list: int = 5


@dataclass
class ReflectorCounts:
    """Counts since the start, for metrics."""

    #: Lists by their reason: `start`, `gone` or the code of a failure.
    lists: Counter[str] = field(default_factory=Counter)
    #: Ends of watches: `in_order`, or the code of the failure.
    watch_ends: Counter[str] = field(default_factory=Counter)
    #: Pauses, and their seconds.
    pauses: int = 0
    paused_s: float = 0.0


class _ListMetadata(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")


class _Listed(msgspec.Struct):
    metadata: Metadata


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class Reflector(Generic[T]):
    """Copies a selection of objects; `handle` is awaited for each change, in order."""

    def __init__(
        self,
        client: KubernetesClient,
        selection: Selection[T],
        handle: Callable[[ObjectChange[T]], Awaitable[None]],
        clock: Clock,
        chance: Chance,
        limits: ReflectorLimits | None = None,
    ) -> None:
        self._client = client
        self._selection = selection
        self._handle = handle
        self._clock = clock
        self._chance = chance
        self._limits = limits or ReflectorLimits()
        self._version = ""
        self._failures = 0
        self._backoff = Backoff(self._limits.first_pause_s, self._limits.longest_pause_s)
        self._object = msgspec.json.Decoder(selection.type)
        items: Any = list[selection.type] | None  # type: ignore[name-defined]
        page = msgspec.defstruct("Page", [("metadata", _ListMetadata), ("items", items)])
        self._page: msgspec.json.Decoder[Any] = msgspec.json.Decoder(page)
        #: All objects, by UID.
        self.objects: dict[str, T] = {}
        #: Set when all objects were listed and handled for the first time.
        self.complete = asyncio.Event()
        #: Why the copy may be out of date; None: it follows the server.
        self.failure: KubernetesError | None = None
        self.counts = ReflectorCounts()

    async def run(self) -> NoReturn:
        """Follow the server until cancelled.

        Raises: whatever `handle` raises.
        """
        why_list = "start"
        while True:
            try:
                if why_list:
                    self.counts.lists[why_list] += 1
                    await self._list()
                    why_list = ""
                await self._watch()
                self.counts.watch_ends["in_order"] += 1
                self._recovered()
                await self._pause(0.0)
            except KubernetesError as error:
                if not why_list:
                    self.counts.watch_ends[error.code] += 1
                self.failure = error
                self._failures += 1
                if isinstance(error, (VersionGone, WatchBroken, AnswerUnreadable)) or (
                    self._failures % self._limits.failures_until_list == 0
                ):
                    why_list = error.code
                wanted_s = error.retry_after_s if isinstance(error, ApiUnavailable) else 0.0
                await self._pause(wanted_s)

    async def _list(self) -> None:
        """List all objects, and handle what differs from the copy: deletions first."""
        found: dict[str, T] = {}
        params = {**dict(self._selection.selectors), "limit": str(self._limits.page)}
        while True:
            body = await self._client.request("GET", self._selection.path, params=params)
            page = self._decoded(self._page, body)
            found.update((each.metadata.uid, each) for each in page.items or ())
            if not page.metadata.continue_:
                break
            params["continue"] = page.metadata.continue_
        for uid in [uid for uid in self.objects if uid not in found]:
            await self._handled(self.objects[uid], deleted=True)
        for uid, each in found.items():
            known = self.objects.get(uid)
            if known is None or (known.metadata.resource_version != each.metadata.resource_version):
                await self._handled(each, deleted=False)
        self._version = page.metadata.resource_version
        self._recovered()
        self.complete.set()

    async def _watch(self) -> None:
        """Handle changes from the kept version on, until the server ends the watch in order."""
        limits = self._limits
        length_s = limits.watch_s * (0.75 + 0.5 * self._random("watch"))
        params = {
            **dict(self._selection.selectors),
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(max(1, round(length_s))),
        }
        silence_s = length_s + limits.silence_margin_s
        async with self._client.watch(self._selection.path, params, silence_s) as lines:
            self.failure = None
            await self._follow(lines)

    async def _follow(self, lines: AsyncIterator[bytes]) -> None:
        async for line in lines:
            event = self._decoded(_EVENT, line)
            if event.type == "ERROR":
                raise self._reported(self._decoded(_STATUS, event.object))
            if event.type in _CHANGES:
                found = self._decoded(self._object, event.object)
                await self._handled(found, deleted=event.type == "DELETED")
                self._version = found.metadata.resource_version
            elif event.type == "BOOKMARK":
                self._version = self._decoded(_BOOKMARK, event.object).metadata.resource_version
            else:
                raise AnswerUnreadable(request=self._selection.path, found=f"event {event.type!r}")
            self._recovered()

    def _reported(self, status: FailureStatus) -> KubernetesError:
        """The error that a watch reported."""
        watch = f"watch {self._selection.path}"
        if status.code == HTTPStatus.GONE:
            return VersionGone(request=watch, status=status.code, found=status.message)
        return WatchBroken(request=watch, found=f"{status.code} {status.message}")

    async def _handled(self, found: T, *, deleted: bool) -> None:
        await self._handle(ObjectChange(found, deleted))
        if deleted:
            self.objects.pop(found.metadata.uid, None)
        else:
            self.objects[found.metadata.uid] = found

    def _decoded(self, decoder: "msgspec.json.Decoder[Any]", content: Any) -> Any:
        try:
            return decoder.decode(content)
        except msgspec.MsgspecError as error:
            raise AnswerUnreadable(request=self._selection.path, found=error) from error

    def _recovered(self) -> None:
        self.failure = None
        self._failures = 0
        self._backoff.reset()

    async def _pause(self, wanted_s: float) -> None:
        """Wait, longer after each failure in a row; at least the time that the server wants."""
        grown_s = self._backoff.next_s() * (0.5 + 0.5 * self._random("pause"))
        pause_s = max(grown_s, min(wanted_s, self._limits.longest_pause_s))
        self.counts.pauses += 1
        self.counts.paused_s += pause_s
        await self._clock.sleep(pause_s)

    def _random(self, purpose: str) -> float:
        """A random number from 0 up to 1."""
        return int(self._chance.hex(purpose, _DIGITS), 16) / _VALUES


_EVENT: Final = msgspec.json.Decoder(_Event)
_STATUS: Final = msgspec.json.Decoder(FailureStatus)
_BOOKMARK: Final = msgspec.json.Decoder(_Listed)
