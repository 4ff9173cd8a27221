"""The node agent: one process per host that joins the cell and runs the tasks assigned to the node.

`run` handles any number of incarnations of the node, one after another. In one incarnation the
agent loads its ledger, adopts the replicas that still run, joins the cell and consumes the
assignments; one `Supervision` handles each replica. The incarnation ends when the scheduler counts
the node as lost. The agent then kills all replicas, starts a new ledger and joins again.

Cancelling the agent is handled like a crash: it reports nothing and kills nothing. Tasks continue,
and the next agent process adopts them.

An unavailable log does not end the agent, however long it lasts. The agent retries its calls, with
pauses up to `retry.longest_pause_s`. Tasks continue, except those under a fence (see `lease`).
Meanwhile the ledger stores what happens to the tasks, and files store their output, up to
`output_limit_bytes` of each replica. An agent that starts while the log is unavailable supervises
the replicas in its ledger at once; only an agent without a ledger waits for the log.

A power loss ends the incarnation with its replicas. An agent that starts recognizes a power loss:
the ledger has replicas whose exit is unknown, and no replica is alive. The agent then reports the
facts that it has and joins as a new incarnation.
"""

import asyncio
import hashlib
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, NoReturn

from yardmaster_eventlog.errors import (
    AppendOutcomeUnknown,
    LogUnavailable,
    OffsetGone,
    UnknownTopic,
)
from yardmaster_eventlog.port import Partition
from yardmaster_node_agent.agent_state import (
    AgentState,
    Forgotten,
    Head,
    Offer,
    Reached,
    Replica,
    ReplicaKey,
    StopOrder,
)
from yardmaster_node_agent.api import HOST, TaskApi
from yardmaster_node_agent.assignments import AssignmentFollower, ends_incarnation
from yardmaster_node_agent.devices import cpu_milli
from yardmaster_node_agent.environment import NodeFacts
from yardmaster_node_agent.errors import AgentError, NodeTaken, NotRenewed
from yardmaster_node_agent.executors.host_folders import grants_of
from yardmaster_node_agent.executors.port import Capabilities, Phase, ReplicaFound
from yardmaster_node_agent.executors.task_user import claim
from yardmaster_node_agent.joining import HINTS, POLL_S, Refusals
from yardmaster_node_agent.lease import FenceExpired, IncarnationOver, Lease, Replaced
from yardmaster_node_agent.metrics import AgentMetrics
from yardmaster_node_agent.ports import AgentContext, Ports, host_ports, simulated_ports
from yardmaster_node_agent.reports import Fact, Reporter, Writer
from yardmaster_node_agent.rival import RivalWatch
from yardmaster_node_agent.settings import Settings
from yardmaster_node_agent.start_turns import StartTurns
from yardmaster_node_agent.supervision import Supervision
from yardmaster_node_agent.topic import find_topic, position_at_end
from yardmaster_node_agent.user_pool import UserPool
from yardmaster_runtime.fence import Mark, check_generation, check_marks, last_cut
from yardmaster_runtime.http import CannotListen
from yardmaster_runtime.retrying import RetryingLog
from yardmaster_runtime.waiting import happens_within, together
from yardmaster_schemas.counts import count_of
from yardmaster_schemas.events.expiring import NodeHeartbeatV1
from yardmaster_schemas.events.node_events import (
    ExecutorKind,
    FractionLimits,
    NodeJoinedV1,
    ReplicaRef,
)
from yardmaster_schemas.reasons import RefusalCode
from yardmaster_schemas.sources import next_incarnation
from yardmaster_schemas.topics import HEARTBEATS, assignments

__all__ = ["Ports", "Settings", "host_ports", "run", "simulated_ports"]

#: The version of the events that this agent reads and writes.
SCHEMA_VERSION: Final = 1
#: Hexadecimal digits of an incarnation.
INCARNATION_DIGITS: Final = 12

#: The supervision of a replica in the ledger, and what was found of the replica.
Adopted = tuple[Supervision, ReplicaFound]


