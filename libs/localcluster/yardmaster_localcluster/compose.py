"""`yard up --compose`: run the cluster in containers, by `docker compose` or `docker-compose`.

The containers use the same data directory as the processes of `yard up --local`, so each form of
the cluster continues with the other form's log. The file `compose.env` in the data directory has
the settings of compose.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from yardmaster_localcluster.data_lock import announce, withdraw, write_private
from yardmaster_localcluster.errors import (
    ComposeFailed,
    ComposeFileMissing,
    DockerMissing,
    NotHealthy,
    StartFailed,
    StopFailed,
    TooManyNodes,
)
from yardmaster_localcluster.layout import DataLayout
from yardmaster_localcluster.plan import Wanted
from yardmaster_localcluster.request import write_request

#: The compose project of the default folder; the project of another folder has a suffix.
PROJECT: Final = "yardmaster"
#: The user of the containers when root calls `yard up`.
SERVICE_USER: Final = 10001
#: The group of all tasks, as compose.yaml gives it to agents.
TASK_GROUP: Final = 2_099_999_999
#: The nodes in the compose file.
NODES: Final = ("n1", "n2", "n3")
#: The services that `--scale` multiplies.
SCALED: Final = ("gateway", "quota", "scheduler", "views")
#: The number of ports that gateways share, from the first port on.
GATEWAYS: Final = 10
ANSWER_S: Final = 20.0
HEALTHY_LIMIT_S: Final = 300.0
STOP_S: Final = 20
LOOK_S: Final = 1.0


Progress = Callable[[str], None]


def why_unavailable() -> str | None:
    """Why no cluster can run in containers on this machine; None: a cluster can."""
    if shutil.which("docker") is None:
        return "docker is not installed"
    if not daemon_answers():
        return "Docker does not answer"
    if _command() is None:
        return "docker compose is not installed"
    return (
        None if _file() is not None else "this installation has no compose file, only a clone has"
    )


def project_name(data: Path, usual: Path) -> str:
    """The compose project of a data directory; `usual` is the default folder."""
    if data == usual:
        return PROJECT
    return f"{PROJECT}-{hashlib.sha256(str(data).encode()).hexdigest()[:8]}"


class ComposeCluster:
    """The containers of a data directory.

    Args:
        project: the name of the compose project.
        progress: is called with one line for each step that takes long.
    """

    def __init__(self, data: DataLayout, project: str, progress: Progress = lambda _: None) -> None:
        self.data = data
        self.project = project
        self._progress = progress

    @property
    def started(self) -> bool:
        """Whether `up` was called on this folder, and `down` was not called since."""
        return self._settings_file.is_file()

    def up(self, wanted: Wanted, ports: Mapping[str, int]) -> tuple[dict[str, str], int]:
        """Build and start the containers, and wait until all are healthy.

        Returns: the state of each container by name, and the port of the first gateway.
        Raises:
            LocalClusterError: Docker or compose is missing, or a container is not healthy.
        """
        if wanted.counts.agent > len(NODES):
            raise TooManyNodes(
                count=wanted.counts.agent,
                known=len(NODES),
                hint="start as many as you like with: yard up --local",
            )
        self._prepare(wanted, ports)
        # If YARD_UP_VERSION names a version, images with that tag exist and need no build.
        build = [] if os.environ.get("YARD_UP_VERSION") else ["--build"]
        if build:
            self._progress("building images; the first build takes some minutes")
        counts = {name: getattr(wanted.counts, name) for name in SCALED}
        counts |= {f"agent-{n}": int(i < wanted.counts.agent) for i, n in enumerate(NODES)}
        scale = [word for name, n in counts.items() for word in ("--scale", f"{name}={n}")]
        self._run(["up", "--detach", *build, "--remove-orphans", *scale])
        found = self._await(counts)
        port = self._gateway_port()
        announce(
            self.data.path,
            port,
            self.data.token(),
            pid=0,
            what="yard up --compose",
            log=f"kafka://localhost:{ports['kafka']}",
            redis=f"redis://localhost:{ports['redis']}/0",
            credentials=str(self.data.credentials),
            programs={
                "python": "/opt/yardmaster/bin/python",
                "examples": "/shared/examples",
                "checkpoints": "/shared/checkpoints",
            },
        )
        return found, port

    def down(self) -> None:
        """Stop and remove the containers and their network.

        Raises:
            StopFailed: containers are left.
        """
        self._run(["down", "--volumes", "--remove-orphans", "--timeout", str(STOP_S)])
        withdraw(self.data.path)
        left = self.containers()
        if left:
            raise StopFailed(found=f"the containers {', '.join(left)}", hint="docker rm -f NAME")
        self._settings_file.unlink(missing_ok=True)

    @property
    def _settings_file(self) -> Path:
        return self.data.path / "compose.env"

    def _prepare(self, wanted: Wanted, ports: Mapping[str, int]) -> None:
        """Create folders and secrets, owned by the user of the containers, and the settings."""
        data = self.data
        data.check_format()
        # Compose requires the files of all secrets, also of nodes that it does not start.
        data.make(wanted.cells, NODES)
        shared = data.path / "shared"
        folders = [shared, shared / "checkpoints", *(data.agents / node for node in NODES)]
        for folder in folders:
            folder.mkdir(exist_ok=True)
        _share_examples(shared / "examples")
        uid, gid = os.getuid(), os.getgid()
        if uid == 0:
            uid = gid = SERVICE_USER
            # Agents are root, and the folders of their tasks belong to the tasks.
            folders = [data.kafka, data.redis, data.snapshots, data.views]
            folders += [data.packages, data.artifacts, data.credentials]
            for folder in folders:
                _change_owner(folder, uid, gid)
            # Tasks of all nodes write their checkpoints into this folder, and the next attempt of
            # a task, which is another user, reads them through the group.
            os.chown(shared / "checkpoints", 0, TASK_GROUP)
            (shared / "checkpoints").chmod(0o2770)
            _change_owner(data.tokens_file, uid, gid)
            # The user of the containers may pass through the folder without listing it.
            data.path.chmod(0o711)
        first = ports["gateway"]
        settings = {
            "YARD_UP_DATA": str(data.path),
            "YARD_UP_USER": f"{uid}:{gid}",
            "YARD_UP_AGENT_USER": f"{os.getuid()}:{os.getgid()}",
            "YARD_UP_CELLS": ",".join(wanted.cells),
            "YARD_UP_SLOTS": str(wanted.slots),
            "YARD_UP_AGENTS": str(wanted.counts.agent),
            "YARD_UP_GATEWAY_PORTS": f"{first}-{first + GATEWAYS - 1}",
            "YARD_UP_KAFKA_PORT": str(ports["kafka"]),
            "YARD_UP_REDIS_PORT": str(ports["redis"]),
        }
        text = "".join(f"{name}={value}\n" for name, value in settings.items())
        write_private(self._settings_file, text)
        write_request(data, wanted, ports)

    def _words(self, words: Sequence[str]) -> list[str]:
        """The command line of compose.

        Raises:
            DockerMissing, ComposeFileMissing.
        """
        command, file = _command(), _file()
        if not daemon_answers() or command is None:
            raise DockerMissing(
                hint="install Docker (docs.docker.com/engine/install), or use yard up --local"
            )
        if file is None:
            raise ComposeFileMissing(
                hint="run make up in a clone of Yardmaster, or use yard up --local"
            )
        settings = str(self._settings_file)
        return [*command, "-p", self.project, "--env-file", settings, "-f", str(file), *words]

    def _run(self, words: Sequence[str]) -> None:
        """Run compose with its output on stderr.

        Raises:
            ComposeFailed.
        """
        done = subprocess.run(self._words(words), stdout=sys.stderr.fileno(), check=False)
        if done.returncode:
            raise ComposeFailed(
                command=words[0],
                code_of_compose=done.returncode,
                hint="the output of compose is above",
            )

    def containers(self) -> dict[str, str]:
        """The state of each container, by `SERVICE-NUMBER`."""
        filtered = ["--filter", f"label=com.docker.compose.project={self.project}"]
        ids = _output(["docker", "ps", "--all", "--quiet", *filtered]).split()
        if not ids:
            return {}
        found = {}
        for one in json.loads(_output(["docker", "inspect", *ids])):
            labels, state = one["Config"]["Labels"], one["State"]
            number = labels["com.docker.compose.container-number"]
            name = f"{labels['com.docker.compose.service']}-{number}"
            found[name] = container_state(state)
        return found

    def _await(self, counts: Mapping[str, int]) -> dict[str, str]:
        """Wait until every container is healthy, and return the state of all.

        Raises:
            NotHealthy: a container is not healthy in time, or the setup failed.
        """
        deadline = time.monotonic() + HEALTHY_LIMIT_S
        expected = {f"{name}-{i + 1}" for name, n in counts.items() for i in range(n)}
        expected |= {"kafka-1", "redis-1"}
        while True:
            found = self.containers()
            bad = sorted(
                f"{name}: {found.get(name, 'missing')}"
                for name in expected
                if found.get(name) != "healthy"
            )
            if not bad:
                return found
            setup = found.get("setup-1", "")
            if time.monotonic() > deadline or setup not in ("", "created", "running", "exited 0"):
                raise NotHealthy(
                    seconds=f"{time.monotonic() - deadline + HEALTHY_LIMIT_S:.0f}",
                    found=f"{', '.join(bad)}; setup: {setup}",
                    hint=f"see docker logs {self.project}-SERVICE-1; yard down ends all of them",
                )
            time.sleep(LOOK_S)

    def _gateway_port(self) -> int:
        """The published port of the first gateway."""
        said = _output(self._words(["port", "gateway", "7450"])).strip()
        port = said.rpartition(":")[2]
        if not port.isdecimal():
            raise StartFailed(found=f"no port of the gateway is published: {said}")
        return int(port)


def daemon_answers() -> bool:
    """Whether Docker's daemon answers within `ANSWER_S` seconds; false if Docker is missing."""
    if shutil.which("docker") is None:
        return False
    try:
        command = ["docker", "version", "--format", "{{.Server.Version}}"]
        done = subprocess.run(command, capture_output=True, timeout=ANSWER_S, check=False)
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0


