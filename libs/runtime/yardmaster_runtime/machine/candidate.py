"""A candidate: restores a machine, stands by, leads, and starts over when its term ends.

After an append of unknown outcome, a batch that was too large, or an outage of the log, the
candidate discards the leader with its state and its term, and restores. A machine that meets a
contradiction in the log stops and reports it; it is not restarted, because it would meet the same
contradiction again.
"""

from collections.abc import Callable, Sequence
from typing import Final, Generic, NoReturn, TypeVar

from yardmaster_core.machine import Decision, Machine
from yardmaster_eventlog.errors import AppendOutcomeUnknown, LogTruncated, LogUnavailable
from yardmaster_eventlog.port import EventLog, Partition
from yardmaster_eventlog.snapshots import SnapshotStore
from yardmaster_runtime.chance import Chance
from yardmaster_runtime.clock import Clock
from yardmaster_runtime.errors import CycleTooLarge, DecisionRefused, Fenced
from yardmaster_runtime.fence import Fence, Marks
from yardmaster_runtime.machine.election import Election
from yardmaster_runtime.machine.fold import Fold
from yardmaster_runtime.machine.leader import Leader
from yardmaster_runtime.machine.observations import Observations
from yardmaster_runtime.machine.restore import restore
from yardmaster_runtime.machine.snapshotting import Snapshotter
from yardmaster_runtime.machine.standby import stand_by
from yardmaster_runtime.retrying import RetryingLog
from yardmaster_runtime.settings import CycleLimits, RuntimeSettings
from yardmaster_runtime.telemetry.machine_metrics import RuntimeMetrics
from yardmaster_runtime.waiting import Work, first_of
from yardmaster_schemas.errors import YardmasterError

S = TypeVar("S")
#: Makes the tasks that run while a leader leads; each runs until it is cancelled or fails.
LeaderTasks = Callable[[Leader[S]], Sequence[Work]]
#: Errors after which a candidate starts over.
RECOVERABLE: Final = (Fenced, AppendOutcomeUnknown, CycleTooLarge, DecisionRefused, LogUnavailable)