async def run(ports: Ports, settings: Settings) -> None:
    """Run the agent of one node until cancelled.

    Raises:
        LedgerCorrupt, LedgerInUse, LedgerUnwritable: no task may start without a ledger.
        AssignmentUnreadable: an assignment cannot be read; a newer scheduler wrote it.
        NotEnrolled: the node's topic was not created in time.
        NodeTaken: another agent runs as the node, or has joined as its successor.
        TaskUsersUnusable: another agent of this machine has some of the users of tasks.
        ExecutorFailed: processes of an earlier agent process cannot be killed.
        LogError: an error that retries cannot solve, such as a replaced log.
    """
    metrics = AgentMetrics(ports.telemetry)
    for_ever = settings.retry.model_copy(update={"attempts": 0})
    retrying = RetryingLog(ports.log, ports.clock, for_ever, metrics.log_retries)
    ports.health.report("node", "not joined yet")
    try:
        state = ports.ledger.load()
        if ports.users is not None:
            claim(ports.users)
        if state is not None and state.head.node != settings.node:
            raise AgentError(found=f"the ledger is node {state.head.node}'s, not {settings.node}'s")
        if state is not None and state.head.host != _host_id(ports):
            # The ledger is a copy. The agent of the original ledger may be running, so this agent
            # must not continue the same incarnation.
            ports.telemetry.warn("ledger_copied", node=settings.node)
            state = None
        if state is None:
            state = await _begin_incarnation(ports, settings, metrics, retrying, old=None)
        elif state.head.offer != _offer(ports, settings) and not _held(state):
            # An incarnation's offer never changes; a node without replicas may start a new one.
            state = await _begin_incarnation(ports, settings, metrics, retrying, old=state.head)
        while True:
            kept = [r.key for r in state.replicas.values() if not r.directory_removed]
            ports.code.keep_only(kept)
            agent = _Incarnation(ports, settings, metrics, retrying, state)
            replaced = False
            try:
                await agent.run()
            except* IncarnationOver as ended:
                over = ended.exceptions[0]
                replaced = isinstance(over, Replaced)
                if isinstance(over, FenceExpired):
                    metrics.fenced.inc()
                ports.health.report("node", "joins as a new incarnation")
                ports.telemetry.warn("incarnation_over", node=settings.node, found=str(over))
            if replaced:
                await ports.executor.sweep()
                # Keep the position: otherwise the next agent would read the same NodeLost and end.
                reached = agent.reached
                ports.ledger.begin(agent.head)
                ports.ledger.write([Reached(offset=reached)])
                raise NodeTaken(node=settings.node)
            state = await _begin_incarnation(ports, settings, metrics, retrying, old=agent.head)
    finally:
        # Needed only if this process opens the ledger again; at its exit the kernel unlocks it.
        ports.ledger.close()


def _host_id(ports: Ports) -> str:
    """Return a digest of this machine and the place of the ledger.

    It differs on another machine, and for a copy of the ledger on this machine; a restart of the
    machine does not change it. A clone of a whole machine with all its ids has the same digest. In
    this case the cell refuses the reports of one of the two agents because of their numbers
    (`Refusals.overtaken`).
    """
    found = f"{ports.machine.machine_id} {ports.ledger.place}"
    return hashlib.sha256(found.encode()).hexdigest()


def _offer(ports: Ports, settings: Settings) -> Offer:
    return Offer(
        pool=settings.pool,
        node_type=settings.node_type,
        gpus=len(ports.machine.devices.names),
        cpu_milli=ports.machine.cpu_milli,
        memory_mib=ports.machine.memory_mib,
    )


def _held(state: AgentState) -> list[Replica]:
    """Return the replicas that hold slots, or whose release or artifacts are not recorded yet."""
    return [replica for replica in state.replicas.values() if replica.unfinished]


def _lost(adopted: list[Adopted]) -> list[Adopted]:
    """Return the replicas that ended with the machine, or with all processes of the node.

    These are the replicas with an unknown exit, if no replica of the node is alive. If a replica is
    alive, the machine did not restart, and a replica with an unknown exit is not lost: only its
    runner was killed, and it ended by itself.
    """
    if any(found.phase is Phase.RUNNING for _, found in adopted):
        return []
    return [each for each in adopted if each[0].exit_unknown(each[1])]


