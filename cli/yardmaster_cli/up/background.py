"""`yard up --local` and `yard down`: start the supervisor, tell it what is wanted, end it."""

import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Mapping
from typing import Any, Final

from yardmaster_cli.errors import BadUsage, CliError, Exit
from yardmaster_cli.hints import down_for, path_with_yard, yard_for
from yardmaster_cli.output.formats import Output
from yardmaster_localcluster.broker import classpath
from yardmaster_localcluster.data_lock import lock_owner, make_private, withdraw, write_private
from yardmaster_localcluster.layout import DataLayout, read_json
from yardmaster_localcluster.orphans import MARK, end, end_tasks, of_cluster, of_tasks
from yardmaster_localcluster.plan import MODULES, FixedPorts, Wanted
from yardmaster_localcluster.ports import HOST, is_free
from yardmaster_localcluster.redis_server import redis_program

#: Longest that a start and a stop may take, in seconds; usually 20 and 5, on two cores.
UP_LIMIT_S: Final = 400.0
DOWN_LIMIT_S: Final = 120.0
GRACE_S: Final = 10.0
LOOK_S: Final = 0.1
ANSWER_S: Final = 2.0
#: Free ports are looked for this far from those that are taken, and so many times further.
PORT_STEP: Final = 100
PORT_STEPS: Final = 20
LAST_PORT: Final = 65_000


def wanted(data: DataLayout) -> Wanted:
    """What the folder's cluster is to be, as last said."""
    found = read_json(data.path / "up.json").get("wanted")
    try:
        return Wanted.of_json(found) if found else Wanted()
    except (KeyError, TypeError):
        return Wanted()


def ports(data: DataLayout) -> dict[str, int]:
    """The ports of the folder's cluster by listener; without those that are no port numbers."""
    found = read_json(data.path / "up.json").get("ports")
    if not isinstance(found, dict):
        return {}
    return {name: port for name, port in found.items() if isinstance(port, int)}


def runs(data: DataLayout) -> int | None:
    """The supervisor's pid, when one runs on the folder."""
    owner = lock_owner(data.path)
    return owner if owner is not None and _is_supervisor(data, owner) else None


def _is_supervisor(data: DataLayout, pid: int) -> bool:
    state = read_json(data.path / "state.json")
    if state.get("pid") == pid:
        return True
    return any(each.pid == pid for each in of_cluster(data.path))


def up(out: Output, data: DataLayout, want: Wanted, where: dict[str, int]) -> None:
    """Start a cluster, or make the one that runs what is wanted; returns when all is healthy.

    Raises:
        CliError: a port is taken, a process does not come up, or what runs cannot become this.
    """
    began_s = time.monotonic()
    pid = runs(data)
    if pid is not None:
        known = ports(data)
        if known != where:
            raise BadUsage(
                "a cluster that runs keeps its ports: " + ", ".join(_differ(known, where)),
                hint="run yard down, then yard up with the new ports",
            )
        if want.cells != (here := wanted(data).cells):
            # The topics were made with a partition for each of them.
            raise BadUsage(
                f"a cluster that runs keeps its cells: {','.join(here)}",
                hint="yard up --data DIR --cells NAME,NAME starts another cluster, with its own",
            )
        _check_ports(want, where, held=_listeners(wanted(data), known))
        _write(data, want, where)
        os.kill(pid, signal.SIGHUP)
        out.note(f"a cluster runs in {data.path} (supervisor {pid}); scaling it")
    else:
        _clear(out, data)
        _check_ports(want, where)
        _check_programs(out)
        _write(data, want, where)
        (data.path / "state.json").unlink(missing_ok=True)
        pid = _begin(data)
    _until(data, want, pid)
    _report(out, data, time.monotonic() - began_s)


def _differ(known: dict[str, int], asked: dict[str, int]) -> list[str]:
    return [f"{name} {known.get(name)}" for name, port in asked.items() if known.get(name) != port]


def _write(data: DataLayout, want: Wanted, where: dict[str, int]) -> None:
    try:
        make_private(data.path)
    except OSError as error:
        raise BadUsage(
            f"{data.path}: {error.strerror}", hint="choose another: --data DIR"
        ) from None
    write_private(
        data.path / "up.json", json.dumps({"wanted": want.json(), "ports": where}, indent=1) + "\n"
    )


