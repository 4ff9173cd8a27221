"""Real commands: each replica in a session of its own under a runner that outlives the agent.

A replica is prepared when its directory is complete. See `runner` for how a start happens at most
once, how an exit is stored and how the lease is enforced. The agent waits for the
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
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

from yardmaster_node_agent import runner
from yardmaster_node_agent.agent_state import Exit, ReplicaKey
from yardmaster_node_agent.errors import ExecutorFailed
from yardmaster_node_agent.executors import procfs
from yardmaster_node_agent.executors.cgroups import Cgroups, Group
from yardmaster_node_agent.executors.directory import ReplicaDirectory
from yardmaster_node_agent.executors.port import (
    Capabilities,
    Launch,
    OnProgress,
    Paths,
    Phase,
    ReplicaFound,
)
from yardmaster_node_agent.executors.procfs import ProcessIdentity
from yardmaster_node_agent.executors.task_user import TaskUsers, open_way
from yardmaster_runtime.clock import Clock
from yardmaster_schemas.events.details import Run
from yardmaster_schemas.events.node_events import ExecutorKind, Isolation, RunIdentity, RunKind
from yardmaster_schemas.reasons import StartFailure

#: Seconds between two checks for processes that are alive without a runner.
SWEEP_S: Final = 0.05
#: The most rounds of SIGKILL in a sweep; a process that survives them hangs in the kernel.
SWEEP_ROUNDS: Final = 200


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


class ProcessExecution:
    """A replica under its runner."""

    def __init__(
        self,
        directory: ReplicaDirectory,
        runner_identity: ProcessIdentity | None,
        main: ProcessIdentity,
        clock: Clock,
    ) -> None:
        self.identity = RunIdentity.of_process(main.pid, main.started, main.boot_id)
        self._main = main
        self.files = directory
        self._runner = runner_identity
        self._clock = clock
        self._mark = f"YARD_STOP_FILE={directory.paths.stop_file}\0".encode()
        user = directory.user
        #: The user that runs nothing but this replica.
        self._own_uid = None if user is None or user.shared else user.uid

    async def exited(self) -> Exit:
        """Wait for the exit file; if the runner ended without writing it, the exit is lost."""
        notifier = _listen(self.files, self._runner)
        try:
            while True:
                running = self._runner is not None and procfs.alive(self._runner)
                if (found := _exit(self.files)) is not None:
                    return replace(found, fenced=self.files.has("fenced"))
                if not running:
                    # Without a runner, nothing would store the exit: kill the replica.
                    await self.kill()
                    return Exit(signal=signal.SIGKILL, lost=True)
                await notifier.wait()
        finally:
            notifier.close()

    async def gone(self) -> None:
        """Wait for the runner's end; if the runner was killed, also for its remaining processes."""
        if self._runner is not None:
            notifier = _listen(self.files, self._runner)
            try:
                while procfs.alive(self._runner):
                    await notifier.wait()
            finally:
                notifier.close()
            _reap(self._runner.pid)
        if self.files.has("gone"):
            return
        group = Group.of(self.files)
        while self._members(None) or group.processes():
            await self._clock.sleep(SWEEP_S)
        group.remove()

    def found(self) -> ReplicaFound:
        """Return whether it runs."""
        running = self._runner is not None and procfs.alive(self._runner)
        if procfs.alive(self._main) or (running and _exit(self.files) is None):
            return ReplicaFound(Phase.RUNNING, self)
        return ReplicaFound(Phase.ENDED, self, exit_lost=_exit(self.files) is None)

    async def signal(self, number: int) -> None:
        """Signal the group while the main process exists, so that the group id is not reused."""
        if procfs.find(self._main) is not None:
            try:
                os.killpg(self._main.pid, number)
            except ProcessLookupError:
                return

    async def kill(self) -> None:
        """SIGKILL all present processes of the replica."""
        Group.of(self.files).kill()
        for seen in self._members(self._runner):
            procfs.kill(seen)

    def _members(self, runner_identity: ProcessIdentity | None) -> list[procfs.Seen]:
        """Return its living processes, also those that only its user shows to be its own."""
        found = procfs.members(runner_identity, self._main, self._mark)
        if self._own_uid is not None:
            known = {seen.pid for seen in found}
            users = range(self._own_uid, self._own_uid + 1)
            found += [seen for seen in procfs.of_users(users) if seen.pid not in known]
        return found


