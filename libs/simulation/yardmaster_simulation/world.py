"""A simulated cluster: users, agents and nodes that fail, with the real state machines.

Time advances from event to event. Before each decision the machines consume the reports of all
events so far, written as gateway and agents write them. The agents then act on the decisions at
once. Decisions are made every `cadence_ms`, or after every event.

A run is a function of workload, pools and seed: it reads no clock, draws only from the seed, and
depends neither on the order of a set nor on the destination of the log.

This is one file because users, agents and nodes share one timeline and one state of each task and
node: classes for each of them would exchange that state at every step.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from itertools import repeat
from typing import Any, Final

from yardmaster_core.admission.machine import QuotaMachine
from yardmaster_core.machine import Decision
from yardmaster_core.scheduling.machine import SchedulerMachine
from yardmaster_core.scheduling.policies import check
from yardmaster_eventlog.codec import encode
from yardmaster_eventlog.port import Partition
from yardmaster_eventlog.reader import details_digest
from yardmaster_schemas.envelope import Actor, ActorKind, Envelope, Event
from yardmaster_schemas.events import node_events as nev
from yardmaster_schemas.events.admissions import RequestRefusedV1, TaskRejectedV1
from yardmaster_schemas.events.decisions import (
    NodeLostV1,
    NodeSilenceObservedV1,
    Placement,
    PreemptionRequestedV1,
    SlotsAllocatedV1,
    StopRequestedV1,
    TaskEndedV1,
)
from yardmaster_schemas.events.details import JobDetailedV1, Run
from yardmaster_schemas.events.requests import (
    CancelRequestedV1,
    DepartmentChangeRequestedV1,
    DepartmentConfig,
    DetailsRef,
    LogCreatedV1,
    LogMode,
    PoolChangeRequestedV1,
    PoolConfig,
    ProjectChangeRequestedV1,
    ProjectConfig,
    TaskSubmittedV1,
)
from yardmaster_schemas.log_format import LOG_FORMAT
from yardmaster_schemas.sources import agent_source, next_incarnation
from yardmaster_schemas.topics import DETAILS, NODE_EVENTS, REQUESTS
from yardmaster_simulation.distributions import Chance
from yardmaster_simulation.driver import (
    CELL,
    MAX_INPUTS,
    Driver,
    InputBatch,
    InputQueue,
    LogSink,
)
from yardmaster_simulation.errors import BadOrganization, Endless, Unending
from yardmaster_simulation.workload import (
    DEFAULT,
    Amounts,
    Arrivals,
    SimJob,
    SimNode,
    Workload,
    plus,
    times,
)

#: The start time of every simulated cluster: 2026-01-01T00:00Z.
START_MS: Final = 1_767_225_600_000
#: The most cycles at one moment. If there are more, decisions undo each other without end.
MAX_CYCLES: Final = 10_000
DAY_MS: Final = 86_400_000
#: If nodes fail, they are rarely all up at the same time. A run ends if nodes fail and no task has
#: run for this time: the pending tasks then count as tasks that never start.
IDLE_MS: Final = 30 * DAY_MS
#: The longest time of a run after the last submission, if nodes fail.
LONGEST_MS: Final = 5 * 365 * DAY_MS
GATEWAY: Final = "gateway/simulation"
USER: Final = Actor(kind=ActorKind.SERVICE, id="simulation")
NOTHING: Final = Run(command=("true",))
SIGTERM: Final = 15
BOOT: Final = "0" * 8
NO_DIGEST: Final = "0" * 64
_DETAILS: Final = Partition(DETAILS.name)
#: The requests by which a run configures its cell.
_CONFIGURING: Final = frozenset(
    request.TYPE
    for request in (
        PoolChangeRequestedV1,
        DepartmentChangeRequestedV1,
        ProjectChangeRequestedV1,
    )
)

#: Receives each input and decision of the scheduler: cycle's time (ms), event, event's time (ms).
Watch = Callable[[int, Event, int], None]


def ignore_event(_: int, __: Event, ___: int) -> None:
    """Watch nothing."""


@dataclass(slots=True)
class _Task:
    """The true state of a task; the scheduler may have an older state."""

    id: str
    job: SimJob
    runs_ms: int | None
    #: The saved work; the next attempt continues from it.
    saved_ms: int = 0
    #: Number of the running attempt; 0: none.
    attempt: int = 0
    #: Attempts so far.
    attempts: int = 0
    began_ms: int = 0
    placements: tuple[Placement, ...] = ()
    #: Time of the stop request; 0: none.
    stop_ms: int = 0
    #: Whether a node of the running attempt has failed.
    broken: bool = False

    @property
    def again(self) -> bool:
        """Whether the attempt is not the task's first."""
        return self.attempts > 1


