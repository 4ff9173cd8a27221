"""Images: pulled once at a time, for as long as bytes arrive.

All replicas that wait for an image of a node share one pull and its result. A pull has no limit in
total, but fails when no bytes arrived for `idle_s`. After a failure that may pass, the next pull of
this image waits for a back-off, so that a registry in trouble is not asked again and again. What is
definite, such as an image that does not exist, needs no back-off: the scheduler checks it twice.
"""

import asyncio
import re
from collections.abc import Iterator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from yardmaster_node_agent.executors.engine import Engine, EngineRefused
from yardmaster_node_agent.executors.port import FetchProgress, ImageFound, OnProgress
from yardmaster_node_agent.executors.registries import AuthsUnusable, RegistryAuths
from yardmaster_runtime.clock import Clock
from yardmaster_runtime.telemetry.port import Telemetry
from yardmaster_runtime.waiting import first_of
from yardmaster_schemas.events.details import PullPolicy
from yardmaster_schemas.image_names import repository_of
from yardmaster_schemas.reasons import StartFailure

#: Seconds before the next pull of an image after the first failure; doubled with each further one.
BACKOFF_S: Final = 10.0
MAX_BACKOFF_S: Final = 300.0
#: The most images whose failures are remembered; the oldest is forgotten first.
MAX_FAILED: Final = 1000


#: The words of engines and registries by what they mean, in the order in which they are looked for.
#: Docker 20.10 answers most failures of registries with the same status.
_MEANINGS: Final = (
    (
        StartFailure.IMAGE_UNREACHABLE,
        r"toomanyrequests|too many requests|status: 5\d\d|dial tcp|connection re(set|fused)"
        r"|time-?out|no such host|\beof\b|tls|x509|server misbehaving|deadline exceeded"
        r"|awaiting headers",
    ),
    (
        StartFailure.IMAGE_REFUSED,
        r"invalid reference format|denied|unauthorized|no basic auth credentials"
        r"|authentication required|forbidden|authorization failed",
    ),
    (
        StartFailure.IMAGE_MISSING,
        r"manifest unknown|name unknown|not known to registry|not found|http 404",
    ),
)


def failure_of(words: str, reference: str) -> StartFailure:
    """Return the meaning of the engine's words about a pull; the image's name does not count."""
    for part in {reference, reference.rpartition(":")[0] or reference}:
        words = words.replace(part, "")
    for failure, pattern in _MEANINGS:
        if re.search(pattern, words, re.IGNORECASE):
            return failure
    return StartFailure.OTHER


class PullFailed(Exception):
    """An image cannot be had; the message is for the job's user."""

    def __init__(self, words: str, failure: StartFailure = StartFailure.OTHER) -> None:
        super().__init__(words)
        self.failure = failure

    @property
    def may_pass(self) -> bool:
        """Whether a later pull may succeed without a change of the image or its registry."""
        return not self.failure.checked_twice


class LayerTally:
    """Counts the layers and bytes of a pull from the engine's messages."""

    def __init__(self) -> None:
        #: The last status of each layer, its bytes so far and in all (0: not known).
        self._layers: dict[str, tuple[str, int, int]] = {}
        self._phase: tuple[str, str, int] = ("", "", 0)

    def add(self, message: Mapping[str, Any]) -> bool:
        """Note a message; return whether the pull has moved."""
        layer, status = str(message.get("id", "")), str(message.get("status", ""))
        if status.startswith(("Retrying", "Waiting")):
            return False
        detail = message.get("progressDetail")
        phase = (layer, status, int((detail or {}).get("current", 0)))
        if not layer or status.startswith("Pulling from"):
            return False
        moved, self._phase = phase != self._phase, phase
        _, had, total = self._layers.get(layer, ("", 0, 0))
        if status == "Downloading" and detail:
            had, total = phase[2], int(detail.get("total", 0))
        elif status in ("Download complete", "Pull complete"):
            had = total
        self._layers[layer] = (status, had, total)
        return moved

    @property
    def progress(self) -> FetchProgress:
        """The layers and bytes that have arrived."""
        layers = self._layers.values()
        done = [status in ("Pull complete", "Already exists") for status, _, _ in layers]
        return FetchProgress(
            layers=len(done),
            layers_done=sum(done),
            bytes_done=sum(had for _, had, _ in layers),
            bytes_total=sum(total for _, _, total in layers),
        )