def _command() -> list[str] | None:
    """The command of compose; None when compose is not installed."""
    try:
        command = ["docker", "compose", "version"]
        done = subprocess.run(command, capture_output=True, timeout=ANSWER_S, check=False)
        if done.returncode == 0:
            return ["docker", "compose"]
    except (OSError, subprocess.SubprocessError):
        pass
    found = shutil.which("docker-compose")
    return None if found is None else [found]


def _file() -> Path | None:
    """The compose file of a clone; None in an installation without the sources."""
    path = Path(__file__).resolve().parents[3] / "deploy" / "compose" / "compose.yaml"
    return path if path.is_file() else None


def _share_examples(folder: Path) -> None:
    """Copy the example programs and the task SDK to the folder that all nodes share."""
    root = Path(__file__).resolve().parents[3]
    if (root / "examples").is_dir():
        skipped = shutil.ignore_patterns("__pycache__")
        shutil.copytree(root / "examples", folder, dirs_exist_ok=True, ignore=skipped)
        sdk = folder / "yardmaster"
        sdk.mkdir(exist_ok=True)
        for name in ("__init__.py", "task.py"):
            shutil.copy(root / "libs" / "client" / "yardmaster" / name, sdk / name)


def _change_owner(path: Path, uid: int, gid: int) -> None:
    # Running processes may remove files meanwhile.
    with suppress(FileNotFoundError):
        os.chown(path, uid, gid, follow_symlinks=False)
        if path.is_dir() and not path.is_symlink():
            for inside in path.iterdir():
                _change_owner(inside, uid, gid)


def _output(words: Sequence[str]) -> str:
    """The standard output of a command."""
    done = subprocess.run(
        words, stdout=subprocess.PIPE, timeout=ANSWER_S * 3, check=False, text=True
    )
    return done.stdout


def container_state(state: Mapping[str, Any]) -> str:
    """The state of a container in a word: `healthy`, `exited 3`."""
    if state["Status"] == "exited":
        return f"exited {state['ExitCode']}"
    health = state.get("Health")
    return str(health["Status"] if health else state["Status"])
