"""Faults on the processes of a cluster, and the supervisor that starts again what has ended."""

import dataclasses
import os
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from tests.chaos.plan import OF_MACHINES, WHOLE, Fault, Kind
from tests.chaos.tail_cut import Removed, lose_and_repair, lose_power, lose_soft_topic
from tests.support.cluster import KAFKA, REDIS, Cluster
from tests.support.forks import fork
from yardmaster_eventlog.snapshots import FENCE
from yardmaster_localcluster.errors import ProcessFailed
from yardmaster_localcluster.orphans import end_tasks
from yardmaster_localcluster.ports import free_ports
from yardmaster_localcluster.process import ServiceProcess

#: Faults at the same time, on different processes.
AT_ONCE = 3
#: A second agent and the first one of its name both run for at most this time, in seconds.
TWIN_LIMIT_S = 150.0
LOOK_S = 0.5
#: How often a folder is removed, at pauses of `LOOK_S`, before that counts as failed.
TRIES = 20


class Faults:
    """Executes faults, at most `AT_ONCE` at a time and one per process; `heal` ends them."""

    def __init__(self, cluster: Cluster) -> None:
        self.done: Counter[str] = Counter()
        #: What a supervisor had to start again, and the exit code.
        self.ended: Counter[tuple[str, int | None]] = Counter()
        self.anomalies: list[str] = []
        self.removed = Removed()
        self._cluster = cluster
        self._busy: set[str] = set()
        self._changed = threading.Condition()
        self._over = threading.Event()
        self._keeper = threading.Thread(target=self._keep, daemon=True)
        self._running: list[threading.Thread] = []
        self._execute: dict[Kind, Callable[[Fault], None]] = {
            Kind.KILL: self._kill,
            Kind.STOP: self._stop,
            Kind.CLOCK: self._clock,
            Kind.WIPE: self._wipe,
            Kind.TWIN: self._twin,
            Kind.CUT: self._cut,
            Kind.POWER: lambda fault: lose_power(cluster, fault),
            Kind.BROKER_CLOCK: self._broker_clock,
            Kind.FENCE: self._fence,
            Kind.SOFT: lambda fault: lose_soft_topic(cluster, fault),
            Kind.HANG: self._hang,
        }

    def start(self) -> None:
        """Start the supervisor."""
        self._keeper.start()

    def inflict(self, fault: Fault) -> None:
        """Begin a fault, once its process is free."""
        targets = self._targets(fault)
        most = 0 if fault.kind in WHOLE else AT_ONCE - 1
        with self._changed:
            self._changed.wait_for(
                lambda: self._busy.isdisjoint(targets) and len(self._busy) <= most
            )
            self._busy.update(targets)
        print(f"{time.strftime('%H:%M:%S')} {fault}", flush=True)
        thread = threading.Thread(target=self._run, args=(fault, targets), daemon=True)
        thread.start()
        self._running = [each for each in self._running if each.is_alive()]
        self._running.append(thread)

    def heal(self) -> None:
        """Wait for the end of all faults; then every process is ready."""
        for thread in self._running:
            thread.join()
        for name in self._cluster.names:
            with self._changed:
                self._changed.wait_for(lambda: name not in self._busy)  # noqa: B023 waits here
            try:
                self._until_ready(name)
            except (ProcessFailed, AssertionError) as error:
                self.anomalies.append(f"{name} is not ready after all faults: {error}")
        self._over.set()
        self._keeper.join()

    # --- faults ---------------------------------------------------------------------------------

    def _run(self, fault: Fault, targets: Sequence[str]) -> None:
        try:
            self._execute[fault.kind](fault)
            self.done[f"{fault.kind} {self._service(fault.target)}"] += 1
        except Exception as error:  # noqa: BLE001 reported at the end, with the fault
            self.anomalies.append(f"{fault}: {error!r}")
        finally:
            with self._changed:
                self._busy.difference_update(targets)
                self._changed.notify_all()

    def _kill(self, fault: Fault) -> None:
        self._cluster.kill9(fault.target)
        time.sleep(fault.hold_s)
        self._begin(fault.target)

    def _stop(self, fault: Fault) -> None:
        self._cluster.stop(fault.target)
        time.sleep(fault.hold_s)
        self._cluster.cont(fault.target)

    def _clock(self, fault: Fault) -> None:
        self._cluster.set_clock(fault.target, fault.step_s)
        time.sleep(fault.hold_s)
        if fault.number % 2:  # half of the processes also start with a wrong clock
            self._cluster.kill9(fault.target)
            self._begin(fault.target)
            time.sleep(fault.hold_s)
        self._cluster.set_clock(fault.target, 0)

    def _wipe(self, fault: Fault) -> None:
        node = self._node(fault.target)
        self._cluster.kill9(fault.target)
        ledger = self._cluster.data.agents / node
        if ledger.exists():  # an agent that was just replaced has none yet
            _remove(ledger)
        time.sleep(fault.hold_s)
        self._begin(fault.target)

    def _twin(self, fault: Fault) -> None:
        """A second host with the name of a node, until one of both agents ends."""
        first = self._cluster.service(fault.target)
        folder = self._cluster.folder / "twins" / str(fault.number) / self._node(fault.target)
        (health,) = free_ports(1)
        env = {
            **first.plan.env,
            "YARD_AGENT_DATA_DIR": str(folder),
            "YARD_HEALTH_PORT": str(health),
        }
        plan = dataclasses.replace(
            first.plan, name=f"{fault.target}-twin", env=env, health_port=health
        )
        log = self._cluster.data.logs / f"{plan.name}.log"
        twin = ServiceProcess(plan, log, first.env, fork)
        twin.begin()
        deadline = time.monotonic() + TWIN_LIMIT_S
        while first.running and twin.running and time.monotonic() < deadline:
            time.sleep(LOOK_S)
        if first.running and twin.running:
            self.anomalies.append(f"{fault}: two agents of one name still run")
        twin.kill()
        end_tasks(folder.parent)  # its host is switched off
        if not first.running:
            # The message of `node_taken` asks the operator to move the ledger away.
            _remove(self._cluster.data.agents / self._node(fault.target))
        self._begin(fault.target)

    def _cut(self, fault: Fault) -> None:
        removed = lose_and_repair(self._cluster, fault)
        self.removed.jobs |= removed.jobs
        self.removed.attempts |= removed.attempts

    def _broker_clock(self, fault: Fault) -> None:
        self._cluster.set_clock(KAFKA, fault.step_s)
        time.sleep(fault.hold_s)
        self._cluster.set_clock(KAFKA, 0)

    def _fence(self, fault: Fault) -> None:
        """A bit of the fence is changed: the machine names the file, and does not believe it."""
        names = self._targets(fault)
        for name in names:
            self._cluster.kill9(name)
        path = self._snapshots(fault.target) / FENCE
        damaged = path.exists()  # no fence yet in the first second
        if damaged:
            content = bytearray(path.read_bytes())
            content[fault.bit // 8 % len(content)] ^= 1 << fault.bit % 8
            path.write_bytes(content)
        said = sum(self._cluster.log(name).count("fence_unreadable") for name in names)
        for name in names:
            self._begin(name)
        for name in names:
            self._until_ready(name)
        now = sum(self._cluster.log(name).count("fence_unreadable") for name in names)
        if damaged and now == said:
            self.anomalies.append(f"{fault}: the changed bit was not noticed")

    def _hang(self, fault: Fault) -> None:
        """Reading the newest snapshot hangs: the machine starts from the log."""
        names = self._targets(fault)
        for name in names:
            self._cluster.kill9(name)
        for newest in sorted(self._snapshots(fault.target).glob("*.snapshot"))[-1:]:
            newest.rename(newest.with_suffix(".aside"))
            os.mkfifo(newest)
        for name in names:
            self._begin(name)
        for name in names:
            self._until_ready(name)
        for aside in self._snapshots(fault.target).glob("*.aside"):
            aside.replace(aside.with_suffix(".snapshot"))

    # --- processes ------------------------------------------------------------------------------

    def _targets(self, fault: Fault) -> Sequence[str]:
        """The processes that a fault needs."""
        if fault.kind in WHOLE:
            return self._cluster.names
        if fault.kind in OF_MACHINES:
            machine = self._service(fault.target)
            return [name for name in self._cluster.names if self._service(name) == machine]
        return [fault.target]

    def _snapshots(self, name: str) -> Path:
        """The snapshots and the fence of a process's machine."""
        return self._cluster.data.snapshots / self._service(name) / "main"

    def _keep(self) -> None:
        """Start processes again that ended while no fault was at work on them."""
        while not self._over.wait(LOOK_S):
            for name in self._cluster.names:
                with self._changed:
                    if name in self._busy or self._cluster.lives(name):
                        continue
                    self._busy.add(name)
                process = self._cluster.member(name).process
                self.ended[self._service(name), process.returncode if process else None] += 1
                self._begin(name)
                with self._changed:
                    self._busy.discard(name)
                    self._changed.notify_all()

    def _begin(self, name: str) -> None:
        member = self._cluster.member(name)
        if not member.running:
            if member.process is not None:
                member.kill()
            member.begin()

    def _until_ready(self, name: str) -> None:
        """Wait for a process; what ends meanwhile is started again by the supervisor."""

        def ready() -> bool:
            with suppress(ProcessFailed):
                return self._cluster.member(name).ready()
            return False

        self._cluster.until(ready, f"{name} is ready", look_s=LOOK_S)

    @staticmethod
    def _service(name: str) -> str:
        return name if name in (KAFKA, REDIS) else name.split("-")[0]

    @staticmethod
    def _node(agent: str) -> str:
        return agent.removeprefix("agent-")


def _remove(folder: Path) -> None:
    """Remove the folder of an agent; the runners of its tasks still write files into it."""
    for left in reversed(range(TRIES)):
        try:
            shutil.rmtree(folder)
            return
        except OSError:
            if left == 0:
                raise
            time.sleep(LOOK_S)