@dataclass(slots=True, eq=False)
class _Pull:
    """The pulls of one image, one after another."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    #: Called with the progress, for each replica that waits for the image.
    listeners: list[OnProgress] = field(default_factory=list)
    #: How many pulls have ended, and the error of the last one.
    ended: int = 0
    error: PullFailed | None = None
    #: Failures in a row, and when the next pull may begin.
    failures: int = 0
    not_before_s: float = 0.0


class Images:
    """The images of an engine."""

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        telemetry: Telemetry,
        *,
        idle_s: float,
        auths: RegistryAuths | None = None,
    ) -> None:
        self._done = telemetry.counter(
            "image_pulls",
            "Pulls of images that ended, by outcome: done, or the failure.",
            "outcome",
        )
        self._running = telemetry.gauge("image_pulls_running", "Pulls of images that run now.")
        self._paused = telemetry.gauge(
            "image_pulls_paused", "Pulls of images that wait for the back-off after a failure."
        )
        self._engine = engine
        self._clock = clock
        self._idle_s = idle_s
        self._auths = auths or RegistryAuths(None)
        self._pulls: dict[str, _Pull] = {}

    async def get(
        self,
        reference: str,
        policy: PullPolicy,
        on_progress: OnProgress,
        pinned: str | None = None,
    ) -> ImageFound:
        """Return an image of the engine; pull it if the policy says so. This may be cancelled.

        `pinned`: the digest of the image, whatever the reference names now. It never names another
        image, so an engine that has it pulls nothing.

        Raises:
            PullFailed.
            EngineAway: the engine does not answer.
        """
        try:
            repository = repository_of(reference)
        except ValueError as error:
            raise PullFailed(f"{error}: correct run.image", StartFailure.IMAGE_REFUSED) from None
        if pinned is not None:
            reference = f"{repository}@{pinned}"
        if policy is not PullPolicy.ALWAYS or pinned is not None:
            found = await self._engine.image(reference)
            if found is not None:
                return found
            if policy is PullPolicy.NEVER:
                raise PullFailed(
                    f"the engine has no image {reference}, and run.pull is never: put the image on "
                    "the node, or remove run.pull"
                )
        await self._shared_pull(reference, on_progress)
        found = await self._engine.image(reference)
        if found is None:
            raise PullFailed(f"the engine has no image {reference} after the pull")
        return found

    async def _shared_pull(self, reference: str, on_progress: OnProgress) -> None:
        """Pull an image, or wait for the pull that runs already."""
        pull = self._pulls.setdefault(reference, _Pull())
        ended = pull.ended
        with self._listening(reference, pull, on_progress):
            async with pull.lock:
                if pull.ended == ended:
                    await self._next_pull(reference, pull)
                elif pull.error is not None:
                    raise PullFailed(str(pull.error), pull.error.failure)

    async def _next_pull(self, reference: str, pull: _Pull) -> None:
        with self._paused.track_inprogress():
            await self._clock.sleep(max(0.0, pull.not_before_s - self._clock.monotonic_s()))
        try:
            with self._running.track_inprogress():
                await self._pull(reference, pull)
        except PullFailed as error:
            self._done.labels(error.failure.value).inc()
            pull.ended, pull.error = pull.ended + 1, error
            pull.failures = pull.failures + 1 if error.may_pass else 0
            if not error.may_pass:
                raise
            pause_s = min(MAX_BACKOFF_S, BACKOFF_S * 2 ** min(pull.failures - 1, 16))
            pull.not_before_s = self._clock.monotonic_s() + pause_s
            raise
        self._done.labels("done").inc()
        pull.ended, pull.error, pull.failures = pull.ended + 1, None, 0

    async def _pull(self, reference: str, pull: _Pull) -> None:
        """Pull once.

        Raises:
            PullFailed: the registry or the engine refused it, or no bytes arrived for `idle_s`.
            EngineAway.
        """
        try:
            login = self._auths.of(reference)
        except AuthsUnusable as error:
            raise PullFailed(
                f"image {reference}: the credentials in YARD_AGENT_REGISTRY_AUTHS of the node "
                f"cannot be used: {error}"
            ) from None
        tally, moved_s = LayerTally(), self._clock.monotonic_s()

        async def follow() -> None:
            nonlocal moved_s
            async with aclosing(
                self._engine.pull(reference, None if login is None else login.header)
            ) as messages:
                async for message in messages:
                    if tally.add(message):
                        moved_s = self._clock.monotonic_s()
                        for listener in pull.listeners:
                            listener(tally.progress)

        async def watch() -> None:
            while (left_s := moved_s + self._idle_s - self._clock.monotonic_s()) > 0:
                await self._clock.sleep(left_s)
            raise PullFailed(
                f"image {reference}: no bytes arrived for {self._idle_s:g} s",
                StartFailure.IMAGE_UNREACHABLE,
            )

        try:
            await first_of(follow(), watch())
        except EngineRefused as error:
            words = str(error) if login is None else login.hidden_in(str(error))
            failure = failure_of(words, reference)
            raise PullFailed(f"image {reference}: {words}", failure) from None

    @contextmanager
    def _listening(self, reference: str, pull: _Pull, on_progress: OnProgress) -> Iterator[None]:
        """Let a replica know of progress; afterwards forget what need not be remembered."""
        pull.listeners.append(on_progress)
        try:
            yield
        finally:
            pull.listeners.remove(on_progress)
            if not pull.listeners and not pull.failures:
                self._pulls.pop(reference, None)
            while len(self._pulls) > MAX_FAILED:
                oldest = next((r for r, p in self._pulls.items() if not p.listeners), None)
                if oldest is None:
                    break
                del self._pulls[oldest]
