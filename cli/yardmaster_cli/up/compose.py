"""`yard up --compose`: the same cluster in containers, by `docker compose` or `docker-compose`.

The data folder is laid out as that of `--local`, and the containers work on it, so either goes on
with what the other left. What compose is told lies in `compose.env` there.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from yardmaster_cli.config import default_up_dir
from yardmaster_cli.errors import BadUsage, CliError, Exit
from yardmaster_cli.hints import down_for, yard_for
from yardmaster_cli.output.formats import Output
from yardmaster_localcluster.data_lock import announce, withdraw, write_private
from yardmaster_localcluster.layout import DataLayout
from yardmaster_localcluster.plan import Wanted

#: The name of the cluster in the usual folder; those in others have a suffix.
PROJECT: Final = "yardmaster"
#: Containers of this user own their files when `yard up` is called by root.
SERVICE_USER: Final = 10001
#: The nodes that the file has.
NODES: Final = ("n1", "n2", "n3")
#: Scaled by their number; each is a service of the file.
SCALED: Final = ("gateway", "quota", "scheduler", "views")
#: Gateways share these ports from the first on.
GATEWAYS: Final = 10
ANSWER_S: Final = 20.0
HEALTHY_LIMIT_S: Final = 300.0
STOP_S: Final = 20
LOOK_S: Final = 1.0


def is_there() -> bool:
    """A Docker daemon answers, compose is there, and so is the file that says what to run."""
    return _daemon() and _command() is not None and _file() is not None


def was_started(data: DataLayout) -> bool:
    """`up` was called on this folder, and `down` was not since."""
    return _settings_file(data).is_file()


def up(out: Output, data: DataLayout, want: Wanted, ports: Mapping[str, int]) -> None:
    """Build and start the containers; returns when all are healthy.

    Raises:
        CliError: Docker or compose is not there, a container does not become healthy.
    """
    began_s = time.monotonic()
    if want.counts.agent > len(NODES):
        raise BadUsage(
            f"--agents {want.counts.agent}: the compose file has {len(NODES)} nodes",
            hint="yard up --local has as many as you like",
        )
    _prepare(data, want, ports)
    # Who names a version has its images already, under that tag.
    build = [] if os.environ.get("YARD_UP_VERSION") else ["--build"]
    if build:
        out.note("building images, the first time for some minutes")
    counts = {name: getattr(want.counts, name) for name in SCALED}
    counts |= {f"agent-{n}": int(i < want.counts.agent) for i, n in enumerate(NODES)}
    scale = [word for name, n in counts.items() for word in ("--scale", f"{name}={n}")]
    _compose(data, ["up", "--detach", *build, "--remove-orphans", *scale])
    found = _until_healthy(data, counts)
    port = _gateway_port(data)
    programs = {
        "python": "/opt/yardmaster/bin/python",
        "examples": "/shared/examples",
        "checkpoints": "/shared/checkpoints",
    }
    more = {
        "what": "yard up --compose",
        "log": f"kafka://localhost:{ports['kafka']}",
        "redis": f"redis://localhost:{ports['redis']}/0",
        "redis_password_file": str(data.redis_password_file),
        "programs": programs,
    }
    announce(data.path, port, data.token(), pid=0, **more)
    out.say(f"yard up --compose: {len(found)} containers, data in {data.path}")
    for name in sorted(found):
        out.say(f"  {name}: {found[name]}")
    out.note(f"all healthy after {time.monotonic() - began_s:.0f} s: http://127.0.0.1:{port}")
    here = yard_for(data.path, os.environ)
    out.note(
        f"hint: {here} submit -- COMMAND; {down_for(data.path, os.environ)} stops it, tasks too"
    )


def down(out: Output, data: DataLayout, *, purge: bool) -> None:
    """Stop and remove the containers and their network; with `purge` the data folder too."""
    _compose(data, ["down", "--volumes", "--remove-orphans", "--timeout", str(STOP_S)])
    withdraw(data.path)
    left = _containers(data)
    if left:
        raise CliError(f"containers are left: {', '.join(left)}", exit_code=Exit.INTERNAL)
    _settings_file(data).unlink(missing_ok=True)
    out.say("yard down: all containers are stopped and removed")
    if purge:
        shutil.rmtree(data.path, ignore_errors=True)
        out.note(f"removed: {data.path}")
    else:
        out.note(f"the log stays in {data.path}; yard up goes on with it, --purge removes it")


def project(data: DataLayout) -> str:
    """What compose calls this cluster: every folder's has a name of its own."""
    if data.path == default_up_dir(os.environ).absolute():
        return PROJECT
    return f"{PROJECT}-{hashlib.sha256(str(data.path).encode()).hexdigest()[:8]}"


