"""A Docker engine of a test's own, which the test may kill."""

import asyncio
import io
import os
import re
import shutil
import signal
import subprocess
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from yardmaster_node_agent.executors import procfs

START_LIMIT_S = 60
#: Seconds that a test waits for a file; other work may slow a container down.
FILE_LIMIT_S = 120
#: The image of `make_image`, and what it has.
IMAGE = "shell:test"
PROGRAMS = ("sh", "sleep", "touch")


class OwnEngine:
    """`dockerd` with its own data and state in a folder, and its own network namespace."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = folder / "e.sock"
        self._state = folder / "exec"
        self._daemon: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the engine, and wait until it answers."""
        # An engine that was killed leaves files with the ids of processes that have ended.
        for left in (self.folder / "e.pid", self._state / "containerd" / "containerd.pid"):
            left.unlink(missing_ok=True)
        words: list[str | Path] = [
            # An engine without a network of its own would change that of the machine's engine.
            *("unshare", "--net", "dockerd"),
            *("--host", f"unix://{self.socket}", "--pidfile", self.folder / "e.pid"),
            *("--data-root", self.folder / "data", "--exec-root", self._state),
            *("--storage-driver", "vfs"),  # it works in any file system, and the image is small
            *("--iptables=false", "--ip-forward=false", "--ip-masq=false"),
        ]
        with (self.folder / "log").open("wb") as log:
            self._daemon = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log
            )
        deadline_s = time.monotonic() + START_LIMIT_S
        while subprocess.run(self._docker("version"), capture_output=True).returncode:
            said = (self.folder / "log").read_text()[-2000:]
            assert self._daemon.poll() is None, said
            assert time.monotonic() < deadline_s, said
            time.sleep(0.05)

    def make_image(self) -> None:
        """Make an image of the machine's shell and the few programs that the tests use.

        Each of its containers has a volume.
        """
        draft, files = io.BytesIO(), {}
        for program in PROGRAMS:
            path = shutil.which(program)
            assert path is not None, program
            files[f"/bin/{program}"] = path
            linked = subprocess.run(["ldd", path], capture_output=True, check=True, text=True)
            files |= {found: found for found in re.findall(r"(/\S+) \(0x", linked.stdout)}
        with tarfile.open(fileobj=draft, mode="w") as image:
            # The engine would create missing folders so that only root with all rights enters them.
            for folder in sorted({each for file in files for each in Path(file).parents}):
                entry = tarfile.TarInfo(str(folder))
                entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                image.addfile(entry)
            for inside, path in files.items():
                image.add(os.path.realpath(path), inside)
        made = draft.getvalue()
        words = self._docker("import", "--change", "VOLUME /volume", "-", IMAGE)
        subprocess.run(words, input=made, capture_output=True, check=True)

    def holds(self) -> dict[str, set[str]]:
        """Return the ids of all that the engine has, except images, and its mounts."""
        lists = {
            "containers": ("ps", "--all", "--quiet"),
            "networks": ("network", "ls", "--quiet"),
            "volumes": ("volume", "ls", "--quiet"),
        }
        found = {}
        for name, words in lists.items():
            listed = subprocess.run(self._docker(*words), capture_output=True, check=True)
            found[name] = set(listed.stdout.decode().split())
        mounts = (line.split()[1] for line in Path("/proc/mounts").read_text().splitlines())
        found["mounts"] = {each for each in mounts if each.startswith(f"{self.folder}/")}
        folders = self.folder / "data" / "vfs" / "dir"
        found["file systems"] = {each.name for each in folders.iterdir()}
        return found

    def log_files(self) -> int:
        """Return the number of files of the containers' output that the engine keeps."""
        return len(list((self.folder / "data" / "containers").glob("*/local-logs/container.log*")))

    def wait(self, task: str) -> None:
        """Wait until the container of a task has ended."""
        (found,) = self._ids(task)
        subprocess.run(self._docker("wait", found), capture_output=True, check=True)

    def spoil_log(self, task: str) -> None:
        """Overwrite the size of the second line in the engine's log of a task's container."""
        (found,) = self._ids(task)
        path = self.folder / "data" / "containers" / found / "local-logs" / "container.log"
        with path.open("r+b") as log:
            size = int.from_bytes(log.read(4), "big")
            log.seek(4 + size + 4)  # each entry has its size before and after it
            log.write(b"\x7f\xff\xff\xff")

    def _ids(self, task: str) -> list[str]:
        words = self._docker("ps", "--all", "--quiet", "--no-trunc", "--filter", f"name={task}")
        return subprocess.run(words, capture_output=True, check=True, text=True).stdout.split()

    def kill(self) -> None:
        """Kill the engine; its containers continue."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Stop the engine; it stops its containers."""
        self._end(signal.SIGTERM)

    def lose(self) -> None:
        """Kill the engine and its containers, as a restart of the machine does."""
        seen = {pid: one for pid in procfs.processes() if (one := procfs.look(pid)) is not None}
        mark = str(self._state).encode()
        shims = [pid for pid in seen if mark in _words(pid)]
        containers = [pid for pid, one in seen.items() if one.parent in shims]
        for pid in containers + shims:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        assert self._daemon is not None
        self._daemon.send_signal(number)
        self._daemon.wait(START_LIMIT_S)

    def _docker(self, *words: str) -> list[str]:
        return ["docker", "--host", f"unix://{self.socket}", *words]


def _words(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


async def until_there(path: Path) -> None:
    """Wait until a file exists."""
    deadline_s = time.monotonic() + FILE_LIMIT_S
    while not await asyncio.to_thread(path.exists):
        assert time.monotonic() < deadline_s, f"{path} is not there"
        await asyncio.sleep(0.01)


def can_start() -> bool:
    """Whether this machine and this user can start an engine."""
    return os.geteuid() == 0 and shutil.which("dockerd") is not None


@contextmanager
def own_engine() -> Iterator[OwnEngine]:
    """Start an engine that has the image `IMAGE`; kill it at the end."""
    with TemporaryDirectory(prefix="yard-engine-", ignore_cleanup_errors=True) as folder:
        engine = OwnEngine(Path(folder))
        engine.start()
        try:
            engine.make_image()
            yield engine
        finally:
            engine.lose()
            for line in Path("/proc/mounts").read_text().splitlines():
                if (mounted := line.split()[1]).startswith(f"{folder}/"):
                    subprocess.run(["umount", "--lazy", mounted], check=False)