def _clear(out: Output, data: DataLayout) -> None:
    """End what a supervisor that was killed left behind."""
    found = [*of_cluster(data.path), *of_tasks(data.agents)]
    if found:
        out.note(f"{len(found)} processes of an earlier cluster that was not stopped are ended")
        _end_all(data)


def _listeners(want: Wanted, where: Mapping[str, int]) -> dict[int, str]:
    """Every port that a cluster listens on, with the flag that chooses it."""
    found = {where[name]: f"--{name}-port" for name in ("kafka", "controller", "redis")}
    fixed = FixedPorts(where["gateway"], where["health"])
    for service in MODULES:
        # Quota, schedulers and views serve all cells; a gateway and an agent serve one.
        cells = len(want.cells) if service in ("gateway", "agent") else 1
        for number in range(getattr(want.counts, service) * cells):
            found[fixed.health(service, number)] = "--health-port"
            if service == "gateway":
                found[fixed.gateway(number)] = "--gateway-port"
    return found


def _check_ports(want: Wanted, where: Mapping[str, int], held: Collection[int] = ()) -> None:
    """Check that what is wanted can listen; `held` are the running cluster's own ports.

    Raises:
        CliError: naming all ports that are in use, and ports that are free.
    """
    listeners = _listeners(want, where)
    taken = [port for port in sorted(listeners) if port not in held and not is_free(port)]
    if not taken:
        return
    ports, are = ("port", "is") if len(taken) == 1 else ("ports", "are")
    if held:
        hint = f"stop what listens there ({listeners[taken[0]]} cannot change while it runs)"
    else:
        hint = "stop what listens there, or choose free ports"
        if free := _free_ports(want, where):
            flags = " ".join(f"--{name}-port {port}" for name, port in free.items())
            hint += f": {flags}"
    raise CliError(
        f"{ports} {', '.join(map(str, taken))} of {HOST} {are} taken",
        exit_code=Exit.CONFLICT,
        hint=hint,
    )


def _free_ports(want: Wanted, where: Mapping[str, int]) -> dict[str, int]:
    """The nearest ports, all the same distance from `where`, that are free; empty without any."""
    for distance in range(PORT_STEP, PORT_STEP * (PORT_STEPS + 1), PORT_STEP):
        moved = {name: port + distance for name, port in where.items()}
        if max(moved.values()) < LAST_PORT and all(map(is_free, _listeners(want, moved))):
            return moved
    return {}


def _check_programs(out: Output) -> None:
    """Find Redis and Kafka before anything starts; the broker's jars come at the first start."""
    redis_program()
    out.note("starting; the first time the broker is fetched (54 MB)")
    classpath()


def _begin(data: DataLayout) -> int:
    """Start the supervisor in a session of its own; its pid."""
    data.logs.mkdir(exist_ok=True)
    with (data.logs / "supervisor.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "yardmaster_localcluster.supervisor", str(data.path)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            # Tasks of process agents find the Python and the SDK that this command runs with.
            env={**os.environ, MARK: str(data.path), "PATH": path_with_yard(os.environ)},
            cwd=data.path,
            start_new_session=True,
        )
    return process.pid


def _until(data: DataLayout, want: Wanted, pid: int) -> None:
    """Wait until nothing that is wanted is missing.

    Raises:
        CliError: the supervisor ended, a process was given up, or it took too long.
    """
    deadline = time.monotonic() + UP_LIMIT_S
    while missing := _all_ready(data, want):
        state = read_json(data.path / "state.json")
        if state.get("failed") or not _lives(pid):
            why = state.get("failed") or _tail(data, "supervisor")
            raise CliError(
                f"the cluster did not come up: {why}",
                exit_code=Exit.INTERNAL,
                hint=f"what every process said: {data.logs}",
            )
        if given_up := _given_up(state, want):
            raise CliError(
                f"ended again and again, and is not started any more: {', '.join(given_up)}\n"
                f"{_tail(data, given_up[0])}",
                exit_code=Exit.INTERNAL,
                hint=f"what every process said: {data.logs}; yard down ends the rest",
            )
        if time.monotonic() > deadline:
            raise CliError(
                f"not all of it is healthy after {UP_LIMIT_S:.0f} s: {'; '.join(missing)}",
                exit_code=Exit.TIMEOUT,
                hint=f"what every process said: {data.logs}; yard down ends the rest",
            )
        time.sleep(LOOK_S)