def _daemon() -> bool:
    if shutil.which("docker") is None:
        return False
    try:
        asked = ["docker", "version", "--format", "{{.Server.Version}}"]
        done = subprocess.run(asked, capture_output=True, timeout=ANSWER_S, check=False)
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0


def _command() -> list[str] | None:
    """How compose is called here; None when it is not there."""
    try:
        asked = ["docker", "compose", "version"]
        done = subprocess.run(asked, capture_output=True, timeout=ANSWER_S, check=False)
        if done.returncode == 0:
            return ["docker", "compose"]
    except (OSError, subprocess.SubprocessError):
        pass
    found = shutil.which("docker-compose")
    return None if found is None else [found]


def _file() -> Path | None:
    """The compose file, beside the sources; None in an installation without them."""
    path = Path(__file__).resolve().parents[3] / "deploy" / "compose" / "compose.yaml"
    return path if path.is_file() else None


def _settings_file(data: DataLayout) -> Path:
    return data.path / "compose.env"


def _prepare(data: DataLayout, want: Wanted, ports: Mapping[str, int]) -> None:
    """Make the folders and secrets, owned by the containers' user, and say what compose needs."""
    data.make(want.cells)
    shared = data.path / "shared"
    folders = [shared, shared / "checkpoints", *(data.agents / node for node in NODES)]
    for folder in folders:
        folder.mkdir(exist_ok=True)
    _share_examples(shared / "examples")
    uid, gid = os.getuid(), os.getgid()
    if uid == 0:
        uid = gid = SERVICE_USER
        for folder in (data.kafka, data.redis, data.snapshots, data.agents, data.views, shared):
            _give(folder, uid, gid)
        _give(data.tokens_file, uid, gid)
        # They must get there, and need to see nothing on the way.
        data.path.chmod(0o711)
    first = ports["gateway"]
    settings = {
        "YARD_UP_DATA": str(data.path),
        "YARD_UP_USER": f"{uid}:{gid}",
        "YARD_UP_CELLS": ",".join(want.cells),
        "YARD_UP_SLOTS": str(want.slots),
        "YARD_UP_GATEWAY_PORTS": f"{first}-{first + GATEWAYS - 1}",
        "YARD_UP_KAFKA_PORT": str(ports["kafka"]),
        "YARD_UP_REDIS_PORT": str(ports["redis"]),
    }
    text = "".join(f"{name}={value}\n" for name, value in settings.items())
    write_private(_settings_file(data), text)
    plain = {"wanted": want.json(), "ports": dict(ports)}
    write_private(data.path / "up.json", json.dumps(plain, indent=1) + "\n")


def _share_examples(folder: Path) -> None:
    """Put the example programs, and the SDK that they import, where the agents' tasks find them."""
    root = Path(__file__).resolve().parents[3]
    if (root / "examples").is_dir():
        skipped = shutil.ignore_patterns("__pycache__")
        shutil.copytree(root / "examples", folder, dirs_exist_ok=True, ignore=skipped)
        sdk = folder / "yardmaster"
        sdk.mkdir(exist_ok=True)
        for name in ("__init__.py", "task.py"):
            shutil.copy(root / "libs" / "client" / "yardmaster" / name, sdk / name)


