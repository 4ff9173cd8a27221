"""A started container: its exit, its output, and the patience with an engine that is away."""

import asyncio
import math
import signal
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

from yardmaster_node_agent.agent_state import Exit
from yardmaster_node_agent.executors.directory import ReplicaDirectory
from yardmaster_node_agent.executors.engine import (
    ANSWER_S,
    Engine,
    EngineAway,
    EngineRefused,
    LogUnreadable,
    OutputIdle,
    seconds_of,
)
from yardmaster_node_agent.executors.guarding import Guarding
from yardmaster_node_agent.executors.port import StreamName
from yardmaster_node_agent.executors.spool import Spool
from yardmaster_runtime.clock import Clock
from yardmaster_runtime.telemetry.port import Telemetry
from yardmaster_runtime.waiting import first_of, together
from yardmaster_schemas.events.node_events import RunIdentity

T = TypeVar("T")

#: The exit code that an engine gives to a container that it does not find when it starts.
ENGINE_LOST: Final = 255
#: Seconds within which an engine that stops has ended its containers.
ENGINE_STOP_S: Final = 15.0
#: Pauses (s) between two questions to an engine that does not answer.
PAUSES_S: Final = (0.2, 0.5, 1.0, 2.0, 5.0)
#: How often the log of an ended container is read when the engine cannot; about 24 s in all.
LOG_TRIES: Final = 8
#: The longest seconds without output after which the engine is asked for a stream again.
LONGEST_IDLE_S: Final = 480.0
#: Seconds for which an answer about all running containers counts.
FRESH_S: Final = 5.0
_STREAMS: Final[tuple[StreamName, StreamName]] = ("stdout", "stderr")


