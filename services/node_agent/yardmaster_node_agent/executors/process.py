"""Real commands: each replica in a session of its own under a runner that outlives the agent.

See `runner` for how a start happens at most once and how an exit is stored. The agent waits for the
runner's end with a pidfd, and for the runner's messages with the FIFO `bell`. So the agent polls
nothing and need not be the parent process: after a restart it waits in the same way. This needs
Linux 5.3 or later, for /proc, pidfd and subreaper.
"""

import asyncio
import json
import os
import signal
import stat
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter, ValidationError

from yardmaster_node_agent import runner
from yardmaster_node_agent.agent_state import Exit, ProcessIdentity, ReplicaKey
from yardmaster_node_agent.errors import ExecutorFailed
from yardmaster_node_agent.executors import procfs
from yardmaster_node_agent.executors.directory import ReplicaDirectory
from yardmaster_node_agent.executors.port import Launch, Paths, Renewal, StreamName
from yardmaster_node_agent.executors.task_user import TaskUser, open_way
from yardmaster_runtime.clock import Clock
from yardmaster_schemas.events.node_events import ExecutorKind, Isolation
from yardmaster_schemas.reasons import StartFailure

#: Seconds between two checks for processes that are alive without a runner.
SWEEP_S: Final = 0.05
#: The most rounds of SIGKILL in a sweep; a process that survives them hangs in the kernel.
SWEEP_ROUNDS: Final = 200
_RENEWAL: Final = TypeAdapter(Renewal)


class _ExitNotifier:
    """Wakes the waiting task when the runner writes to the FIFO `bell`, or ends."""

    def __init__(self, directory: ReplicaDirectory) -> None:
        self._loop = asyncio.get_running_loop()
        self._woken = asyncio.Event()
        self._pidfd = -1
        try:
            # Open for read and write: so there is never an end of file, and the runner can open it.
            flags = os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
            self._fifo = os.open(directory.path / "bell", flags)
        except OSError:
            self._fifo = -1  # the task removed it: only the end of the runner wakes the agent
        else:
            if stat.S_ISFIFO(os.fstat(self._fifo).st_mode):
                self._loop.add_reader(self._fifo, self._on_bell)

    def watch(self, pid: int) -> None:
        """Wake the waiting task when that process ends, at once if it has ended."""
        try:
            self._pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            self._woken.set()
        else:
            self._loop.add_reader(self._pidfd, self._on_process_end)

    async def wait(self) -> None:
        """Wait for the next message or the end of the process."""
        await self._woken.wait()
        self._woken.clear()

    def close(self) -> None:
        """Stop listening."""
        self._unwatch()
        if self._fifo >= 0:
            self._loop.remove_reader(self._fifo)
            os.close(self._fifo)
            self._fifo = -1

    def _on_bell(self) -> None:
        os.read(self._fifo, 4096)
        self._woken.set()

    def _on_process_end(self) -> None:
        self._unwatch()
        self._woken.set()

    def _unwatch(self) -> None:
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1


class RealProcess:
    """A replica under its runner."""

    def __init__(
        self,
        directory: ReplicaDirectory,
        runner_identity: ProcessIdentity | None,
        identity: ProcessIdentity,
        clock: Clock,
    ) -> None:
        self.identity = identity
        self._directory = directory
        self._runner = runner_identity
        self._clock = clock
        self._mark = f"YARD_STOP_FILE={directory.paths.stop_file}\0".encode()

    async def exited(self) -> Exit:
        """Wait for the exit file; if the runner ended without writing it, the exit is lost."""
        notifier = _listen(self._directory, self._runner)
        try:
            while True:
                running = self._runner is not None and procfs.alive(self._runner)
                if (found := _exit(self._directory)) is not None:
                    return replace(found, fenced=self._directory.has("fenced"))
                if not running:
                    # Without a runner, nothing would store the exit: kill the replica.
                    self.kill()
                    return Exit(signal=signal.SIGKILL, lost=True)
                await notifier.wait()
        finally:
            notifier.close()

    async def gone(self) -> None:
        """Wait for the runner's end; if the runner was killed, also for its remaining processes."""
        if self._runner is not None:
            notifier = _listen(self._directory, self._runner)
            try:
                while procfs.alive(self._runner):
                    await notifier.wait()
            finally:
                notifier.close()
            _reap(self._runner.pid)
        if self._directory.has("gone"):
            return
        while procfs.members(None, self.identity, self._mark):
            await self._clock.sleep(SWEEP_S)

    def vanished(self) -> bool:
        """Whether the runner ended without writing an exit."""
        running = self._runner is not None and procfs.alive(self._runner)
        return not running and _exit(self._directory) is None

    def is_alive(self) -> bool:
        """Whether the main process is alive."""
        return procfs.alive(self.identity)

    def signal(self, number: int) -> None:
        """Signal the group while the main process exists, so that the group id is not reused."""
        if procfs.find(self.identity) is not None:
            try:
                os.killpg(self.identity.pid, number)
            except ProcessLookupError:
                return

    def kill(self) -> None:
        """SIGKILL all present processes of the replica."""
        for seen in procfs.members(self._runner, self.identity, self._mark):
            procfs.kill(seen)

    def announce_stop(self, notice: str) -> bool:
        """Write the stop file."""
        return self._directory.announce_stop(notice)

    def checkpoint_note(self) -> bytes | None:
        """Return the checkpoint file if it changed."""
        return self._directory.checkpoint_note()

    def read_output(self, stream: StreamName, start: int, size: int) -> bytes:
        """Return bytes of an output file."""
        return self._directory.read_output(stream, start, size)

    def output_size(self, stream: StreamName) -> int:
        """Return the size of an output file."""
        return self._directory.output_size(stream)

    def bound_output(self, head: int, tail: int) -> bool:
        """Free the middle of each output file; see `ReplicaDirectory`."""
        return self._directory.bound_output(head, tail)