@dataclass(slots=True)
class _Node:
    node: SimNode
    actor: Actor
    incarnation: str = ""
    #: The source of the reports of this incarnation.
    source: str = ""
    seq: int = 0
    lives: int = 0
    up: bool = False
    #: Tasks with a replica on this node, in the order of their starts.
    tasks: dict[str, None] = field(default_factory=dict)


class World:
    """One run of a workload under one configuration of its pools."""

    def __init__(
        self,
        workload: Workload,
        pools: Mapping[str, PoolConfig],
        sink: LogSink | None,
        arrivals: Arrivals,
        *,
        seed: int = 0,
        watch: Watch = ignore_event,
    ) -> None:
        self.workload = workload
        self.now_ms = START_MS
        #: All submitted jobs.
        self.submitted: list[SimJob] = []
        #: The number of tasks so far, the number of open tasks, and the sum of the open tasks'
        #: resources.
        self.tasks = 0
        self.open = 0
        self.outstanding: Amounts = (0, 0, 0)
        self._arrivals = arrivals
        self._pools = pools
        self._chance = Chance(seed)
        self._sink = sink
        self._watch = watch
        self._requests = InputQueue(REQUESTS, sink)
        self._reports = InputQueue(NODE_EVENTS, sink)
        self._states: dict[str, _Task] = {}
        self._running = 0
        #: The last time at which a task ran or a user submitted a job.
        self._idle_since_ms = START_MS
        #: Whether a due submission is delayed until fewer tasks are open.
        self._arrivals_blocked = False
        self._nodes = {
            node.name: _Node(node, Actor(kind=ActorKind.NODE, id=node.name))
            for node in workload.nodes
        }
        self._faultless = workload.faults is None
        self._silent: list[Decision] = []
        self._events = self._seq = 0
        #: The time of the event that is being applied; at most `now_ms`.
        self._moment_ms = START_MS
        #: Timeline: time (ms), sequence number, action.
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._quota = Driver(QuotaMachine(check), sink, START_MS)
        self._scheduler = Driver(SchedulerMachine(), sink, START_MS)
        #: The time at which the scheduler needs a cycle without any input.
        self._due_ms: int | None = None

    @property
    def cycles(self) -> int:
        """Cycles of the scheduler so far."""
        return self._scheduler.cycles

    @property
    def part_done(self) -> float:
        """The share of all tasks that have ended, from 0 to 1."""
        known = self.tasks + self._arrivals.left
        return (self.tasks - self.open) / known if known else 1.0

    def work_ms(self, task_id: str) -> int:
        """How long a task runs if nothing stops it; 0 if it does not end by itself."""
        job_id, _, index = task_id.partition(".")
        return self.submitted[int(job_id)].runs_ms[int(index)] or 0

    def run(self, progress: Callable[[], None] = lambda: None) -> None:
        """Run until nothing more can happen; tasks that never fit stay pending.

        Raises:
            BadOrganization: quota refuses a configuration of the workload.
            Unending: the machines make decisions without end.
            Endless: nodes fail too often for the running tasks to end.
        """
        self._set_up()
        for name in self._nodes:
            self._join(name)
        self._decide()
        cadence_ms = self.workload.cadence_ms
        while (then_ms := self._next_ms()) is not None:
            if cadence_ms:
                then_ms = START_MS - (START_MS - then_ms) // cadence_ms * cadence_ms
            self.now_ms = max(self.now_ms, then_ms)
            self._apply_due()
            self._decide()
            progress()

    # Time

    def _at(self, when_ms: int, what: Callable[[], None]) -> None:
        self._events += 1
        heappush(self._heap, (when_ms, self._events, what))

    def _next_ms(self) -> int | None:
        arrival_ms = self._arrivals.next_ms
        over = arrival_ms is None and not self.open
        if over or ((arrival_ms is None or self._arrivals_blocked) and self._stuck()):
            return None
        moments = [self._heap[0][0]] if self._heap else []
        if arrival_ms is not None:
            moments.append(START_MS + arrival_ms)
        if self._due_ms is not None and self._due_ms > self.now_ms:
            moments.append(self._due_ms)
        then_ms = min(moments, default=None)
        if then_ms is not None and not self._faultless and self.submitted:
            longest_ms = START_MS + self.submitted[-1].submit_ms + LONGEST_MS
            if arrival_ms is None and then_ms > longest_ms:
                raise Endless(open=self.open, days=LONGEST_MS // DAY_MS)
        return then_ms

    def _stuck(self) -> bool:
        """Whether no pending task will ever start.

        True if no task runs although all nodes are up, or although IDLE_MS have passed.
        """
        if self._running or self._requests or self._reports:
            return False
        if self._faultless or self.now_ms - self._idle_since_ms > IDLE_MS:
            return True
        return all(node.up for node in self._nodes.values())

    def _apply_due(self) -> None:
        """Apply all actions on the timeline up to now, then submit the due jobs."""
        heap, now_ms = self._heap, self.now_ms
        while heap and heap[0][0] <= now_ms:
            self._moment_ms, _, what = heappop(heap)
            what()
        arrival_ms = self._arrivals.next_ms
        due = self._arrivals.due(now_ms - START_MS, self.outstanding)
        self._arrivals_blocked = (
            arrival_ms is not None and START_MS + arrival_ms <= now_ms and not due
        )
        for job in due:
            self._submit(job)

    def _decide(self) -> None:
        """Run cycles at this moment until the machines have no more decisions."""
        now_ms, scheduler = self.now_ms, self._scheduler
        self._moment_ms = now_ms
        for _ in range(MAX_CYCLES):
            while self._requests or scheduler.waiting >= MAX_INPUTS:
                ends = [scheduler.take_output()] if scheduler.waiting else []
                asked = [self._requests.take()] if self._requests else []
                self._quota.cycle(now_ms, [*asked, *ends])
            observed, self._silent = self._silent, []
            inputs: list[InputBatch] = []
            if scheduler.complete:
                batches = (self._quota.take_output(), self._reports.take())
                inputs = [one for one in batches if one.digests]
                if not (inputs or observed or self._is_due()):
                    return
            more = bool(self._reports)
            for one in inputs:
                times_ms = one.events_ms or repeat(now_ms, len(one.events))
                for (event, *_), event_ms in zip(one.events, times_ms, strict=True):
                    self._watch(now_ms, event, event_ms)
                    if isinstance(event, TaskRejectedV1):
                        self._refused(event.job_id)
                    elif isinstance(event, RequestRefusedV1) and event.request_type in _CONFIGURING:
                        raise BadOrganization(
                            request=event.request_type, code=event.code, about=event.about or ""
                        )
            decided = scheduler.cycle(now_ms, inputs, observed)
            for event in decided:
                self._watch(now_ms, event, now_ms)
                self._act(event)
            self._due_ms = scheduler.machine.due_ms(scheduler.state)
            called = self._is_due() and (inputs or decided)
            if scheduler.complete and not (called or more or self._requests):
                return
        raise Unending(now_ms=now_ms, cycles=MAX_CYCLES)

    def _is_due(self) -> bool:
        return self._due_ms is not None and self._due_ms <= self.now_ms

    # Users

    def _set_up(self) -> None:
        created = LogCreatedV1(
            log_id=self._chance.hex(32, "log"),
            mode=LogMode.SIMULATED,
            cell=CELL,
            format=LOG_FORMAT,
        )
        self._requests.put(created, "setup/simulation", 1, 0, USER, CELL, self.now_ms)
        workload = self.workload
        for name, config in sorted(self._pools.items()):
            self._ask(PoolChangeRequestedV1(pool=name, config=config, if_revision=0), name)
        departments = {DEFAULT: DepartmentConfig()} | dict(workload.departments)
        for name, department in _parents_first(departments):
            change = DepartmentChangeRequestedV1(department=name, config=department, if_revision=0)
            self._ask(change, name)
        projects = {DEFAULT: ProjectConfig(department=DEFAULT)} | dict(workload.projects)
        for name, project in sorted(projects.items()):
            self._ask(ProjectChangeRequestedV1(project=name, config=project, if_revision=0), name)

    def _ask(self, event: Event, subject: str, user: str | None = None) -> None:
        self._seq += 1
        actor = USER if user in (None, USER.id) else Actor(kind=ActorKind.USER, id=user)
        self._requests.put(event, GATEWAY, 1, self._seq, actor, subject, self._moment_ms)

    def _submit(self, job: SimJob) -> None:
        number = len(self.submitted)
        job_id = f"{number:012d}"
        at_ms = self._moment_ms = START_MS + job.submit_ms
        self.submitted.append(job)
        offset, digest = self._detail(job_id)
        self._ask(
            TaskSubmittedV1(
                job_id=job_id,
                project=job.project,
                spec=job.spec,
                body_digest=digest,
                details=DetailsRef(offset=offset, digest=digest),
            ),
            job_id,
            job.user,
        )
        for index, runs_ms in enumerate(job.runs_ms):
            task_id = f"{job_id}.{index}"
            self._states[task_id] = _Task(task_id, job, runs_ms)
        self.tasks += len(job.runs_ms)
        self.open += len(job.runs_ms)
        self.outstanding = plus(self.outstanding, job.amounts)
        self._idle_since_ms = max(self._idle_since_ms, at_ms)
        patience_ms = self.workload.behavior.patience_ms
        if patience_ms is not None:
            self._at(at_ms + patience_ms, partial(self._give_up, job_id, len(job.runs_ms)))

    def _detail(self, job_id: str) -> tuple[int, str]:
        """Append the job's details to the log; return their offset and digest.

        Without a log, return placeholders.
        """
        number, sink = int(job_id), self._sink
        if sink is None:
            return number, NO_DIGEST
        at_ms = self._moment_ms
        detailed = encode(
            Envelope(
                type=JobDetailedV1.TYPE,
                version=JobDetailedV1.VERSION,
                source=GATEWAY,
                epoch=1,
                seq=self._seq,
                subject=job_id,
                time_ms=at_ms,
                actor=USER,
                data=JobDetailedV1(
                    job_id=job_id,
                    salt=f"{number:032x}",
                    name=f"job-{number}",
                    user="simulation",
                    run=NOTHING,
                ),
            ),
            job_id,
        )
        offset = sink.append(_DETAILS, [detailed], at_ms)
        return offset, details_digest(detailed.value)

    def _refused(self, job_id: str) -> None:
        """Remove the tasks of a job that quota rejected from the open tasks."""
        job = self.submitted[int(job_id)]
        for index in range(len(job.runs_ms)):
            del self._states[f"{job_id}.{index}"]
        self.open -= len(job.runs_ms)
        self.outstanding = plus(self.outstanding, times(job.amounts, -1))

    def _give_up(self, job_id: str, tasks: int) -> None:
        """Cancel a job as its impatient user, if all its tasks are open and none ever started."""
        waiting = [self._states.get(f"{job_id}.{index}") for index in range(tasks)]
        if all(task is not None and not task.attempts for task in waiting):
            self._ask(CancelRequestedV1(job_id=job_id), job_id)

    # Agents

    def _report(self, node: _Node, event: Event, subject: str) -> None:
        node.seq += 1
        self._reports.put(
            event, node.source, node.lives, node.seq, node.actor, subject, self._moment_ms
        )

    def _live_replicas(self, task: _Task) -> Iterator[tuple[_Node, Any]]:
        """The nodes that still run a replica of a task, with the common fields of their reports."""
        for placement in task.placements:
            node = self._nodes[placement.node]
            if node.up and node.incarnation == placement.incarnation:
                yield (
                    node,
                    {
                        "task_id": task.id,
                        "attempt": task.attempt,
                        "replica": placement.replica,
                        "node": placement.node,
                        "incarnation": placement.incarnation,
                    },
                )

    def _act(self, event: Event) -> None:
        """Act on a decision of the scheduler at once, as the agents do."""
        if isinstance(event, SlotsAllocatedV1):
            self._start(event)
        elif isinstance(event, PreemptionRequestedV1 | StopRequestedV1):
            task = self._states[event.task_id]
            if task.attempt == event.attempt and not task.stop_ms:
                task.stop_ms = self.now_ms
                self._plan(task, event.grace_s * 1000, self._stopped)
        elif isinstance(event, TaskEndedV1):
            task = self._states.pop(event.task_id)
            self.open -= 1
            self.outstanding = plus(self.outstanding, times(task.job.task_amounts, -1))
        elif isinstance(event, NodeLostV1):
            for closed in event.closed:
                task = self._states[closed.task_id]
                if task.attempt == closed.attempt and not any(
                    True for _ in self._live_replicas(task)
                ):
                    self._end_attempt(task)

    def _start(self, event: SlotsAllocatedV1) -> None:
        task = self._states[event.task_id]
        task.attempt = event.attempt
        task.attempts += 1
        task.began_ms = self._moment_ms
        task.placements = event.placements
        task.stop_ms = 0
        task.broken = False
        self._running += 1
        for node, about in self._live_replicas(task):
            node.tasks[task.id] = None
            run = nev.RunIdentity.of_process(task.attempts, self._moment_ms, BOOT)
            started = nev.TaskStartedV1(**about, run=run)
            self._report(node, started, task.id)
        behavior = self.workload.behavior
        if task.runs_ms is not None:
            left_ms = task.runs_ms - task.saved_ms
            self._plan(task, behavior.takes_ms(left_ms, again=task.again), self._finished)
        every_ms = behavior.checkpoint_every_ms
        if every_ms is not None and not self._faultless:
            first_ms = behavior.takes_ms(every_ms, again=task.again)
            self._plan(task, first_ms + behavior.checkpoint_cost_ms, self._saved)

    def _plan(self, task: _Task, after_ms: int, what: Callable[[_Task], None]) -> None:
        """Plan to call `what` after `after_ms`, unless the current attempt has ended by then."""
        attempt = task.attempt

        def call() -> None:
            if task.attempt == attempt:
                what(task)

        self._at(self._moment_ms + after_ms, call)

    def _finished(self, task: _Task) -> None:
        in_vain = task.stop_ms and not self.workload.behavior.works_in_grace
        if not (task.broken or in_vain):
            self._exit(task, exit_code=0, done=True)

    def _saved(self, task: _Task) -> None:
        """Save the state of a running attempt."""
        if task.broken or task.stop_ms:
            return
        behavior = self.workload.behavior
        kept_ms = behavior.saved_ms(self._moment_ms - task.began_ms, again=task.again)
        self._checkpoint(task, task.saved_ms + kept_ms)
        assert behavior.checkpoint_every_ms is not None
        next_ms = behavior.checkpoint_every_ms + behavior.checkpoint_cost_ms
        self._plan(task, next_ms, self._saved)

    def _stopped(self, task: _Task) -> None:
        """End an attempt at the end of its grace period."""
        if task.broken:
            # A gang that has lost a replica cannot save its state.
            self._exit(task, signal=SIGTERM)
            return
        behavior = self.workload.behavior
        until_ms = self._moment_ms if behavior.works_in_grace else task.stop_ms
        task.saved_ms += behavior.worked_ms(until_ms - task.began_ms, again=task.again)
        self._checkpoint(task, task.saved_ms)
        self._exit(task, exit_code=0)

    def _checkpoint(self, task: _Task, saved_ms: int) -> None:
        for node, about in self._live_replicas(task):
            uri = f"file:///simulated/{task.id}"
            done = nev.CheckpointDoneV1(**about, uri=uri, step=saved_ms // 1000)
            self._report(node, done, task.id)
            return

    def _exit(self, task: _Task, **how: Any) -> None:
        """Exit all remaining replicas of an attempt and release their slots."""
        for node, about in self._live_replicas(task):
            self._report(node, nev.TaskExitedV1(**about, **how), task.id)
            self._report(node, nev.SlotsReleasedV1(**about), task.id)
        self._end_attempt(task)

    def _end_attempt(self, task: _Task) -> None:
        for placement in task.placements:
            self._nodes[placement.node].tasks.pop(task.id, None)
        task.attempt = 0
        self._running -= 1
        self._idle_since_ms = self._moment_ms

    # Nodes

    def _join(self, name: str) -> None:
        """Join a node without tasks, and plan its next failure."""
        node = self._nodes[name]
        node.up = True
        node.lives += 1
        # A node keeps its ledger when it fails.
        node.incarnation = next_incarnation(node.incarnation) if node.incarnation else f"{1:012x}"
        node.source = agent_source(name, node.incarnation)
        of = node.node
        joined = nev.NodeJoinedV1(
            node=name,
            incarnation=node.incarnation,
            boot_id=BOOT,
            schema_version=1,
            pool=of.pool,
            node_type=of.node_type,
            gpus=of.gpus,
            cpu_milli=of.cpu_milli,
            memory_mib=of.memory_mib,
            # A node's name may contain characters that an address may not.
            address=name.replace("_", "-"),
            port_first=20_000,
            port_last=20_999,
        )
        self._report(node, joined, name)
        faults = self.workload.faults
        if faults is not None:
            up_ms = self._chance.exponential(faults.mean_up_ms, "up", name, node.lives)
            self._at(self._moment_ms + up_ms, partial(self._fail, name))

    def _fail(self, name: str) -> None:
        """Fail a node with its tasks, and plan its next join."""
        node, faults = self._nodes[name], self.workload.faults
        assert faults is not None
        node.up = False
        behavior = self.workload.behavior
        for task_id in list(node.tasks):
            task = self._states[task_id]
            if task.broken:
                continue
            task.broken = True
            task.saved_ms += behavior.saved_ms(self._moment_ms - task.began_ms, again=task.again)
        timeout_ms = self._pools[node.node.pool].node_timeout_s * 1000
        self._at(self._moment_ms + timeout_ms, partial(self._report_silence, name, node.lives))
        down_ms = self._chance.exponential(faults.mean_down_ms, "down", name, node.lives)
        self._at(self._moment_ms + down_ms, partial(self._join, name))

    def _report_silence(self, name: str, lives: int) -> None:
        """Report that a node is silent, unless it has rejoined."""
        node = self._nodes[name]
        if node.up or node.lives != lives:
            return
        timeout_ms = self._pools[node.node.pool].node_timeout_s * 1000
        silence = NodeSilenceObservedV1(
            node=name,
            incarnation=node.incarnation,
            last_heard_at_ms=self._moment_ms - timeout_ms,
        )
        self._silent.append(Decision(silence, name))


def _parents_first(
    departments: Mapping[str, DepartmentConfig],
) -> Iterator[tuple[str, DepartmentConfig]]:
    """Yield the departments by name, each after its parent."""
    left = dict(sorted(departments.items()))
    while left:
        ready = [name for name, config in left.items() if config.parent not in left]
        # If no department is ready, the remaining ones are their own ancestors; quota refuses them.
        for name in ready or list(left):
            yield name, left.pop(name)
