"""The background process that keeps a local cluster running; `yard up --local` starts it.

- It starts the processes of `up.json`, and writes `state.json` as its report.
- It restarts a process that ends, after a pause that doubles up to a limit. If a process has not
  stayed up for `GIVE_UP_S` seconds, it gives up the process.
- On SIGHUP it reads `up.json` again, stops processes that are no longer requested, and starts new
  processes and the processes that it gave up.
- On SIGTERM it stops all processes in order.

It waits for processes and signals without polling.
"""

import json
import os
import select
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from yardmaster_localcluster.data_lock import announce, take_lock, withdraw, write_private
from yardmaster_localcluster.errors import LocalClusterError, ServiceFailed
from yardmaster_localcluster.fleet import Fleet
from yardmaster_localcluster.layout import DataLayout
from yardmaster_localcluster.orphans import MARK
from yardmaster_localcluster.plan import FixedPorts
from yardmaster_localcluster.process import Running, ServiceProcess
from yardmaster_localcluster.request import requested, requested_ports
from yardmaster_schemas.backoff import Backoff

#: The pause before a restart: it doubles from the first to the longest.
FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 10.0
#: A process that never stays up is restarted for this time, in seconds, and then given up. The time
#: is long, so that the cluster recovers without an operator from an outage of hours, such as a full
#: disk.
GIVE_UP_S: Final = 12 * 3600.0
#: A process that ran for this time, in seconds, counts as staying up.
LIVED_S: Final = 60.0
#: Makes Redis save its data at a stop, so that views need no rebuild. An old save is safe, because
#: the position of the views is saved with them and the views service continues from there.
REDIS_SAVES: Final = {"save": "300 1000"}


@dataclass(slots=True)
class _Life:
    """The supervisor's record of one process."""

    restarts: int = 0
    #: The number of ends since the process last stayed up, and the time of the first such end.
    in_a_row: int = 0
    failing_since_s: float = 0.0
    backoff: Backoff = field(default_factory=lambda: Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S))
    began_s: float = 0.0
    #: The time of the next restart; None: the process runs, or was given up.
    due_s: float | None = None
    given_up: bool = False
    descriptor: int = -1