class Candidate(Generic[S]):
    """Runs one machine of one cell in this process."""

    def __init__(
        self,
        machine: Machine[S],
        settings: RuntimeSettings,
        *,
        log: EventLog,
        clock: Clock,
        chance: Chance,
        metrics: RuntimeMetrics,
        election: Election,
        snapshots: SnapshotStore | None = None,
        on_restored: Callable[[], object] = lambda: None,
        on_status: Callable[[str | None], object] = lambda reason: None,
    ) -> None:
        """`on_status` gets the reason why the candidate is not ready, and None once it is ready."""
        self.machine = machine
        self.observations = Observations(settings.cycle.max_observations, metrics)
        #: The machine's state and position; None during a restore.
        self.fold: Fold[S] | None = None
        #: The leader during a term.
        self.leader: Leader[S] | None = None
        self.log = RetryingLog(log, clock, settings.retry, metrics.retries)
        self._settings = settings
        self._clock = clock
        self._chance = chance
        self._metrics = metrics
        self._election = election
        self._snapshots = snapshots
        self._on_restored = on_restored
        self._on_status = on_status
        self._limits = settings.cycle
        self._backoff = settings.retry.backoff()
        #: The observation that a decision could not be written, for the next term to record.
        self._unwritable: Decision | None = None
        #: The last records that were folded since the last restore.
        self._marks: Marks = {}
        self._fence: Fence | None = None
        if snapshots is not None:
            self._fence = Fence(
                *(snapshots, machine.name, settings.cell),
                Partition(machine.output.name, settings.partition),
                *(clock, metrics.telemetry),
            )

    async def run(self, leader_tasks: LeaderTasks[S] | None = None) -> NoReturn:
        """Run until cancelled.

        Raises:
            ForeignRecord, ChainBroken, ReplayDiverged, ImpossibleEvent, UnwritableDecision,
            LogTruncated, LogCorrupt, LogClosed, UnknownTopic: the machine has stopped.
        """
        self._on_status("restoring")
        while True:
            try:
                await self._run_once(leader_tasks)
            except RECOVERABLE as error:
                if not self._recovers_from(error):
                    self._report_stopped(error)
                    raise
            except Exception as error:
                self._report_stopped(error)
                if isinstance(error, LogTruncated) and self._fence is not None:
                    await self._fence.write(self._marks)
                raise
            finally:
                self.leader = self.fold = None
                self._metrics.leading.set(0)
            await self._clock.sleep(self._backoff.pause_s)

    async def _run_once(self, leader_tasks: LeaderTasks[S] | None) -> None:
        """Restore the machine, stand by until the election is won, then lead until the term ends.

        Returns when the election is lost. Raises: the errors of each of these steps.
        """
        settings = self._settings
        if self._fence is not None:
            await self._fence.check(self.log)
        fold = await restore(
            self.log,
            self.machine,
            settings.cell,
            snapshots=self._snapshots,
            clock=self._clock,
            metrics=self._metrics,
            partition=settings.partition,
            read_ahead=self._limits.read_ahead,
        )
        self.fold = fold
        self._marks = fold.marks
        self._metrics.rules.set(fold.reader.rules)
        self._metrics.rules_newest.set(self.machine.rules)
        self._on_restored()
        self._on_status(None)
        await stand_by(fold, self._election, self._metrics, idle_wait_s=self._limits.idle_wait_s)
        self.observations.clear()
        if self._unwritable is not None:
            self.observations.put(self._unwritable)
            self._unwritable = None
        await self._lead(fold, leader_tasks)

    async def _lead(self, fold: Fold[S], leader_tasks: LeaderTasks[S] | None) -> None:
        """Take a term and lead, together with snapshots, fence and `leader_tasks`, until one ends.

        Returns when the election is lost. Raises: the error of the first task that fails.
        """
        snapshotter = None
        if self._snapshots is not None:
            snapshotter = Snapshotter(
                fold,
                self._snapshots,
                clock=self._clock,
                limits=self._settings.snapshot,
                metrics=self._metrics,
                observations=self.observations,
            )
        leader = Leader(
            fold,
            clock=self._clock,
            chance=self._chance,
            limits=self._limits,
            metrics=self._metrics,
            observations=self.observations,
            after_cycle=self._after_cycle(snapshotter),
        )
        await leader.take_term()
        self.leader = leader
        self._metrics.leading.set(1)
        work: list[Work] = [leader.run(), self._election.lost()]
        if snapshotter is not None:
            work.append(snapshotter.run())
        if self._fence is not None:
            work.append(self._fence.run())
        if leader_tasks is not None:
            work += leader_tasks(leader)
        await first_of(*work)
        # The election was lost. If the new leader has taken its term already, this call raises
        # Fenced, which names that term.
        await leader.check_fenced()
        self._metrics.telemetry.info("deposed", machine=self.machine.name, term=leader.term)

    def _after_cycle(self, snapshotter: Snapshotter[S] | None) -> Callable[[], None]:
        """Return the function that the leader calls after each committed cycle."""

        def after_cycle() -> None:
            # A committed cycle shows that the log works.
            self._backoff.reset()
            if snapshotter is not None:
                snapshotter.consider()
            if self._fence is not None:
                self._fence.advance(self._marks)

        return after_cycle

    def _report_stopped(self, error: Exception) -> None:
        """Report the error that stops the machine, and withdraw from the election for ever."""
        code = error.code if isinstance(error, YardmasterError) else type(error).__name__
        self._metrics.telemetry.error(
            "machine_stopped", machine=self.machine.name, code=code, found=str(error)
        )
        self._on_status(f"{code}: {error}")
        self._metrics.stopped.set(1)
        self._election.withdraw()

    def _recovers_from(self, error: YardmasterError) -> bool:
        """Prepare to start over after `error`; return False if the same error would recur.

        Counts and reports the error, tells the election, and adapts what the next term does.
        """
        metrics = self._metrics
        if not isinstance(error, Fenced):
            # A standby has the state already; this candidate must restore it first.
            self._election.on_restore()
        self._backoff.next_s()
        match error:
            case Fenced():
                metrics.fenced.inc()
                self._election.on_fenced()
            case AppendOutcomeUnknown():
                metrics.outcomes_unknown.inc()
            case DecisionRefused():
                metrics.decisions_refused.inc()
                observed = error.fields["observed"]
                assert isinstance(observed, Decision), "the leader names the observation"
                self._unwritable = observed
            case CycleTooLarge():
                smaller = _smaller(self._limits)
                if smaller == self._limits:
                    return False
                self._limits = smaller
            case _:
                pass
        self._on_status(f"{error.code}: {error}")
        metrics.telemetry.warn(
            "leading_ended", machine=self.machine.name, code=error.code, found=str(error)
        )
        return True


def _smaller(limits: CycleLimits) -> CycleLimits:
    """Halve the limits of a cycle, down to 1."""
    return limits.model_copy(
        update={
            "max_inputs": max(1, limits.max_inputs // 2),
            "max_decisions": max(1, limits.max_decisions // 2),
            "max_refused": max(1, limits.max_refused // 2),
        }
    )