class Patience:
    """Asks an engine until it answers."""

    def __init__(self, clock: Clock, telemetry: Telemetry) -> None:
        self.clock = clock
        self._telemetry = telemetry
        self._away = False
        self._unanswered = telemetry.counter(
            "engine_unanswered", "Requests without an answer of the container engine, repeated."
        )
        self._refusals = telemetry.counter(
            "engine_refused",
            "Requests about started or withdrawn containers that the engine refused.",
            "request",
        )
        self._unreadable = telemetry.counter(
            "container_log_unreadable", "Logs of ended containers that the engine could not read."
        )

    async def answer(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Return the answer, however long the engine is away.

        Raises: LogUnreadable.
        """
        tries = 0
        while True:
            try:
                answer = await ask()
            except LogUnreadable:
                raise
            except EngineAway as error:
                self._unanswered.inc()
                if not self._away:
                    self._away = True
                    self._telemetry.warn("engine_away", found=str(error))
            else:
                if self._away:
                    self._away = False
                    self._telemetry.info("engine_back")
                return answer
            await self.pause(tries)
            tries += 1

    def refused(self, request: str, error: EngineRefused) -> None:
        """Count and log a refusal that ends nothing."""
        self._refusals.labels(request).inc()
        self._telemetry.warn("engine_refused", request=request, found=str(error))

    def unreadable(self, container_id: str, error: LogUnreadable) -> None:
        """Count and log that the engine could not read the log of an ended container."""
        self._unreadable.inc()
        self._telemetry.warn("container_log_unreadable", id=container_id, found=str(error))

    async def pause(self, tries: int = 0) -> None:
        """Wait before the engine is asked again; longer after more `tries`."""
        await self.clock.sleep(PAUSES_S[min(tries, len(PAUSES_S) - 1)])


class RunningContainers:
    """The containers of an agent that run, by one request for all of them."""

    def __init__(self, engine: Engine, patience: Patience, label: Callable[[], str]) -> None:
        self._engine = engine
        self._patience = patience
        self._label = label
        self._lock = asyncio.Lock()
        self._read_s = -math.inf
        self._ids: frozenset[str] = frozenset()

    async def has(self, container_id: str) -> bool:
        """Return whether a container ran at some time in the last `FRESH_S` seconds."""
        clock = self._patience.clock
        async with self._lock:
            if clock.monotonic_s() - self._read_s > FRESH_S:
                ids = await self._patience.answer(lambda: self._engine.running(self._label()))
                self._read_s, self._ids = clock.monotonic_s(), frozenset(ids)
        return container_id in self._ids


class ContainerExecution:
    """A replica in its container."""

    def __init__(
        self,
        engine: Engine,
        patience: Patience,
        directory: ReplicaDirectory,
        identity: RunIdentity,
        guarding: Guarding,
        running: RunningContainers,
    ) -> None:
        self.identity = identity
        self._guarding = guarding
        self._running = running
        self._engine = engine
        self._patience = patience
        self.files = directory

    async def exited(self) -> Exit:
        """Copy the output until the container has ended.

        The output ends where the engine cannot read its log in `LOG_TRIES` tries.
        """
        tries = 0
        while True:
            readable: dict[StreamName, bool] = {}
            copies = (self._copy(stream, readable) for stream in _STREAMS)
            await first_of(together(*copies), self._until_not_running())
            copied_ms = self._patience.clock.now_ms()
            found = await self._patience.answer(lambda: self._engine.inspect(self.identity.id))
            if found is None:
                self._guarding.release(self.files)
                return Exit(signal=signal.SIGKILL, lost=True)
            if has_ended(found["State"]):
                # The engine may end a stream before it has sent the last output.
                rest = [await self._copy_rest(stream) for stream in _STREAMS]
                doubtful = not all((*readable.values(), *rest))
                exit_ = replace(_exit_of(found["State"]), output_doubtful=doubtful)
                by_engine = partial(self._by_engine, found, exit_, copied_ms)
                self._guarding.release(self.files)
                return replace(
                    exit_,
                    engine_restarted=await self._patience.answer(by_engine),
                    fenced=self.files.has("fenced"),
                )
            await self._patience.pause(tries)
            tries += 1

    async def _by_engine(self, found: Mapping[str, Any], exit_: Exit, copied_ms: int) -> bool:
        """Return whether the engine ended the container, and not its program or this agent.

        An engine that stops also stops its containers. One that starts stops those that still run,
        and gives exit code 255 to those that ended with the machine. A program may end with any
        code when it is stopped, also with 0.

        Args:
            copied_ms: when the engine ceased to send output, before it said that the container has
                ended.
        """
        if exit_.out_of_memory:
            return False
        remembered = await self._engine.remembered(found["Id"], found["Created"])
        if remembered:
            return "stop" in remembered
        ended_s = float(seconds_of(found["State"]["FinishedAt"]))
        if await self._engine.remembers_before(ended_s - ENGINE_STOP_S):
            return False  # it runs since before the end: it has forgotten the start
        if exit_.exit_code == ENGINE_LOST or exit_.signal in (signal.SIGTERM, signal.SIGKILL):
            return True
        return -2 < ended_s - copied_ms / 1000 < ENGINE_STOP_S

    async def gone(self) -> None:
        """Wait until the container has ended: then none of its processes is left."""
        while True:
            found = await self._patience.answer(lambda: self._engine.inspect(self.identity.id))
            if found is None or has_ended(found["State"]):
                return
            await self._patience.pause()

    async def signal(self, number: int) -> None:
        """Send a signal to the main program, which the engine's init process forwards.

        A refusal changes nothing: the agent kills what still runs again and again.
        """
        try:
            await self._patience.answer(lambda: self._engine.signal(self.identity.id, number))
        except EngineRefused as error:
            self._patience.refused("signal", error)

    async def kill(self) -> None:
        """SIGKILL the container's init process, and with it all others."""
        await self.signal(signal.SIGKILL)

    async def _until_not_running(self) -> None:
        """Wait until the container does not run: an engine may leave a stream open then."""
        while True:
            await self._patience.clock.sleep(ANSWER_S)
            if not await self._running.has(self.identity.id):
                return

    async def _copy(self, stream: StreamName, readable: dict[StreamName, bool]) -> None:
        """Copy new output of a stream until the engine sends no more, or is away.

        Then say in `readable` whether the engine could read its log. A stream without output is
        asked for again, ever more rarely, in case the engine has ceased to send it; but not if the
        copy of the other stream has ended.
        """
        try:
            spool, idle_s = Spool(self.files.path / stream), ANSWER_S
            while self.files.exists:
                size = self.files.output_size(stream)
                try:
                    if await self._follow(stream, spool, idle_s):
                        break
                except OutputIdle:
                    if readable:
                        break
                    quiet = self.files.output_size(stream) == size
                    idle_s = min(2 * idle_s, LONGEST_IDLE_S) if quiet else ANSWER_S
                else:
                    await self._read(stream, spool)
        except LogUnreadable:
            readable[stream] = False
        except EngineAway:
            pass
        readable.setdefault(stream, True)

    async def _copy_rest(self, stream: StreamName) -> bool:
        """Copy the rest of a stream of the ended container; return False if a try failed.

        A later try may succeed, but Docker 20.10 often ends the output where it cannot read its
        log, without an error.
        """
        if not self.files.exists:
            return True
        for tries in range(LOG_TRIES):
            try:
                await self._patience.answer(
                    lambda: self._read(stream, Spool(self.files.path / stream))
                )
            except LogUnreadable as error:
                self._patience.unreadable(self.identity.id, error)
                await self._patience.pause(tries)
            else:
                return tries == 0
        return False

    async def _follow(self, stream: StreamName, spool: Spool, idle_s: float) -> bool:
        """Copy output as it comes; return False if the log must be read before more is copied.

        Raises:
            OutputIdle: nothing came for `idle_s`.
            EngineAway.
        """
        output = self._engine.output(
            self.identity.id, stream, spool.begin(), follow=True, idle_s=idle_s
        )
        async with aclosing(output):
            async for parts in output:
                if not spool.follow(parts):
                    return False
        return True

    async def _read(self, stream: StreamName, spool: Spool) -> None:
        """Copy the output that is in the engine's log now.

        Raises: EngineAway.
        """
        while True:
            output = self._engine.output(self.identity.id, stream, spool.begin(), follow=False)
            async with aclosing(output):
                async for parts in output:
                    spool.add(parts)
            if spool.complete():
                return


def has_ended(state: Mapping[str, Any]) -> bool:
    """Whether a container with a state of the engine ran and has ended."""
    return state["Status"] in ("exited", "dead", "removing")


def is_over(state: Mapping[str, Any]) -> bool:
    """Whether a container with a state of the engine does not run."""
    return has_ended(state) or state["Status"] == "created"


def _exit_of(state: Mapping[str, Any]) -> Exit:
    """Return the exit of an ended container.

    The engine's init process reports the end by a signal as 128 and the signal's number, as a shell
    does.
    """
    code = int(state["ExitCode"])
    if state["OOMKilled"] and code != 0:
        return Exit(signal=signal.SIGKILL, out_of_memory=True)
    if 128 < code <= 128 + 64:
        return Exit(signal=code - 128)
    return Exit(exit_code=code & 255)
