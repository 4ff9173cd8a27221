r"""One replica from its assignment to its release.

    assigned -> starting -> started -> exited -> released
        \___________\___________________________/   (never started)

Each step is written to the ledger before the next one begins, and a fact is reported after it is in
the ledger: a replica is prepared before it is `starting`, and started after that. An agent that is
killed between two steps continues from the ledger: it withdraws a replica that never ran, because
its stop may not have been read yet, and reports it as never started; it adopts and supervises a
replica that ran.

This is one file because start, stop, adoption and facts all read and change the same `Replica`, and
the order of their writes to the ledger must be readable in one place.
"""

import asyncio
import json
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final, TypedDict

from opentelemetry.trace import SpanKind
from pydantic import TypeAdapter, ValidationError

from yardmaster_node_agent.agent_state import (
    Replica,
    ReplicaState,
    StopOrder,
)
from yardmaster_node_agent.code_folders import prepare_unless
from yardmaster_node_agent.details import details_of, resolve_secrets
from yardmaster_node_agent.environment import task_environment
from yardmaster_node_agent.errors import ExecutorFailed, RunRefused
from yardmaster_node_agent.executors.port import (
    Execution,
    FetchProgress,
    Launch,
    Phase,
    ReplicaFiles,
    ReplicaFound,
)
from yardmaster_node_agent.lease import FenceExpired
from yardmaster_node_agent.metrics import AgentMetrics
from yardmaster_node_agent.output import OutputShipper
from yardmaster_node_agent.pacing import PacedReport, PullReports
from yardmaster_node_agent.ports import AgentContext
from yardmaster_node_agent.reports import Fact
from yardmaster_runtime.telemetry.tracing import (
    Attributes,
    child_span,
    ending,
    trace_id_of,
    traceparent_of,
)
from yardmaster_runtime.waiting import first_of, happens_within, within
from yardmaster_schemas.envelope import Event
from yardmaster_schemas.events.decisions import Checkpoint
from yardmaster_schemas.events.node_events import (
    CheckpointDoneV1,
    RunIdentity,
    SlotsReleasedV1,
    TaskExitedV1,
    TaskPreparingV1,
    TaskProgressedV1,
    TaskStartedV1,
)
from yardmaster_schemas.instants import rfc3339
from yardmaster_schemas.reasons import StartFailure
from yardmaster_schemas.resources import is_fraction

#: Seconds between two rounds of SIGKILL, for processes that started during the last round.
KILL_AGAIN_S: Final = 0.2
#: Seconds that the other processes of a replica may live after the end of its main process.
LINGER_S: Final = 0.1
#: The most batches of its output that a replica ships in one tick; others get their turn then.
BATCHES_A_TICK: Final = 8
#: Seconds after which an executor is asked again for a replica whose phase is unknown.
ASK_AGAIN_S: Final = 1.0

OTHER: Final = StartFailure.OTHER
_CHECKPOINT: Final = TypeAdapter(Checkpoint)


class FactFields(TypedDict):
    """The fields that all facts about a replica have."""

    task_id: str
    attempt: int
    replica: int
    node: str
    incarnation: str


class CheckpointRefused(ValueError):
    """A checkpoint that a task reported is not valid; the message says why."""


class StepNotRising(CheckpointRefused):
    """A checkpoint is not newer than the task's last one; the message names both steps."""