def _give(path: Path, uid: int, gid: int) -> None:
    # What runs may remove files meanwhile.
    with suppress(FileNotFoundError):
        os.chown(path, uid, gid, follow_symlinks=False)
        if path.is_dir() and not path.is_symlink():
            for inside in path.iterdir():
                _give(inside, uid, gid)


def _words(data: DataLayout, words: Sequence[str]) -> list[str]:
    """The command line of compose.

    Raises:
        CliError: Docker, compose or the file is not there.
    """
    command, file = _command(), _file()
    if not _daemon() or command is None:
        raise CliError(
            "no Docker daemon answers, or compose is not installed",
            exit_code=Exit.UNREACHABLE,
            hint="docs.docker.com/engine/install; yard up --local needs neither",
        )
    if file is None:
        raise BadUsage(
            "the compose file is not here", hint="run make up in a clone of Yardmaster, or --local"
        )
    settings = str(_settings_file(data))
    return [*command, "-p", project(data), "--env-file", settings, "-f", str(file), *words]


def _compose(data: DataLayout, words: Sequence[str]) -> None:
    """Run compose; what it says goes to stderr."""
    done = subprocess.run(_words(data, words), stdout=sys.stderr.fileno(), check=False)
    if done.returncode:
        raise CliError(
            f"compose {words[0]} ended with exit code {done.returncode}",
            exit_code=Exit.INTERNAL,
            hint="what it said stands above",
        )


def _asked(words: Sequence[str]) -> str:
    done = subprocess.run(
        words, stdout=subprocess.PIPE, timeout=ANSWER_S * 3, check=False, text=True
    )
    return done.stdout


def _containers(data: DataLayout) -> dict[str, str]:
    """The cluster's containers by service and number, and how each is, in a word."""
    filtered = ["--filter", f"label=com.docker.compose.project={project(data)}"]
    ids = _asked(["docker", "ps", "--all", "--quiet", *filtered]).split()
    if not ids:
        return {}
    found = {}
    for one in json.loads(_asked(["docker", "inspect", *ids])):
        labels, state = one["Config"]["Labels"], one["State"]
        number = labels["com.docker.compose.container-number"]
        name = f"{labels['com.docker.compose.service']}-{number}"
        found[name] = _word(state)
    return found


def _word(state: Mapping[str, Any]) -> str:
    if state["Status"] == "exited":
        return f"exited {state['ExitCode']}"
    health = state.get("Health")
    return str(health["Status"] if health else state["Status"])


def _until_healthy(data: DataLayout, counts: Mapping[str, int]) -> dict[str, str]:
    """Wait until every container is healthy, and setup has ended well; all of them."""
    deadline = time.monotonic() + HEALTHY_LIMIT_S
    expected = {f"{name}-{i + 1}" for name, n in counts.items() for i in range(n)}
    expected |= {"kafka-1", "redis-1"}
    while True:
        found = _containers(data)
        bad = sorted(
            f"{name}: {found.get(name, 'not there')}"
            for name in expected
            if found.get(name) != "healthy"
        )
        if not bad:
            return found
        setup = found.get("setup-1", "")
        if time.monotonic() > deadline or setup not in ("", "created", "running", "exited 0"):
            raise CliError(
                f"not healthy after {time.monotonic() - deadline + HEALTHY_LIMIT_S:.0f} s: "
                f"{', '.join(bad)}; setup: {setup}",
                exit_code=Exit.TIMEOUT,
                hint=f"docker ps --all; docker logs {project(data)}... says why; yard down ends it",
            )
        time.sleep(LOOK_S)


def _gateway_port(data: DataLayout) -> int:
    """Where the first gateway is reached."""
    said = _asked(_words(data, ["port", "gateway", "7450"])).strip()
    port = said.rpartition(":")[2]
    if not port.isdecimal():
        raise CliError(f"no port of the gateway is published: {said}", exit_code=Exit.INTERNAL)
    return int(port)
