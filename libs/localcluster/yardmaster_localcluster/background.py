"""`yard up --local`: a cluster of processes that a supervisor keeps running in the background."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from yardmaster_localcluster.broker import classpath, jars_are_fetched
from yardmaster_localcluster.data_lock import lock_owner, make_private, withdraw
from yardmaster_localcluster.errors import (
    ClusterFixed,
    DataDirUnusable,
    NotHealthy,
    PortsInUse,
    StartFailed,
    StopFailed,
)
from yardmaster_localcluster.layout import DataLayout
from yardmaster_localcluster.orphans import MARK, end, end_tasks, of_cluster, of_tasks
from yardmaster_localcluster.plan import MODULES, FixedPorts, Wanted
from yardmaster_localcluster.ports import HOST, is_free
from yardmaster_localcluster.process import path_with_python, why_not_ready
from yardmaster_localcluster.redis_server import redis_program
from yardmaster_localcluster.request import (
    read_state,
    requested,
    requested_ports,
    write_request,
)
from yardmaster_localcluster.task_containers import end_containers
from yardmaster_schemas.counts import count_of

#: The longest start and stop, in seconds; on two cores they usually take 20 and 5.
UP_LIMIT_S: Final = 400.0
#: The intervals, in seconds, at which a slow start reports what it waits for: in a script, and on a
#: terminal.
REPORT_S: Final = 60.0
TERMINAL_REPORT_S: Final = 10.0
#: After this many ends of one process in a row, `yard up` reports a failed start. The supervisor
#: continues to restart the process.
MAX_ENDS: Final = 20
DOWN_LIMIT_S: Final = 120.0
GRACE_S: Final = 10.0
LOOK_S: Final = 0.1
#: Free ports are searched at up to PORT_STEPS multiples of PORT_STEP from the requested ports.
PORT_STEP: Final = 100
PORT_STEPS: Final = 20
LAST_PORT: Final = 65_000

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """One running process of a cluster."""

    name: str
    pid: int
    #: The address of the process, or of its health endpoints; empty without either.
    address: str
    #: The address that a gateway serves; empty for other processes.
    serves: str
    restarts: int


class BackgroundCluster:
    """The cluster of processes in a data directory, which a supervisor in the background runs.

    Args:
        progress: is called with one line for each step that takes long.
        report_s: the interval at which a wait reports what it waits for, in seconds.
    """

    def __init__(
        self,
        data: DataLayout,
        progress: Progress = lambda _: None,
        *,
        report_s: float = REPORT_S,
    ) -> None:
        self.data = data
        self._progress = progress
        self._report_s = report_s

    def supervisor(self) -> int | None:
        """The supervisor's pid; None while no supervisor runs on the folder."""
        owner = lock_owner(self.data.path)
        return owner if owner is not None and self._is_supervisor(owner) else None

    def up(self, wanted: Wanted, ports: dict[str, int]) -> list[ProcessStatus]:
        """Start the cluster, or change the running one to `wanted`; wait until all are healthy.

        Raises:
            LocalClusterError: a port is in use, a process does not start, or the running cluster
                cannot be changed in this way.
        """
        data = self.data
        data.check_format()
        pid = self.supervisor()
        if pid is not None:
            self._check_change(wanted, ports)
            write_request(data, wanted, ports)
            os.kill(pid, signal.SIGHUP)
            self._progress(f"already running in {data.path}; scaling it")
        else:
            self._end_orphans()
            check_ports(wanted, ports)
            # Missing programs are reported before anything starts.
            redis_program()
            self._progress("starting")
            self._fetch()
            try:
                make_private(data.path)
            except OSError as error:
                raise DataDirUnusable(
                    found=f"{data.path}: {error.strerror}", hint="choose another: --data DIR"
                ) from None
            write_request(data, wanted, ports)
            (data.path / "state.json").unlink(missing_ok=True)
            pid = self._begin()
        self._await(wanted, pid)
        return self.processes()

    def processes(self) -> list[ProcessStatus]:
        """The processes in the supervisor's last report."""
        state = read_state(self.data)
        ports: dict[str, int] = state["ports"]
        addresses = {
            "kafka": f"{HOST}:{ports['kafka']}",
            "redis": f"redis://{HOST}:{ports['redis']}/0",
        }
        return [
            ProcessStatus(
                name=row["name"],
                pid=row["pid"],
                address=addresses.get(row["name"]) or row.get("health") or "",
                serves=f"http://{HOST}:{row['port']}" if row.get("port") else "",
                restarts=row["restarts"],
            )
            for row in state["processes"]
        ]

    def down(self) -> int | None:
        """Stop all processes of the cluster in order, its tasks last.

        Returns: how many processes of tasks were ended; None: no cluster was running.
        Raises:
            StopFailed: processes do not end.
            EngineSilent: containers of tasks are left.
        """
        pid = self.supervisor()
        tasks = len(of_tasks(self.data.agents))
        if pid is not None:
            os.kill(pid, signal.SIGTERM)
            deadline = time.monotonic() + DOWN_LIMIT_S
            while lock_owner(self.data.path) is not None and time.monotonic() < deadline:
                time.sleep(LOOK_S)
        left = self._end_all()
        withdraw(self.data.path)
        if left:
            raise StopFailed(
                found=count_of(left, "process", "processes"), hint="they hang in the kernel"
            )
        end_containers(self.data.agents)
        return None if pid is None else tasks

    def _fetch(self) -> None:
        """Download Kafka's jars if they are not in the cache.

        Raises: PackageMissing, DownloadFailed.
        """
        if jars_are_fetched():
            classpath()
            return
        self._progress("downloading Kafka (54 MB); later starts use this copy")
        began_s, done = time.monotonic(), threading.Event()

        def report() -> None:
            while not done.wait(self._report_s):
                self._progress(f"downloading Kafka since {time.monotonic() - began_s:.0f} s")

        reporter = threading.Thread(target=report, daemon=True)
        reporter.start()
        try:
            classpath()
        finally:
            done.set()
            reporter.join()

    def _is_supervisor(self, pid: int) -> bool:
        if read_state(self.data).get("pid") == pid:
            return True
        return any(each.pid == pid for each in of_cluster(self.data.path))

    def _check_change(self, wanted: Wanted, ports: dict[str, int]) -> None:
        """Check that the running cluster can become `wanted`.

        Raises:
            ClusterFixed: `wanted` has other ports or cells than the running cluster.
            PortsInUse: a port of an additional process is in use.
        """
        known = requested_ports(self.data)
        if known != ports:
            differing = [name for name, port in ports.items() if known.get(name) != port]
            raise ClusterFixed(
                what="ports",
                found=", ".join(f"{name} {known.get(name)}" for name in differing),
                hint="run yard down, then yard up with the new ports",
            )
        before = requested(self.data)
        if wanted.cells != before.cells:
            # Cells cannot change, because the topics have one partition for each cell.
            raise ClusterFixed(
                what="cells",
                found=",".join(before.cells),
                hint="yard up --data DIR --cells NAME,NAME starts another cluster with these cells",
            )
        check_ports(wanted, ports, held=listeners(before, known))

    def _end_orphans(self) -> None:
        """End the processes that a killed supervisor left."""
        found = [*of_cluster(self.data.path), *of_tasks(self.data.agents)]
        if found:
            ended = count_of(len(found), "process", "processes")
            self._progress(f"ending {ended} of a cluster that was not stopped")
            self._end_all()

    def _end_all(self) -> int:
        """End all processes of the cluster, tasks last; return the number of processes left."""
        end(of_cluster(self.data.path), GRACE_S)
        end_tasks(self.data.agents)
        return len(of_cluster(self.data.path)) + len(of_tasks(self.data.agents))

    def _begin(self) -> int:
        """Start the supervisor in a session of its own, and return its pid."""
        data = self.data
        data.logs.mkdir(exist_ok=True)
        with (data.logs / "supervisor.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "yardmaster_localcluster.supervisor", str(data.path)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # PATH lets the tasks of the agents find the Python and the SDK of this command.
                env={**os.environ, MARK: str(data.path), "PATH": path_with_python(os.environ)},
                cwd=data.path,
                start_new_session=True,
            )
        return process.pid

    def _await(self, wanted: Wanted, pid: int) -> None:
        """Wait until every wanted process is healthy; report at intervals which are not, and why.

        Raises:
            StartFailed: the supervisor ended, or a process ended too often.
            NotHealthy: the start took too long.
        """
        data = self.data
        began_s = time.monotonic()
        deadline, report_s = began_s + UP_LIMIT_S, began_s + self._report_s
        while missing := self._missing(wanted):
            state = read_state(data)
            if state.get("failed") or not _runs(pid):
                raise StartFailed(
                    found=state.get("failed") or self._tail("supervisor"),
                    hint=f"the log of each process is in {data.logs}",
                )
            if failing := failing_processes(state, wanted):
                raise StartFailed(
                    found=f"ended {MAX_ENDS} times in a row: {', '.join(failing)}\n"
                    f"{self._tail(failing[0])}",
                    hint=f"the log of each process is in {data.logs}; yard down ends the others",
                )
            if time.monotonic() > deadline:
                raise NotHealthy(
                    seconds=f"{UP_LIMIT_S:.0f}",
                    found="; ".join(missing),
                    hint=f"the log of each process is in {data.logs}; yard down ends them",
                )
            if time.monotonic() >= report_s:
                waited_s = time.monotonic() - began_s
                self._progress(f"not ready after {waited_s:.0f} s: {'; '.join(missing)}")
                report_s += self._report_s
            time.sleep(LOOK_S)

    def _missing(self, wanted: Wanted) -> list[str]:
        """Return the processes that are not healthy yet, each with the reason."""
        state = read_state(self.data)
        if not state.get("set_up"):
            return ["the log is not set up yet"]
        if Wanted.of_json(state["wanted"]) != wanted:
            return ["the supervisor has not read the request yet"]
        missing = []
        for row in state["processes"]:
            if row["state"] != "running":
                missing.append(f"{row['name']}: {row['state']}")
            elif row.get("health") and (why := why_not_ready(row["health"])) is not None:
                missing.append(f"{row['name']}: {why}")
        return missing

    def _tail(self, name: str) -> str:
        try:
            return (self.data.logs / f"{name}.log").read_text(errors="replace")[-2000:]
        except FileNotFoundError:
            return "no log was written"