class ProcessExecutor:
    """Runs commands under `root`, with one directory per replica."""

    def __init__(
        self,
        root: Path,
        clock: Clock,
        users: TaskUsers | None = None,
        *,
        renewed: Path,
        cgroups: Cgroups | None = None,
    ) -> None:
        """`renewed` is the file of the lease's renewals (see `renewals`).

        `users` are those of the replicas; without them, replicas run as the agent's own user.
        `cgroups` limit the replicas; without them, nothing does.
        """
        self._cgroups = cgroups
        self._root = root.absolute()
        self._clock = clock
        self._users = users
        self._renewed = renewed.absolute()

    async def capabilities(self) -> Capabilities:
        """Return that it runs processes, each of a user of its own or all of the agent's."""
        return Capabilities(
            kinds=(ExecutorKind.PROCESS,),
            isolation=Isolation.NONE if self._users is None else Isolation.USER,
        )

    def paths(self, key: ReplicaKey, run: Run) -> Paths:
        """Return the paths in the replica's directory."""
        return self._directory(key).paths

    async def fetch(self, launch: Launch, on_progress: OnProgress) -> Launch:
        """Return the launch: the files of a process are on the machine."""
        return launch

    async def prepare(self, launch: Launch) -> None:
        """Create the replica's directory."""
        key = launch.key
        if launch.run.image is not None:
            node = launch.env.get("YARD_NODE", "the node")
            raise ExecutorFailed(
                replica=key,
                found=f"the job needs a container image, and {node} runs plain processes only",
                failure=StartFailure.NO_EXECUTOR,
            )
        if self._users is not None and launch.user is None:
            raise ExecutorFailed(replica=key, found="it has no user, and must not run as the agent")
        directory = self._directory(key)
        try:
            open_way(self._root, others=launch.user is not None)
            if not directory.exists:
                directory.create(launch.run.script, launch.user)
            self._find_working_dir(directory, launch)
        except (OSError, ValueError) as error:
            raise ExecutorFailed(replica=key, found=error) from None

    async def start(self, launch: Launch) -> ProcessExecution:
        """Start the runner and wait until the command's process is known."""
        key, directory = launch.key, self._directory(launch.key)
        found: object = "its runner ended"
        if not directory.has("start"):
            try:
                pid = self._spawn(directory, launch)
            except (OSError, ValueError) as error:
                found = error
            else:
                if (seen := procfs.look(pid)) is not None:
                    await self._until_started(directory, _identity_of(seen))
                _reap(pid)
        # If an earlier agent process was killed in its start, its runner may have been faster.
        execution = await self._started(directory)
        if execution is None:
            with suppress(FileNotFoundError):
                directory.prevent_start()
            Group.of(directory).remove()
            raise ExecutorFailed(replica=key, found=directory.last_log_line() or found)
        return execution

    async def find(self, key: ReplicaKey, known: RunIdentity | None = None) -> ReplicaFound:
        """Find a replica by its runner's files."""
        if known is not None and known.kind is not RunKind.PROCESS:
            return ReplicaFound(Phase.UNKNOWN)
        directory = self._directory(key)
        if known is not None:
            # This holds also if the task has damaged or removed its directory.
            main = _process_of(known)
            return ProcessExecution(directory, _runner_of(directory), main, self._clock).found()
        if not directory.exists:
            return ReplicaFound(Phase.ABSENT)
        if not directory.has("start"):
            return ReplicaFound(Phase.PREPARED)
        execution = await self._started(directory)
        return ReplicaFound(Phase.ABSENT) if execution is None else execution.found()

    async def withdraw(self, key: ReplicaKey) -> ProcessExecution | None:
        """Create the file `start`, unless a runner was faster."""
        directory = self._directory(key)
        if not directory.exists or directory.prevent_start():
            return None
        return await self._started(directory)

    async def sweep(self) -> int:
        """Kill all processes of this root, then remove the directories.

        These are the descendants of the root's runners, the processes in the groups of replicas,
        and processes with a stop file of this root in their environment. Runners are found by their
        arguments, so their descendants are found even if the directories are gone and a command
        cleared its environment. A command that cleared its environment is not found if its runner
        was killed, unless it has a group or a user of its own: nothing else may run as the users of
        this node. A runner that has not started its command yet finds that the sweep has created
        `start`, and ends.
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
        groups = self._all_groups(directories)
        ended = [identity.pid for directory in directories if (identity := _runner_of(directory))]
        for _ in range(SWEEP_ROUNDS):
            left = {seen.pid: seen for seen in procfs.members(None, None, mark)}
            left |= {seen.pid: seen for seen in groups.processes()}
            if self._users is not None:
                left |= {seen.pid: seen for seen in procfs.of_users(self._users.ids)}
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
        groups.remove()
        for directory in directories:
            directory.remove()
        return killed

    def _all_groups(self, directories: Iterable[ReplicaDirectory]) -> Group:
        """Return the groups of directories, and those whose directories are gone, as one."""
        found = [folder for directory in directories for folder in Group.of(directory).folders]
        left = () if self._cgroups is None else self._cgroups.left().folders
        return Group(tuple(dict.fromkeys([*found, *left])))

    async def forget(self, key: ReplicaKey) -> bool:
        """Remove the group and the directory, which stays if something is in the group."""
        directory = self._directory(key)
        return Group.of(directory).remove() and directory.remove()

    def _directory(self, key: ReplicaKey) -> ReplicaDirectory:
        return ReplicaDirectory(self._root / str(key), apart=self._users is not None)

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
            command = ["sh", "-eu", str(directory.script_path)]
        else:
            command = list(run.command)
        work = directory.path / "work"
        cwd = str(work / (run.working_dir or ""))
        env = {**launch.env}
        if launch.user is not None:
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
                "user": None if launch.user is None else asdict(launch.user),
                "fence": None if launch.fence_s is None else fence,
                "groups": self._make_group(directory, launch),
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

    def _make_group(self, directory: ReplicaDirectory, launch: Launch) -> list[str]:
        """Make the group that limits a replica; return its folders. Raises: OSError."""
        Group.of(directory).remove()  # an earlier agent process may have made another one
        if self._cgroups is None:
            return []
        self._cgroups.group(launch.key).note(directory)
        limits = {"memory_mib": launch.memory_mib, "cpu_milli": launch.cpu_milli}
        return [str(folder) for folder in self._cgroups.make(launch.key, **limits).folders]

    async def _started(self, directory: ReplicaDirectory) -> ProcessExecution | None:
        """Return the execution of the runner that created `start`; None if it started nothing."""
        runner_identity = _runner_of(directory)
        if runner_identity is None:
            return None
        await self._until_started(directory, runner_identity)
        main = _identity(directory.read_json("process"))
        if main is None:
            return None
        return ProcessExecution(directory, runner_identity, main, self._clock)

    async def _until_started(
        self, directory: ReplicaDirectory, runner_identity: ProcessIdentity
    ) -> None:
        """Wait until it is known which process was started, or that runner has ended."""
        notifier = _listen(directory, runner_identity)
        try:
            while True:
                running = procfs.alive(runner_identity)
                if _identity(directory.read_json("process")) is not None or not running:
                    return
                await notifier.wait()
        finally:
            notifier.close()


def _runner_of(directory: ReplicaDirectory) -> ProcessIdentity | None:
    """Return the identity of the runner that created `start`; None if none did."""
    return _identity((directory.read_json("start") or {}).get("runner"))


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


def _process_of(identity: RunIdentity) -> ProcessIdentity:
    """Return the identity of a process from the ledger's."""
    pid, _, started = identity.id.partition("-")
    return ProcessIdentity(boot_id=identity.host, pid=int(pid), started=int(started))


def _identity(content: object) -> ProcessIdentity | None:
    if not isinstance(content, dict):
        return None
    try:
        return ProcessIdentity(
            boot_id=str(content["boot_id"]),
            pid=int(content["pid"]),
            started=int(content["started"]),
        )
    except (KeyError, TypeError, ValueError):
        return None


def _exit(directory: ReplicaDirectory) -> Exit | None:
    """Return the exit in the exit file; None if it is missing, or the task damaged it."""
    content = directory.read_json("exit") or {}
    code, number = content.get("exit_code"), content.get("signal")
    exceeded = content.get("out_of_memory") is True
    if isinstance(code, int) and 0 <= code <= 255 and number is None:
        return Exit(exit_code=code, out_of_memory=exceeded)
    if isinstance(number, int) and 1 <= number <= 64 and code is None:
        return Exit(signal=number, out_of_memory=exceeded)
    return None


def _reap(pid: int) -> None:
    """Reap a runner if it is a child of this process."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return