class Supervision:
    """Supervises one replica; `start` or `resume` runs until the replica is released."""

    def __init__(self, context: AgentContext, metrics: AgentMetrics, replica: Replica) -> None:
        self.replica = replica
        self._context = context
        self._metrics = metrics
        self._clock = context.ports.clock
        self._output = OutputShipper(context, replica, metrics)
        interval_s, coalesced = context.settings.report_interval_s, metrics.reports_coalesced
        self._permille = 0
        self._progress = PacedReport(
            self._clock, interval_s, self._report_progress, coalesced.labels("progress")
        )
        self._checkpoints = PacedReport(
            self._clock, interval_s, self._report_checkpoint, coalesced.labels("checkpoint")
        )
        self._tracer = context.ports.telemetry.tracer
        self._assigned_ms = self._clock.now_ms()
        #: The trace of the request that submitted the job; unknown for an adopted replica.
        self._traceparent: str | None = None
        #: The last line about an ignored checkpoint file, which is not repeated.
        self._ignored = ""
        #: Why the node has no capacity for the replica; None if it has.
        self.refused: str | None = None
        #: Set when there may be output to ship.
        self._has_output = asyncio.Event()
        self._stop_changed = asyncio.Event()
        self._stopping = asyncio.Event()
        if replica.stop is not None:
            self._stopping.set()
            self._stop_changed.set()

    # --- called by agent and tasks -------------------------------------------------------------

    def stop(self, order: StopOrder) -> None:
        """Order the replica to stop.

        If a stop was ordered before, a new order counts only if it kills the replica earlier, or
        revokes it.
        """
        old = self.replica.stop
        if self.replica.state is ReplicaState.RELEASED or (
            old is not None
            and self._left_s(order) >= self._left_s(old)
            and order.revoked <= old.revoked
        ):
            return
        if old is not None:
            order = replace(order, signalled=old.signalled)
        self.replica.stop = order
        self._save()
        # The task restarts from its last checkpoint, so one made at the stop is reported at once.
        self._checkpoints.hurry()
        self._stopping.set()
        self._stop_changed.set()

    def _left_s(self, order: StopOrder) -> float:
        """Return the seconds until an order kills the replica."""
        return order.kill_at_ms / 1000 - self._clock.monotonic_s()

    def refuse(self, found: str) -> None:
        """Let `start` release the replica at once, because the node has no capacity for it."""
        self.refused = found

    def stop_notice(self) -> dict[str, str] | None:
        """Return the notice for a task that must stop, else None."""
        order = self.replica.stop
        if order is None:
            return None
        return {"code": order.code, "deadline_at": rfc3339(order.deadline_ms)}

    async def wait_stop(self, seconds: float) -> None:
        """Wait until the replica must stop, but at most `seconds`."""
        await happens_within(self._clock, seconds, self._stopping)

    def record_checkpoint(self, content: object) -> None:
        """Record a checkpoint `{uri, step}` and report it; a repeat changes nothing.

        The checkpoint is in the ledger when this returns. It is reported within
        `report_interval_s`.

        Raises:
            CheckpointRefused: the content is malformed.
            StepNotRising: the step is not above the step of the task's last checkpoint.
        """
        try:
            checkpoint = _CHECKPOINT.validate_json(json.dumps(content))
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
            where = ".".join(str(part) for part in first["loc"]) or "body"
            raise CheckpointRefused(f"{where}: {first['msg']}") from None
        last = self._last_checkpoint()
        if checkpoint == last:
            return
        if last is not None and checkpoint.step <= last.step:
            raise StepNotRising(
                f"step {checkpoint.step} does not rise above {last.step}, "
                "the step of the task's last checkpoint"
            )
        self.replica.checkpoint, self.replica.checkpoint_logged = checkpoint, False
        self._save()
        self._checkpoints.offer()

    def record_progress(self, permille: int) -> None:
        """Report the task's progress within `report_interval_s`; it is not stored in the ledger."""
        self._permille = permille
        self._progress.offer()

    def say_not_allowed(self, uri: str) -> None:
        """Say in the task's output that the scheduler refused its checkpoint at a URI."""
        self._output.add_line(
            f"the checkpoint at {uri[:500]} does not count: it is not within a prefix that the "
            "project allows (yard projects show); the next attempt starts from the one before"
        )

    def _last_checkpoint(self) -> Checkpoint | None:
        """Return the last checkpoint of this replica, else the one at its attempt's start."""
        return self.replica.checkpoint or self.replica.assignment.checkpoint

    def finish(self) -> None:
        """Record that the work of the task is done: exit code 0 after a stop then means success."""
        if not self.replica.done:
            self.replica.done = True
            self._save()

    # --- lifecycle -----------------------------------------------------------------------------

    async def start(self) -> None:
        """Start a replica that is in the ledger, and supervise it until it is released."""
        replica = self.replica
        try:
            if self.refused is not None:
                raise RunRefused(replica=replica.key, found=self.refused)
            execution = await self._start_execution()
        except (RunRefused, ExecutorFailed) as error:
            self._log_event("replica_not_started", code=error.code)
            await self._release_unstarted(str(error), error.failure)
            return
        if execution is None:
            assert replica.stop is not None, "only a stop prevents the start"
            await self._release_unstarted(f"stopped before it started: {replica.stop.code}")
            return
        self._has_started(execution.identity)
        self._log_event("replica_started", run=execution.identity.id)
        await self._follow(execution)

    async def _start_execution(self) -> Execution | None:
        """Start the replica, unless a stop was ordered meanwhile; record the spans of the start.

        Raises:
            RunRefused, ExecutorFailed.
        """
        tracer, key = self._tracer, self.replica.key
        executor = self._context.ports.executor
        read_ms = self._clock.now_ms()
        launch = await self._fetch(await self._launch())
        code, project = self._context.ports.code, self.replica.assignment.project
        launch = await prepare_unless(self._stopping, code, launch, project, self._metrics)
        attributes: Attributes = {
            "yard.task": key.task_id,
            "yard.attempt": key.attempt,
            "yard.replica": key.replica,
            "yard.node": self._context.settings.node,
        }
        # The trace is known only from the details, so the earlier spans are created here.
        span = child_span(
            tracer,
            "node_agent assignment",
            self._traceparent,
            start_ms=self._assigned_ms,
            kind=SpanKind.CONSUMER,
            attributes=attributes,
        )
        traceparent = traceparent_of(span)
        with ending(span):
            child_span(tracer, "node_agent details", traceparent, start_ms=read_ms).end()
            if self.replica.stop is None:
                with ending(child_span(tracer, "node_agent prepare", traceparent)):
                    await executor.prepare(launch)
            in_container = launch.run.image is not None
            turns = self._context.start_turns
            async with turns.turn(in_container=in_container, report=self._report_waiting):
                if self.replica.stop is not None:
                    return await executor.withdraw(key)
                self.replica.image = None if launch.image is None else launch.image.digest
                self.replica.state = ReplicaState.STARTING
                self._save()
                with ending(child_span(tracer, "node_agent start", traceparent)):
                    return await executor.start(launch)

    async def _fetch(self, launch: Launch) -> Launch:
        """Return the launch with what it runs in; if a stop is ordered meanwhile, as it was.

        Raises:
            ExecutorFailed.
        """
        if launch.run.image is None:
            return launch
        fetched = launch
        reports = PullReports(self._clock, self._report_preparing)

        async def fetch() -> None:
            nonlocal fetched
            executor = self._context.ports.executor
            fetched = await executor.fetch(launch, reports.offer)

        await first_of(fetch(), self._stopping.wait())
        return fetched

    async def adopt(self) -> ReplicaFound:
        """Find what an earlier agent process started for this replica; else it never starts.

        Call this before the node joins.
        """
        replica, executor = self.replica, self._context.ports.executor
        if not replica.held:
            return ReplicaFound(Phase.ABSENT)
        found = await executor.find(replica.key, replica.identity)
        if found.phase is Phase.PREPARED:
            execution = await executor.withdraw(replica.key)
            if execution is not None:
                found = await executor.find(replica.key, execution.identity)
        if found.execution is not None and replica.identity is None:
            self._has_started(found.execution.identity)
        return found

    async def until_known(self, found: ReplicaFound) -> ReplicaFound:
        """Adopt the replica again until its phase is known; meanwhile it holds its slots."""
        while found.phase is Phase.UNKNOWN:
            await self._clock.sleep(ASK_AGAIN_S)
            found = await self.adopt()
        return found

    async def resume(self, found: ReplicaFound) -> None:
        """Report all facts of an adopted replica, and supervise it until it is released."""
        found = await self.until_known(found)
        if self.replica.state is ReplicaState.RELEASED:
            self._report_all()
        elif found.execution is None:
            await self._release_unstarted("the agent was restarted before it had started it", OTHER)
        else:
            self._report_all()
            await self._follow(found.execution)

    def exit_unknown(self, found: ReplicaFound) -> bool:
        """Whether the replica ran and has ended, and its exit can never be known."""
        return self.replica.held and self.replica.exit is None and found.exit_lost

    async def keep_artifacts(self) -> None:
        """Keep the artifacts of a released replica, if its job wants any and it has run."""
        replica, ports = self.replica, self._context.ports
        if not replica.keeps_artifacts or replica.state is not ReplicaState.RELEASED:
            return
        folder = ports.code.folder(replica.key)
        line = await ports.artifacts.keep(replica, folder, self._metrics.artifacts)
        replica.artifacts_done = True
        self._save(durable=False)
        self._output.add_line(line)
        await self._drain(None)

    async def abandon(self, execution: Execution) -> None:
        """Kill the rest of a replica with unknown exit, and report all its facts but the end."""
        self._report_all()
        await self._end_orphans(execution)
        self._read_checkpoint_file(execution)
        self._checkpoints.flush()
        self._output.add_line("it ended with the machine, or its agent, and is lost with the node")
        await self._drain(execution.files)

    async def _launch(self) -> Launch:
        context, assignment = self._context, self.replica.assignment
        details, self._traceparent = await details_of(context.ports.log, assignment)
        if is_fraction(assignment.gpu_milli):
            await self._check_limits()
        self.replica.stop_signal = details.stop_signal
        self.replica.artifacts = details.run.artifacts
        env = task_environment(
            assignment,
            details,
            resolve_secrets(context.ports.secrets, assignment, details),
            token=self.replica.token,
            paths=context.ports.executor.paths(assignment.key, details.run),
            facts=context.facts,
            free_port=context.ports.free_port(),
        )
        return Launch(
            assignment.key,
            details.run,
            env,
            user=self.replica.user,
            fence_s=assignment.fence_s,
            incarnation=context.state.head.incarnation,
            replicas=assignment.replicas,
            cpu_milli=assignment.cpu_milli,
            memory_mib=assignment.memory_mib,
            devices=tuple(context.facts.devices[slot] for slot in assignment.slots),
            pinned=assignment.image,
        )

    async def _check_limits(self) -> None:
        """Refuse a replica with a fraction of a GPU that the node no longer enforces.

        Raises:
            RunRefused: without the daemon, CUDA would run the replica without limits.
        """
        missing = await self._context.facts.limiter.missing()
        if missing is not None:
            raise RunRefused(
                replica=self.replica.key,
                found=f"its fraction of a GPU cannot be enforced: {missing}",
                failure=OTHER,
            )

    def _has_started(self, identity: RunIdentity) -> None:
        self.replica.identity = identity
        self.replica.state = ReplicaState.STARTED
        self._save()
        self._metrics.started.inc()
        self._report_started()

    async def _follow(self, execution: Execution) -> None:
        """Supervise a started replica until it is released."""
        replica = self.replica
        async with asyncio.TaskGroup() as group:
            watching = [
                group.create_task(self._enforce_stop(execution)),
                group.create_task(self._poll_files(execution)),
                group.create_task(self._ship_output(execution)),
                group.create_task(self._progress.run()),
                group.create_task(self._checkpoints.run()),
            ]
            if replica.exit is None:
                exit_ = await execution.exited()
                if exit_.fenced:
                    raise FenceExpired(f"the runner of {replica.key} killed it")
                replica.exit = exit_
                replica.state = ReplicaState.EXITED
                replica.ended_ms = self._clock.now_ms()
                self._save()
                if replica.exit.lost:
                    self._metrics.lost_exits.inc()
                    self._output.add_line("the process's exit was not seen: it counts as killed")
                if replica.exit.output_doubtful:
                    self._output.add_line(
                        "output may be missing: the container engine could not read its log of it"
                    )
            await self._end_orphans(execution)
            for task in watching:
                task.cancel()
        self._read_checkpoint_file(execution)
        await self._drain(execution.files)
        self._release()

    async def _enforce_stop(self, execution: Execution) -> None:
        """Wait for a stop order; send the stop signal, and kill repeatedly from the deadline on."""
        while self.replica.stop is None:
            await self._stop_changed.wait()
            self._stop_changed.clear()
        order = self.replica.stop
        while not order.revoked:
            if not execution.files.announce_stop(json.dumps(self.stop_notice())):
                self._output.add_line(
                    "the stop file cannot be written: the task's directory is gone"
                )
            if not order.signalled:
                await execution.signal(signal.Signals[f"SIG{self.replica.stop_signal}"])
                self.replica.stop = order = replace(order, signalled=True)
                self._save(durable=False)
            left_s = self._left_s(order)
            if left_s <= 0 or not await happens_within(self._clock, left_s, self._stop_changed):
                break
            self._stop_changed.clear()
            order = self.replica.stop
        found = await self._context.ports.executor.find(self.replica.key, execution.identity)
        if found.phase is Phase.RUNNING:
            self._metrics.killed.inc()
            self._output.add_line(
                "killed: its slots were revoked"
                if order.revoked
                else "killed at the end of its grace"
            )
        while True:
            await execution.kill()
            await self._clock.sleep(KILL_AGAIN_S)

    async def _poll_files(self, execution: Execution) -> None:
        """At every tick, read the checkpoint file and limit the disk space of the output files.

        The files keep the bytes that may be shipped, even if the log is unavailable for a long
        time. A node may have hundreds of replicas, so a tick without news must cost little.
        """
        while True:
            await self._clock.sleep(self._context.settings.tick_s)
            self._read_checkpoint_file(execution)
            self._output.bound(execution.files)
            if self._output.has_work(execution.files):
                self._has_output.set()

    async def _ship_output(self, execution: Execution) -> None:
        """Ship what a tick finds. This is not part of `_poll_files`: appends may be slow."""
        while True:
            await self._has_output.wait()
            self._has_output.clear()
            for _ in range(BATCHES_A_TICK):
                shipped = await self._output.ship(execution.files)
                if not (shipped and self._output.behind(execution.files)):
                    break

    async def _end_orphans(self, execution: Execution) -> None:
        """Kill the processes that are still alive after the main process has ended."""
        wait_s = LINGER_S
        while True:
            try:
                await within(self._clock, wait_s, execution.gone())
            except TimeoutError:
                await execution.kill()
                wait_s = KILL_AGAIN_S
            else:
                return

    def _read_checkpoint_file(self, execution: Execution) -> None:
        """Record the checkpoint, or the end of the work, that the checkpoint file reports.

        A file that is not the task's own, and invalid content, are ignored with a line in the
        task's output, which is not repeated for as long as the cause is the same.
        """
        try:
            note = execution.files.checkpoint_note()
            if note is None:
                return
            content = json.loads(note)
            if not isinstance(content, dict):
                raise CheckpointRefused("it is not a JSON object")
            done = content.pop("done", False)
            if done is True:
                self.finish()
            last = self._last_checkpoint()
            step = content.get("step")
            if content and not (last is not None and isinstance(step, int) and step < last.step):
                self.record_checkpoint(content)
            self._ignored = ""
        except (ValueError, RecursionError) as error:
            line = f"the checkpoint file is ignored: {error}"[:500]
            if line != self._ignored:
                self._ignored = line
                self._output.add_line(line)

    async def _drain(self, files: ReplicaFiles | None) -> None:
        """Ship the rest of the output, for at most `drain_s`, because the replica holds its slots.

        After half of this time, leave out all output except the newest part.
        """
        limit_s = self._context.settings.drain_s
        hurry_s = self._clock.monotonic_s() + limit_s / 2

        async def all_of_it() -> None:
            while await self._output.ship(files, final=True):
                if files is not None and self._clock.monotonic_s() > hurry_s:
                    self._output.skip_to_tail(files)

        with suppress(TimeoutError):
            await within(self._clock, limit_s, all_of_it())

    async def _release_unstarted(self, found: str, failure: StartFailure | None = None) -> None:
        self.replica.failure = failure
        self._metrics.never_started.inc()
        self._output.add_line(f"never started: {found}"[:1000])
        await self._drain(None)
        self._release()

    def _release(self) -> None:
        """Release the replica's slots: write its end to the ledger, and queue its last facts."""
        self.replica.state = ReplicaState.RELEASED
        self.replica.ended_ms = self._clock.now_ms()
        self._save()
        # A report of a replica must not follow its end in the log.
        self._progress.flush()
        self._checkpoints.flush()
        self._report_ended()

    # --- facts for the log ---------------------------------------------------------------------

    def _report_all(self) -> None:
        """Queue all facts that are not known to be in the log, in the order of the events."""
        replica = self.replica
        if replica.identity is not None and not replica.started_logged:
            self._report_started()
        if not replica.checkpoint_logged:
            self._report_checkpoint()
        if replica.state is ReplicaState.RELEASED and not replica.ended_logged:
            self._report_ended()

    def _report_started(self) -> None:
        identity = self.replica.identity
        assert identity is not None, "a replica that started has an identity"
        event = TaskStartedV1(**self._fact_fields(), run=identity, image=self.replica.image)

        def on_logged() -> None:
            self.replica.started_logged = True
            self._save(durable=False)

        self._report("started", event, on_logged=on_logged)

    def _report_checkpoint(self) -> None:
        checkpoint = self.replica.checkpoint
        assert checkpoint is not None, "a checkpoint is stored before it is reported"
        event = CheckpointDoneV1(**self._fact_fields(), uri=checkpoint.uri, step=checkpoint.step)

        def on_logged() -> None:
            self.replica.checkpoint_logged = self.replica.checkpoint == checkpoint
            self._save(durable=False)

        self._report("checkpoint", event, on_logged=on_logged)

    def _report_preparing(self, progress: FetchProgress) -> None:
        event = TaskPreparingV1(
            **self._fact_fields(),
            layers=progress.layers,
            layers_done=progress.layers_done,
            bytes_done=progress.bytes_done,
            bytes_total=progress.bytes_total,
        )
        self._report("preparing", event)

    def _report_waiting(self, starts_ahead: int) -> None:
        event = TaskPreparingV1(**self._fact_fields(), starts_ahead=starts_ahead)
        self._report("preparing", event)

    def _report_progress(self) -> None:
        self._report("progress", TaskProgressedV1(**self._fact_fields(), permille=self._permille))

    def _report_ended(self) -> None:
        """Queue the exit of the main process, if there was one, and the release of the slots."""
        exit_ = self.replica.exit
        released = SlotsReleasedV1(
            **self._fact_fields(),
            never_started=self.replica.identity is None,
            failure=self.replica.failure,
        )
        events: tuple[Event, ...] = (released,)
        if exit_ is not None:
            exited = TaskExitedV1(
                **self._fact_fields(),
                exit_code=exit_.exit_code,
                signal=exit_.signal,
                out_of_memory=exit_.out_of_memory,
                engine_restarted=exit_.engine_restarted and self.replica.stop is None,
                done=self.replica.done,
            )
            events = (exited, released)

        def on_logged() -> None:
            self.replica.ended_logged = True
            self._save(durable=False)

        self._report("ended", *events, on_logged=on_logged)

    def _report(
        self, what: str, *events: Event, on_logged: Callable[[], None] | None = None
    ) -> None:
        order = self.replica.stop
        cause = order.cause if what == "ended" and order is not None else None
        self._context.reporter.report(
            what,
            str(self.replica.key),
            Fact(
                events=events,
                subject=self.replica.key.task_id,
                cause=cause or self.replica.assignment.cause,
                on_logged=on_logged or (lambda: None),
                traceparent=self._traceparent,
            ),
        )

    def _log_event(self, event: str, **fields: object) -> None:
        key = self.replica.key
        self._context.ports.telemetry.info(
            event,
            task_id=key.task_id,
            attempt=key.attempt,
            replica=key.replica,
            trace_id=trace_id_of(self._traceparent),
            **fields,
        )

    def _fact_fields(self) -> FactFields:
        key = self.replica.key
        return {
            "task_id": key.task_id,
            "attempt": key.attempt,
            "replica": key.replica,
            "node": self._context.settings.node,
            "incarnation": self._context.state.head.incarnation,
        }

    def _save(self, *, durable: bool = True) -> None:
        self._context.save(self.replica, durable=durable)