def listeners(wanted: Wanted, ports: Mapping[str, int]) -> dict[int, str]:
    """Every port that a cluster listens on, with the flag that sets it."""
    found = {ports[name]: f"--{name}-port" for name in ("kafka", "controller", "redis")}
    fixed = FixedPorts(ports["gateway"], ports["health"])
    for service in MODULES:
        # Quota, schedulers and views serve all cells; a gateway and an agent serve one.
        cells = len(wanted.cells) if service in ("gateway", "agent") else 1
        for number in range(getattr(wanted.counts, service) * cells):
            found[fixed.health(service, number)] = "--health-port"
            if service == "gateway":
                found[fixed.gateway(number)] = "--gateway-port"
    return found


def check_ports(wanted: Wanted, ports: Mapping[str, int], held: Collection[int] = ()) -> None:
    """Check that `wanted` can listen; `held` are the ports that the running cluster itself uses.

    Raises:
        PortsInUse: a port is in use; the error names every such port, and ports that are free.
    """
    needed = listeners(wanted, ports)
    used = [port for port in sorted(needed) if port not in held and not is_free(port)]
    if not used:
        return
    if held:
        free = {}
        hint = (
            "stop the program that listens there; "
            f"{needed[used[0]]} cannot change while the cluster runs"
        )
    else:
        free = _free_ports(wanted, ports)
        hint = "stop the program that listens there, or choose free ports"
    noun, verb = ("port", "is") if len(used) == 1 else ("ports", "are")
    named = ", ".join(map(str, used))
    raise PortsInUse(ports=f"{noun} {named}", host=f"{HOST} {verb}", free=free, hint=hint)


def _free_ports(wanted: Wanted, ports: Mapping[str, int]) -> dict[str, int]:
    """The nearest free ports, all at the same distance from `ports`; empty if there are none."""
    for distance in range(PORT_STEP, PORT_STEP * (PORT_STEPS + 1), PORT_STEP):
        moved = {name: port + distance for name, port in ports.items()}
        if max(moved.values()) < LAST_PORT and all(map(is_free, listeners(wanted, moved))):
            return moved
    return {}


def failing_processes(state: dict[str, Any], wanted: Wanted) -> list[str]:
    """The processes that ended `MAX_ENDS` times in a row, by the supervisor's report `state`.

    The list is empty while the report is about an earlier request than `wanted`.
    """
    if not state.get("wanted") or Wanted.of_json(state["wanted"]) != wanted:
        return []
    return [row["name"] for row in state["processes"] if row["ends_in_a_row"] >= MAX_ENDS]


def _runs(pid: int) -> bool:
    """Whether the supervisor runs. If it was a child of this process, this reaps an ended one."""
    try:
        if os.waitpid(pid, os.WNOHANG)[0]:
            return False
    except ChildProcessError:
        pass
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