class ProcessExecutor:
    """Runs commands under `root`, with one directory per replica."""

    kinds = (ExecutorKind.PROCESS,)

    def __init__(self, root: Path, clock: Clock, user: TaskUser | None = None) -> None:
        self._root = root.absolute()
        self._clock = clock
        self._user = user
        self.isolation = Isolation.NONE if user is None else Isolation.USER
        #: The file of the renewal. It is next to the root, where a sweep does not remove it.
        self._renewed = self._root.with_name(self._root.name + ".renewed")

    def paths(self, key: ReplicaKey) -> Paths:
        """Return the paths in the replica's directory."""
        return self._directory(key).paths

    def renew(self, renewal: Renewal) -> None:
        """Write the renewal to a file, atomically.

        The file need not be durable, because a renewal is valid for one boot only.
        """
        draft = self._renewed.with_name(self._renewed.name + ".new")
        try:
            draft.touch(mode=0o600)
            draft.write_text(json.dumps(asdict(renewal)), encoding="ascii")
            draft.rename(self._renewed)
        except OSError as error:
            raise ExecutorFailed(replica=self._renewed, found=error) from None

    def renewal(self) -> Renewal | None:
        """Read the renewal that `renew` wrote last."""
        try:
            content = json.loads(self._renewed.read_text(encoding="ascii"))
            return _RENEWAL.validate_python(content)
        except (OSError, ValueError):
            return None

    async def start(self, launch: Launch) -> RealProcess:
        """Start the runner and wait until the command's process is known."""
        key = launch.key
        if launch.run.image is not None:
            node = launch.env.get("YARD_NODE", "the node")
            raise ExecutorFailed(
                replica=key,
                found=f"the job needs a container image, and {node} runs plain processes only",
                failure=StartFailure.NO_EXECUTOR,
            )
        directory = self._directory(key)
        try:
            open_way(self._user, self._root)
            directory.create()
            self._find_working_dir(directory, launch)
            pid = self._spawn(directory, launch)
        except (OSError, ValueError) as error:
            raise ExecutorFailed(replica=key, found=error) from None
        seen = procfs.look(pid)
        if seen is None:
            raise ExecutorFailed(replica=key, found="its runner vanished")
        identity = _identity_of(seen)
        process = await self._started(directory, identity)
        if process is None:
            directory.prevent_start()
            raise ExecutorFailed(replica=key, found=directory.last_log_line() or "its runner ended")
        return process

    async def adopt(
        self, key: ReplicaKey, known: ProcessIdentity | None = None
    ) -> RealProcess | None:
        """Find a replica by its runner's files; if there are none, prevent a later start."""
        directory = self._directory(key)
        marker = directory.read_json("start")
        if known is not None and (marker is None or not directory.has("process")):
            return RealProcess(directory, None, known, self._clock)
        if not directory.path.exists() or directory.prevent_start():
            return None
        runner_identity = _identity((directory.read_json("start") or {}).get("runner"))
        if runner_identity is None:
            return None
        return await self._started(directory, runner_identity)

    async def sweep(self) -> int:
        """Kill all processes of this root, then remove the directories.

        These are the descendants of the root's runners, and processes with a stop file of this root
        in their environment. Runners are found by their arguments, so their descendants are found
        even if the directories are gone and a command cleared its environment. A command that
        cleared its environment is not found if its runner was killed. A runner that has not
        started its command yet finds that the sweep has created `start`, and ends.
        """
        killed = 0
        found = sorted(self._root.iterdir()) if self._root.is_dir() else []
        directories = [ReplicaDirectory(path) for path in found]
        try:
            for directory in directories:
                directory.prevent_start()
        except OSError as error:
            raise ExecutorFailed(replica=self._root, found=error) from None
        mark = f"YARD_STOP_FILE={self._root}{os.sep}".encode()
        ended = [
            identity.pid
            for directory in directories
            if (identity := _identity((directory.read_json("start") or {}).get("runner")))
        ]
        for _ in range(SWEEP_ROUNDS):
            left = {seen.pid: seen for seen in procfs.members(None, None, mark)}
            runners = procfs.runners(runner.__file__, str(self._root))
            for seen in runners:
                below = procfs.members(_identity_of(seen), None, mark)
                # A runner that is stopped (SIGSTOP) does not end by itself.
                left |= {one.pid: one for one in below or [seen]}
            if not left:
                break
            ended += [seen.pid for seen in runners]
            killed += sum(procfs.kill(seen) for seen in left.values())
            await self._clock.sleep(SWEEP_S)
        else:
            raise ExecutorFailed(replica=self._root, found="some of its processes survive SIGKILL")
        for pid in dict.fromkeys(ended):
            _reap(pid)
        for directory in directories:
            directory.remove()
        return killed

    def forget(self, key: ReplicaKey) -> None:
        """Remove the directory."""
        self._directory(key).remove()

    def _directory(self, key: ReplicaKey) -> ReplicaDirectory:
        return ReplicaDirectory(self._root / str(key), self._user)

    def _find_working_dir(self, directory: ReplicaDirectory, launch: Launch) -> None:
        """Check the working directory that the job sets.

        Raises:
            ExecutorFailed: the working directory does not exist, or is no directory.
        """
        named = launch.run.working_dir
        if named is None:
            return
        try:
            found = (directory.path / "work" / named).stat()
        except PermissionError:
            return  # the command reports whether it can use the directory
        except (FileNotFoundError, NotADirectoryError):
            found = None
        if found is None or not stat.S_ISDIR(found.st_mode):
            raise ExecutorFailed(
                replica=launch.key,
                found=f"its working directory {named} is not there",
                failure=StartFailure.DIRECTORY_MISSING,
            )

    def _spawn(self, directory: ReplicaDirectory, launch: Launch) -> int:
        """Start a runner in a session of its own, with the spec of the command; return its pid."""
        run = launch.run
        if run.script is not None:
            command = ["sh", "-eu", directory.write_script(run.script)]
        else:
            command = list(run.command)
        work = directory.path / "work"
        cwd = str(work / (run.working_dir or ""))
        env = {**launch.env}
        if self._user is not None:
            env.setdefault("HOME", str(work))
        fence = {
            "renewed": str(self._renewed),
            "incarnation": launch.incarnation,
            "seconds": launch.fence_s,
        }
        spec = json.dumps(
            {
                "command": command,
                "env": env,
                "cwd": cwd,
                "user": None if self._user is None else asdict(self._user),
                "fence": None if launch.fence_s is None else fence,
            }
        )
        # The spec is an anonymous file: it is complete before the runner starts, and never on disk.
        descriptor = os.memfd_create("spec", os.MFD_CLOEXEC)
        try:
            with open(descriptor, "wb", closefd=False) as file:
                file.write(spec.encode())
            os.lseek(descriptor, 0, os.SEEK_SET)
            log = str(directory.path / "runner.log")
            writing = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            return os.posix_spawn(
                sys.executable,
                [sys.executable, "-I", "-S", runner.__file__, str(directory.path)],
                {"PATH": os.environ.get("PATH", os.defpath)},
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, descriptor, 0),
                    (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                    (os.POSIX_SPAWN_OPEN, 2, log, writing, 0o600),
                ],
                setsid=True,
                setsigmask=[],
                setsigdef=signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP},
            )
        finally:
            os.close(descriptor)

    async def _started(
        self, directory: ReplicaDirectory, runner_identity: ProcessIdentity
    ) -> RealProcess | None:
        """Wait until the runner has written which process it started; None if it ended before."""
        notifier = _listen(directory, runner_identity)
        try:
            while True:
                running = procfs.alive(runner_identity)
                identity = _identity(directory.read_json("process"))
                if identity is not None:
                    return RealProcess(directory, runner_identity, identity, self._clock)
                if not running:
                    _reap(runner_identity.pid)
                    return None
                await notifier.wait()
        finally:
            notifier.close()