async def _begin_incarnation(
    ports: Ports, settings: Settings, metrics: AgentMetrics, log: RetryingLog, old: Head | None
) -> AgentState:
    """Kill all replicas of earlier ledgers, then start a ledger at the end of the assignments.

    `old` is the head of the incarnation before the new one; None if there was none.
    """
    ports.health.report("node", "ends the replicas of earlier ledgers")
    killed = await ports.executor.sweep()
    ports.health.report("node", "not joined yet")
    await find_topic(ports, settings, log)
    topic = Partition(assignments(settings.node).name, settings.partition)
    reached = await position_at_end(log, topic)
    cut = await last_cut(log, settings.partition)
    if old is None:
        incarnation = ports.chance.hex("incarnation", INCARNATION_DIGITS)
    else:
        incarnation = next_incarnation(old.incarnation)
    head = Head(
        node=settings.node,
        incarnation=incarnation,
        epoch=0,
        offer=_offer(ports, settings),
        api_port=0 if old is None else old.api_port,
        generation=0 if cut is None else cut.generation,
        host=_host_id(ports),
    )
    state = ports.ledger.begin(head)
    state.apply(reached)
    ports.ledger.write([reached])
    Lease.begin(ports.clock, ports.renewals, head.incarnation, ports.machine.boot_id)
    metrics.incarnations.inc()
    ports.telemetry.info(
        "incarnation_begun", node=settings.node, incarnation=head.incarnation, killed=killed
    )
    return state