def _given_up(state: dict[str, Any], want: Wanted) -> list[str]:
    """Processes that will not come up; none while the supervisor holds what was wanted before."""
    if not state.get("wanted") or Wanted.of_json(state["wanted"]) != want:
        return []
    return [row["name"] for row in state["processes"] if row["state"] == "given_up"]


def _lives(pid: int) -> bool:
    """The supervisor runs; it may be this process's child, and then a zombie when it ended."""
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


def _all_ready(data: DataLayout, want: Wanted) -> list[str]:
    """What is still missing, in words."""
    state = read_json(data.path / "state.json")
    if not state.get("set_up"):
        return ["the log is not set up yet"]
    if Wanted.of_json(state["wanted"]) != want:
        return ["the supervisor has not taken over what is wanted"]
    missing = []
    for row in state["processes"]:
        if row["state"] != "running":
            missing.append(f"{row['name']}: {row['state']}")
        elif row.get("health"):
            why = _not_ready(row["health"])
            if why is not None:
                missing.append(f"{row['name']}: {why}")
    return missing


def _not_ready(url: str) -> str | None:
    host, _, port = url.removeprefix("http://").partition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=ANSWER_S)
    try:
        connection.request("GET", "/readyz")
        answer = connection.getresponse()
        body = answer.read().decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        return str(error)
    finally:
        connection.close()
    return None if answer.status == http.HTTPStatus.OK else body.strip()


def _report(out: Output, data: DataLayout, took_s: float) -> None:
    state = read_json(data.path / "state.json")
    where: dict[str, int] = state["ports"]
    rows: list[dict[str, Any]] = state["processes"]
    places = {"kafka": f"{HOST}:{where['kafka']}", "redis": f"redis://{HOST}:{where['redis']}/0"}
    out.say(f"yard up: {len(rows)} processes, data in {data.path}")
    for row in rows:
        place = places.get(row["name"]) or row.get("health") or ""
        if row.get("port"):
            place = f"http://{HOST}:{row['port']}, health {place}"
        again = f", started again {row['restarts']} times" if row["restarts"] else ""
        out.say(f"  {row['name']:<12} pid {row['pid']:<8} {place}{again}")
    out.note(f"all healthy after {took_s:.0f} s; what each says is in {data.logs}")
    here = yard_for(data.path, os.environ)
    out.note(
        f"hint: {here} submit -- COMMAND; {down_for(data.path, os.environ)} stops it, tasks too"
    )


def down(out: Output, data: DataLayout, *, purge: bool) -> None:
    """Stop the cluster in order; then nothing of it runs.

    Raises:
        CliError: something cannot be ended.
    """
    began_s = time.monotonic()
    pid = runs(data)
    tasks = len(of_tasks(data.agents))
    if pid is not None:
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + DOWN_LIMIT_S
        while lock_owner(data.path) is not None and time.monotonic() < deadline:
            time.sleep(LOOK_S)
    left = _end_all(data)
    withdraw(data.path)
    if left:
        raise CliError(
            f"{left} processes do not end", exit_code=Exit.INTERNAL, hint="they hang in the kernel"
        )
    took_s = time.monotonic() - began_s
    if pid is None:
        out.note(f"no cluster ran on {data.path}")
    else:
        ended = f", {tasks} processes of tasks among them" if tasks else ""
        out.say(f"yard down: everything has ended{ended}, in {took_s:.0f} s")
    if purge:
        shutil.rmtree(data.path, ignore_errors=True)
        out.note(f"removed: {data.path}")
    elif pid is not None:
        out.note(f"the log stays in {data.path}; yard up goes on with it, --purge removes it")


def _end_all(data: DataLayout) -> int:
    """End whatever carries the cluster's mark, tasks last; how many are left."""
    end(of_cluster(data.path), GRACE_S)
    end_tasks(data.agents)
    return len(of_cluster(data.path)) + len(of_tasks(data.agents))


def _tail(data: DataLayout, name: str) -> str:
    try:
        return (data.logs / f"{name}.log").read_text(errors="replace")[-2000:]
    except FileNotFoundError:
        return "it said nothing"