def _listen(directory: ReplicaDirectory, runner_identity: ProcessIdentity | None) -> _ExitNotifier:
    """Return a notifier for a replica's runner.

    Call this before the runner's files are read, so that no change after the reading is missed.
    """
    notifier = _ExitNotifier(directory)
    if runner_identity is not None and procfs.alive(runner_identity):
        notifier.watch(runner_identity.pid)
    return notifier


def _identity_of(seen: procfs.Seen) -> ProcessIdentity:
    return ProcessIdentity(boot_id=procfs.boot_id(), pid=seen.pid, started=seen.started)


def _identity(content: object) -> ProcessIdentity | None:
    if not isinstance(content, dict):
        return None
    try:
        return ProcessIdentity(
            boot_id=str(content["boot_id"]),
            pid=int(content["pid"]),
            started=int(content["started"]),
        )
    except (KeyError, TypeError, ValueError, ValidationError):
        return None


def _exit(directory: ReplicaDirectory) -> Exit | None:
    """Return the exit in the exit file; None if it is missing, or the task damaged it."""
    content = directory.read_json("exit") or {}
    code, number = content.get("exit_code"), content.get("signal")
    if isinstance(code, int) and 0 <= code <= 255 and number is None:
        return Exit(exit_code=code)
    if isinstance(number, int) and 1 <= number <= 64 and code is None:
        return Exit(signal=number)
    return None


def _reap(pid: int) -> None:
    """Reap a runner if it is a child of this process."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return