class Supervisor:
    """Keeps one cluster running; `run` returns after SIGTERM."""

    def __init__(self, data: DataLayout, ports: dict[str, int]) -> None:
        self._data = data
        self._ports = ports
        self._lives: dict[str, _Life] = {}
        self._setup: Running | None = None
        self._set_up = False
        self._stopping = False
        self._changed = False
        self._wake, self._woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.fleet = Fleet(
            data,
            requested(data),
            FixedPorts(ports["gateway"], ports["health"]),
            kafka_port=ports["kafka"],
            controller_port=ports["controller"],
            redis_port=ports["redis"],
            redis_settings=REDIS_SAVES,
        )

    def run(self) -> int:
        """Start the cluster, keep it running until SIGTERM, and stop it; returns the exit code."""
        signal.set_wakeup_fd(self._woken)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_stop)
        signal.signal(signal.SIGHUP, self._on_change)
        try:
            return self._run()
        finally:
            # No process may be left after an unexpected error either.
            self.fleet.kill()

    def _run(self) -> int:
        failed = ""
        try:
            self._start()
            while not self._stopping:
                self._wait()
                self._look()
        except LocalClusterError as error:
            failed = str(error)
            _log("failed", why=failed)
        withdraw(self._data.path)
        _log("stopping", processes=len(self._lives))
        self.fleet.stop()
        self._write_state(failed=failed, stopped=True)
        _log("stopped")
        return 1 if failed else 0

    def _start(self) -> None:
        self._write_state()
        _log("starting", data=str(self._data.path), pid=os.getpid())
        self._setup = self.fleet.begin_infrastructure()
        for name in ("kafka", "redis"):
            self._began(name)
        self._write_state()

    def _wait(self) -> None:
        """Wait until a process ends, a signal arrives, or a restart is due."""
        now_s = time.monotonic()
        due = [life.due_s for life in self._lives.values() if life.due_s is not None]
        limit_s = max(0.0, min(due) - now_s) if due else None
        watched = [life.descriptor for life in self._lives.values() if life.descriptor >= 0]
        setup = -1
        if self._setup is not None:
            setup = os.pidfd_open(self._setup.pid)
            watched.append(setup)
        try:
            select.select([*watched, self._wake], [], [], limit_s)
        finally:
            if setup >= 0:
                os.close(setup)
        try:
            while os.read(self._wake, 512):
                continue
        except BlockingIOError:
            pass

    def _look(self) -> None:
        """Handle ended processes, due restarts and a changed request."""
        if self._stopping:
            return
        before = self._rows()
        if self._setup is not None and self._setup.poll() is not None:
            code, self._setup = self._setup.returncode, None
            if code:
                words = (self._data.logs / "setup.log").read_text(errors="replace")[-2000:]
                if not self._set_up:
                    raise ServiceFailed(f"yard setup ended ({code}):\n{words}")
                # The topics exist already; only users of new nodes are missing. The agents of these
                # nodes report that the broker refuses them.
                _log("users_not_created", code=code, words=words)
            self._set_up = self._changed = True
        if self._changed and self._set_up and self._setup is None:
            self._change()
        for name, life in self._lives.items():
            self._look_at(name, life)
        if self._rows() != before:
            self._write_state()

    def _announce(self) -> None:
        gateway = next(s.plan for s in self.fleet.services.values() if s.plan.port is not None)
        assert gateway.port is not None
        announce(
            self._data.path,
            gateway.port,
            self._data.token(),
            what="yard up",
            log=f"kafka://{self.fleet.broker.bootstrap}",
            redis=self.fleet.redis.url,
            credentials=str(self._data.credentials),
        )

    def _change(self) -> None:
        """Start and stop processes until they match the request in `up.json`.

        New nodes need users at the broker: the setup creates them first.
        """
        wanted = requested(self._data)
        if self.fleet.lacks_users(wanted):
            self._setup = self.fleet.begin_setup(wanted)
            return
        self._changed = False
        for life in self._lives.values():
            if life.given_up:
                life.given_up, life.in_a_row, life.due_s = False, 0, time.monotonic()
                life.backoff.reset()
        over, new = self.fleet.adopt(wanted)
        for name in over:
            self._forget(name)
        if over:
            _log("scaling_down", stop=over)
            self.fleet.stop_services(over)
        for name in new:
            self.fleet.add(name).begin()
            self._began(name)
            _log("started", process=name)
        self._announce()

    def _look_at(self, name: str, life: _Life) -> None:
        member = self.fleet.members[name]
        now_s = time.monotonic()
        if life.due_s is not None:
            if now_s >= life.due_s:
                life.due_s = None
                life.restarts += 1
                member.begin()
                self._began(name)
                _log("restarted", process=name, restarts=life.restarts)
            return
        if life.given_up or member.running:
            return
        process = member.process
        code = None if process is None else process.returncode
        self._unwatch(life)
        if not self._set_up:
            raise ServiceFailed(f"{name} ended ({code}) during the start:\n{member.tail()}")
        if now_s - life.began_s >= LIVED_S:
            life.in_a_row = 0
            life.backoff.reset()
        if not life.in_a_row:
            life.failing_since_s = now_s
        life.in_a_row += 1
        if now_s - life.failing_since_s > GIVE_UP_S:
            life.given_up = True
            _log("given_up", process=name, code=code, ends=life.in_a_row, log=str(member.log_file))
            return
        pause_s = life.backoff.next_s()
        life.due_s = now_s + pause_s
        _log("ended", process=name, code=code, again_in_s=pause_s, log=str(member.log_file))

    def _began(self, name: str) -> None:
        life = self._lives.setdefault(name, _Life())
        self._unwatch(life)
        process = self.fleet.members[name].process
        assert process is not None, f"{name} was just started"
        life.began_s = time.monotonic()
        life.descriptor = os.pidfd_open(process.pid)

    def _forget(self, name: str) -> None:
        self._unwatch(self._lives.pop(name))

    @staticmethod
    def _unwatch(life: _Life) -> None:
        if life.descriptor >= 0:
            os.close(life.descriptor)
            life.descriptor = -1

    def _on_stop(self, *_: object) -> None:
        self._stopping = True

    def _on_change(self, *_: object) -> None:
        self._changed = True

    def _rows(self) -> list[dict[str, Any]]:
        """The processes, for `state.json`."""
        found = []
        for name, life in self._lives.items():
            member = self.fleet.members[name]
            process = member.process
            row: dict[str, Any] = {
                "name": name,
                "pid": None if process is None else process.pid,
                "state": ("given_up" if life.given_up else "waiting" if life.due_s else "running"),
                "restarts": life.restarts,
                "ends_in_a_row": life.in_a_row,
                "log": str(member.log_file),
            }
            if isinstance(member, ServiceProcess):
                plan = member.plan
                row |= {"health": plan.health_url, "port": plan.port, "node": plan.node}
            found.append(row)
        return found

    def _write_state(self, *, failed: str = "", stopped: bool = False) -> None:
        state = {
            "pid": os.getpid(),
            "set_up": self._set_up,
            "failed": failed,
            "stopped": stopped,
            "wanted": self.fleet.wanted.json(),
            "ports": self._ports,
            "processes": [] if stopped else self._rows(),
        }
        write_private(self._data.path / "state.json", json.dumps(state, indent=1) + "\n")


def _log(event: str, **more: object) -> None:
    """Write a line to the supervisor's log."""
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    print(json.dumps({"at": at, "event": event, **more}), flush=True)


def main() -> int:
    """Run the supervisor of the data directory on the command line."""
    path = Path(sys.argv[1]).absolute()
    try:
        lock = take_lock(path)
    except LocalClusterError as error:
        print(f"error: {error}\nhint: {error.hint}", flush=True)
        return 1
    os.environ[MARK] = str(path)
    data = DataLayout(path)
    try:
        return Supervisor(data, requested_ports(data)).run()
    finally:
        os.close(lock)


if __name__ == "__main__":
    sys.exit(main())