class _Incarnation:
    """One agent process during one incarnation of the node."""

    def __init__(
        self,
        ports: Ports,
        settings: Settings,
        metrics: AgentMetrics,
        log: RetryingLog,
        state: AgentState,
    ) -> None:
        self._ports = ports
        self._settings = settings
        self._metrics = metrics
        self._log = log
        self._state = state
        self._supervisions: dict[ReplicaKey, Supervision] = {}
        self._by_token: dict[str, Supervision] = {}
        self._replicas: asyncio.TaskGroup | None = None
        self._lease = Lease(ports.clock, ports.renewals, state, ports.machine.boot_id)
        #: Set when the supervision of a replica finds that the incarnation is over.
        self._found_over = asyncio.Event()
        self._joining: NodeJoinedV1 | None = None
        #: Set when another incarnation of the node is lost.
        self._rival_lost = asyncio.Event()
        #: Whether the cell refused the last join.
        self._join_refused = False
        #: Whether the executor runs no containers at present, although it may.
        self._no_containers = False
        self.head = state.head

    @property
    def reached(self) -> int:
        """The offset in the assignments before which every record was handled."""
        return self._state.reached

    async def run(self) -> None:
        """Join and run tasks until the incarnation is over.

        Raises:
            IncarnationOver, and the errors of this module's `run`.
        """
        self._lease.check()
        api = TaskApi(self._by_token.get, self._ports.clock, self._metrics)
        try:
            if self._settings.api:
                self._listen(api)
            context = self._open(api.port)
            adopted = await self._adopt(context)
            if lost := _lost(adopted):
                await self._report_lost(
                    context, lost, [each for each in adopted if each not in lost]
                )
            await self._join(context, adopted)
            follower = AssignmentFollower(
                context,
                self._metrics,
                begin=self._supervise_new,
                supervisions=self._supervisions,
                on_rival_lost=self._rival_lost.set,
            )
            work: list[Coroutine[Any, Any, object]] = [
                self._use_log(context, follower),
                self._lease.watch(),
                self._until_over(),
            ]
            if self._settings.api:
                work.append(api.run())
            await together(self._look_after(adopted, work))
        finally:
            api.close()

    def _listen(self, api: TaskApi) -> None:
        """Listen on the port in the settings, or else on the port that running tasks use."""
        kept = self._state.head.api_port
        try:
            api.listen(self._settings.api_port or kept)
        except CannotListen as error:
            if self._settings.api_port:
                raise
            self._ports.telemetry.warn("api_port_taken", port=kept, found=str(error))
            api.listen(0)
        if (path := self._ports.api_socket) is not None:
            try:
                api.listen_at(path)
            except OSError as error:
                # Their files suffice for all but progress.
                self._ports.telemetry.warn("api_socket_failed", path=str(path), found=str(error))

    def _open(self, api_port: int) -> AgentContext:
        """Store a new epoch for this process in the ledger, and make its context."""
        old = self._state.head
        self.head = Head(
            node=old.node,
            incarnation=old.incarnation,
            epoch=old.epoch + 1,
            offer=old.offer,
            api_port=api_port,
            generation=old.generation,
            host=_host_id(self._ports),
        )
        self._state.apply(self.head)
        writer = Writer(
            self._ports.log,
            self._log,
            self._ports.clock,
            self._metrics,
            node=self.head.node,
            incarnation=self.head.incarnation,
            partition=self._settings.partition,
            epoch=self.head.epoch,
        )
        devices = self._ports.machine.devices
        context = AgentContext(
            # An unavailable log does not end the agent.
            ports=replace(self._ports, log=self._log),
            settings=self._settings,
            state=self._state,
            writer=writer,
            reporter=Reporter(writer, self._lease, self._metrics, self._settings.cell),
            lease=self._lease,
            facts=NodeFacts(
                node=self.head.node,
                agent_url=f"http://{HOST}:{api_port}" if api_port else "",
                devices=devices.names,
                gpu_memory_mib=devices.memory_mib,
                limiter=self._ports.limiter,
                passed=self._ports.machine.passed,
            ),
            start_turns=StartTurns(
                self._settings.starts_at_once or 2 * max(1, cpu_milli() // 1000),
                self._metrics.starts_waiting,
                self._ports.clock,
            ),
            users=UserPool(
                self._ports.users,
                self._state,
                self._settings.data_dir,
                by_mps=self._ports.limiter.limits is FractionLimits.MPS,
            ),
        )
        context.save(self.head)
        if old.offer != _offer(self._ports, self._settings):
            self._ports.telemetry.warn(
                "offer_unchanged", node=old.node, found="the new offer applies when no replica runs"
            )
        return context

    async def _adopt(self, context: AgentContext) -> list[Adopted]:
        """Find what runs of all replicas in the ledger with an end or artifacts not recorded yet.

        A replica that never ran is withdrawn, so that it never will.
        """
        for replica in self._state.replicas.values():
            if replica.unfinished:
                self._supervisions[replica.key] = Supervision(context, self._metrics, replica)
        # All are asked for together, because an engine that hangs costs a time limit for each.
        supervisions = list(self._supervisions.values())
        found = await asyncio.gather(*(each.adopt() for each in supervisions))
        adopted = list(zip(supervisions, found, strict=True))
        if _lost(adopted):
            # One replica that is alive shows that the machine did not restart.
            self._ports.health.report("node", "waits for an answer of the container engine")
            adopted = [(each, await each.until_known(seen)) for each, seen in adopted]
        return adopted

    async def _report_lost(
        self, context: AgentContext, lost: list[Adopted], ended: list[Adopted]
    ) -> NoReturn:
        """Report all known facts of an incarnation that a power loss ended, and start nothing.

        `lost` are the replicas whose exit is unknown; `ended` are all others.

        Raises: IncarnationOver: always, once the facts are in the log.
        """

        async def until_logged() -> NoReturn:
            await together(
                *(
                    supervision.abandon(found.execution)
                    for supervision, found in lost
                    if found.execution is not None
                )
            )
            while not (
                all(supervision.replica.ended_logged for supervision, _ in ended)
                and all(supervision.replica.facts_logged for supervision, _ in lost)
            ):
                await self._ports.clock.sleep(self._settings.tick_s)
            raise IncarnationOver(
                f"{count_of(len(lost), 'replica')} ended with the machine, or its agent"
            )

        async def report() -> None:
            await self._check_log()
            await context.reporter.run()

        self._ports.health.report("node", "reports the replicas that ended with the machine")
        await self._look_after(ended, [report(), until_logged()])
        raise AssertionError("the wait for the reports ends with IncarnationOver")

    async def _join(self, context: AgentContext, adopted: list[Adopted]) -> None:
        """Compose the join of this incarnation, with the replicas that it adopted, and queue it."""
        offer, settings = self.head.offer, self._settings
        found = await self._capabilities()
        running = sorted(s.replica.key for s, found in adopted if found.execution is not None)
        event = NodeJoinedV1(
            node=self.head.node,
            incarnation=self.head.incarnation,
            boot_id=self._ports.machine.boot_id,
            schema_version=SCHEMA_VERSION,
            pool=offer.pool,
            node_type=offer.node_type,
            gpus=offer.gpus,
            gpu_memory_mib=self._ports.machine.devices.memory_mib,
            cpu_milli=offer.cpu_milli,
            memory_mib=offer.memory_mib,
            labels=dict(settings.labels),
            address=settings.address,
            port_first=settings.port_first,
            port_last=settings.port_last,
            running=tuple(
                ReplicaRef(task_id=key.task_id, attempt=key.attempt, replica=key.replica)
                for key in running
            ),
            executors=found.kinds,
            isolation=found.isolation,
            fraction_limits=self._ports.limiter.limits,
            mounts=grants_of(settings.mounts),
        )
        self._joining = event
        self._send_join(context)

    async def _capabilities(self) -> Capabilities:
        """Return what the executor can now; log why it runs no containers, if that has changed."""
        found = await self._ports.executor.capabilities()
        self._metrics.runs_containers.set(ExecutorKind.CONTAINER in found.kinds)
        if found.no_containers is not None and not self._no_containers:
            self._ports.telemetry.info("no_containers", found=found.no_containers)
        self._no_containers = found.no_containers is not None
        return found

    async def _follow_capabilities(self, context: AgentContext) -> NoReturn:
        """Repeat the join with the present executors when they have changed."""
        while True:
            await self._ports.clock.sleep(self._settings.engine_check_s)
            found = await self._capabilities()
            assert self._joining is not None, "the node joins before this is called"
            if found.kinds != self._joining.executors:
                self._joining = replace(self._joining, executors=found.kinds)
                self._send_join(context)

    def _send_join(self, context: AgentContext) -> None:
        event = self._joining
        assert event is not None, "the join is made before it is sent"
        fact = Fact(events=(event,), subject=event.node, cause=None, on_logged=self._has_joined)
        context.reporter.report("joined", event.node, fact)

    def _has_joined(self) -> None:
        if not self._join_refused:
            self._ports.health.report("node")

    async def _act_on_refusals(self, context: AgentContext) -> None:
        """Act on refusals, and repeat the join while the node has no assignment or is refused.

        A refused join is logged as an error and makes the agent not ready. It is repeated, because
        the node may be enrolled at any time, and a node that another agent has taken becomes free
        when that agent's incarnation is lost. A join is also repeated after another report was
        refused because of its number: it changes nothing for a node that has joined, and its
        verdict shows whether the cell refuses all further reports.

        Raises:
            NodeTaken: the cell refuses this agent, and another agent of the node sends heartbeats.
            IncarnationOver: the cell refuses all reports of this incarnation. The next incarnation
                writes as another source.
        """
        writer = context.writer
        refusals = Refusals(
            context.ports.log, writer.source, self.head.epoch, written_once=writer.written_once
        )
        clock, settings, state = self._ports.clock, self._settings, self._state
        rival = RivalWatch(self._ports.log, self.head, settings.partition)
        sent_s, last, joined = clock.monotonic_s(), None, False
        while True:
            freed = await happens_within(clock, min(POLL_S, settings.ask_again_s), self._rival_lost)
            self._rival_lost.clear()
            code = await refusals.poll()
            self._kill_not_here(refusals.take_not_here())
            for key, uri in refusals.take_not_allowed().items():
                if (supervision := self._supervisions.get(key)) is not None:
                    supervision.say_not_allowed(uri)
            if refusals.overtaken:
                raise IncarnationOver(
                    "the log has records of this source with higher numbers, or refuses its epoch"
                )
            if refusals.take_doubt():
                self._send_join(context)
                sent_s, last, joined = clock.monotonic_s(), None, False
            if joined:
                continue
            if code is not None:
                last, self._join_refused = code, True
                self._say_refused(code)
            if last is RefusalCode.NODE_TAKEN and await rival.beats():
                raise NodeTaken(node=self.head.node)
            if freed and last is RefusalCode.NODE_TAKEN:
                last, self._join_refused = None, False  # the reason of the refusal is gone
            elif clock.monotonic_s() - sent_s < settings.ask_again_s:
                continue
            if last is None:
                if self._join_refused:
                    self._join_refused = False
                    self._ports.health.report("node")
                if state.replicas or state.forgotten_through >= 0:
                    joined = True
                    continue
            self._send_join(context)
            sent_s, last = clock.monotonic_s(), None

    def _kill_not_here(self, keys: list[ReplicaKey]) -> None:
        """Kill replicas whose start the cell refused: the log does not place them here."""
        for key in keys:
            supervision = self._supervisions.get(key)
            if supervision is None:
                continue
            self._ports.telemetry.error("placed_elsewhere", replica=str(key))
            self._metrics.placed_elsewhere.inc()
            supervision.stop(
                StopOrder(
                    code="placed_elsewhere", deadline_ms=0, cause=None, kill_at_ms=0, revoked=True
                )
            )

    def _say_refused(self, code: RefusalCode) -> None:
        hint = HINTS.get(code, "the topic quarantine has the record").replace(
            "NODE", self.head.node
        )
        self._metrics.joins_refused.labels(code.value).inc()
        self._ports.health.report("node", f"the cell refuses the node's join: {code.value}; {hint}")
        self._ports.telemetry.error(
            "join_refused", node=self.head.node, code=code.value, hint=hint, epoch=self.head.epoch
        )

    async def _use_log(self, context: AgentContext, follower: AssignmentFollower) -> None:
        """Check the log, then read and write it."""
        await self._check_log()
        await together(
            context.reporter.run(),
            self._follow(follower),
            self._beat(context),
            self._tidy(context),
            self._follow_capabilities(context),
            self._act_on_refusals(context),
        )

    async def _check_log(self) -> None:
        """Compare the log with what the ledger says was read; wait while it is unavailable.

        Raises:
            LogTruncated: the log lost the record that says where an operator cut it.
            IncarnationOver: an operator shortened the log, or the node's assignments lost records;
                the log may place on other nodes the tasks that run here.
        """
        number, state = self._settings.partition, self._state
        cut = await last_cut(self._log, number)
        if check_generation(self.head.generation, 0 if cut is None else cut.generation):
            raise IncarnationOver("an operator shortened the log")
        if state.reached_digest is None:
            return
        partition = Partition(assignments(self.head.node).name, number)
        mark = Mark(state.reached - 1, state.reached_digest)
        with suppress(OffsetGone, UnknownTopic), ends_incarnation(partition):
            # The follower handles OffsetGone and UnknownTopic.
            await check_marks(self._log, {partition: mark}, kept_in="the agent's ledger")

    async def _follow(self, follower: AssignmentFollower) -> None:
        """Consume the assignments, as soon as the log is available and has their topic."""
        await find_topic(self._ports, self._settings, self._log)
        await follower.run()

    # --- replicas ------------------------------------------------------------------------------

    async def _look_after(
        self, adopted: list[Adopted], work: list[Coroutine[Any, Any, object]]
    ) -> None:
        """Run the supervisions of all replicas, and `work`, in one task group."""
        async with asyncio.TaskGroup() as group:
            self._replicas = group
            for supervision, found in adopted:
                self._supervise(supervision, supervision.resume(found))
            await together(*work)

    def _supervise_new(self, supervision: Supervision) -> None:
        self._supervise(supervision, supervision.start())

    def _supervise(self, supervision: Supervision, life: Coroutine[Any, Any, None]) -> None:
        assert self._replicas is not None, "the task group exists before replicas are assigned"
        key = supervision.replica.key
        self._supervisions[key] = supervision
        self._by_token[supervision.replica.token] = supervision
        self._metrics.replicas.set(len(self._supervisions))
        self._replicas.create_task(self._to_its_end(supervision, life), name=str(key))

    async def _to_its_end(self, supervision: Supervision, life: Coroutine[Any, Any, None]) -> None:
        try:
            await life
        except* IncarnationOver:
            self._ports.telemetry.warn("fenced", replica=str(supervision.replica.key))
            self._found_over.set()
        self._supervisions.pop(supervision.replica.key, None)
        self._by_token.pop(supervision.replica.token, None)
        self._metrics.replicas.set(len(self._supervisions))
        await supervision.keep_artifacts()

    # --- periodic work --------------------------------------------------------------------------

    async def _beat(self, context: AgentContext) -> None:
        """Send heartbeats; an unavailable log costs one heartbeat and does not delay the next."""
        while True:
            held = [replica for replica in self._state.replicas.values() if replica.held]
            event = NodeHeartbeatV1(
                node=self.head.node,
                incarnation=self.head.incarnation,
                sent_at_ms=self._ports.clock.now_ms(),
                running=sum(replica.alive for replica in held),
                gpu_milli_used=sum(len(r.assignment.slots) * r.assignment.gpu_milli for r in held),
            )
            record = context.writer.record(event, subject=self.head.node, key=self.head.node)
            try:
                sent_s = await context.writer.append(HEARTBEATS.name, [record], retry=False)
            except (LogUnavailable, AppendOutcomeUnknown) as error:
                self._metrics.heartbeats_missed.inc()
                self._ports.health.report("heartbeat", str(error))
            else:
                self._ports.health.report("heartbeat")
                self._renew(sent_s)
            await self._ports.clock.sleep(self._settings.heartbeat_s)

    def _renew(self, sent_s: float) -> None:
        try:
            self._lease.acknowledged(sent_s)
        except NotRenewed as error:
            self._metrics.renewals_failed.inc()
            self._ports.telemetry.error(error.code, found=str(error))

    async def _until_over(self) -> NoReturn:
        """Wait until a supervision finds that the incarnation is over, and raise FenceExpired."""
        await self._found_over.wait()
        raise FenceExpired("a runner killed its replica, whose fence had expired")

    async def _tidy(self, context: AgentContext) -> NoReturn:
        """Remove what is left of old replicas, as often as a heartbeat is sent.

        No heartbeat waits for this: an executor may wait for its engine.
        """
        while True:
            await self._remove_old(context)
            await self._ports.clock.sleep(self._settings.heartbeat_s)

    async def _remove_old(self, context: AgentContext) -> None:
        """Remove directories and ledger entries of replicas that ended long ago.

        `Settings` limits both by number and age. An entry is kept for as long as the relay may
        repeat the replica's assignment.
        """
        settings, now_ms = self._settings, self._ports.clock.now_ms()
        ended = [replica for replica in self._state.replicas.values() if not replica.unfinished]
        ended.sort(key=lambda replica: replica.ended_ms, reverse=True)
        directories = [replica for replica in ended if not replica.directory_removed]
        old_ms = now_ms - int(settings.kept_s * 1000)
        for count, replica in enumerate(directories):
            if count >= settings.kept_directories or replica.ended_ms < old_ms:
                await self._remove_files(context, replica)
        forget_ms = now_ms - int(settings.remembered_s * 1000)
        for count, replica in enumerate(ended):
            if count >= settings.remembered or replica.ended_ms < forget_ms:
                await self._forget(context, replica)

    async def _remove_files(self, context: AgentContext, replica: Replica) -> bool:
        """Remove what is left of an ended replica; then another one may have its user.

        Return False if something cannot be removed now.
        """
        of_executor = await self._ports.executor.forget(replica.key)
        if not self._ports.code.forget(replica.key) or not of_executor:
            return False
        if not context.users.ended(replica.user):
            return False
        replica.directory_removed = True
        context.save(replica, durable=False)
        context.users.release(replica.user)
        return True

    async def _forget(self, context: AgentContext, replica: Replica) -> None:
        """Remove an ended replica from the ledger and the state, and delete its directory.

        If something of it cannot be deleted, it stays in the ledger until that is possible.
        """
        if not replica.directory_removed and not await self._remove_files(context, replica):
            return
        entry = Forgotten(key=replica.key, through=replica.assignment.decision)
        context.save(entry)
        self._state.apply(entry)
