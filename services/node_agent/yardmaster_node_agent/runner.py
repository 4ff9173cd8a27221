"""The runner: the parent process of a task's command, which stores the exit code for the agent.

The command and its exit code survive the end of the agent, because the runner does not need the
agent.

Started by the process executor as `python -I -S runner.py DIRECTORY`, in a session of its own, with
the command, environment and working directory as JSON on stdin (an anonymous file: secrets touch no
disk). It imports the standard library alone and starts the command at most once:

1. It links its identity as `start` into the attempt's directory. Only one link can succeed, so
   this step alone decides between two runners, and between a runner and an agent that prevents the
   start.
2. The command's process waits in a session of its own until its identity is durable in `process`.
3. The runner writes the exit durably to `exit`. Orphans of the command become children of the
   runner. When none is left, and nothing else runs as the user of the command, it creates `gone`
   and ends.

After each step it writes to `bell`, a FIFO that wakes the agent if the agent is alive.

Where the spec names control groups (see `cgroups`), it moves the command to them before it starts,
notes in `exit` if the kernel killed a process there that exceeded the memory, and removes them at
the end.

It kills processes only in a pool with `fence: kill`: if the agent's lease (`lease`) was not renewed
in time, it kills all its descendants and creates `fenced`. It sleeps until the lease would expire
and only then reads the renewal, so it wakes up once per fence time.
"""

import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any, Final, NoReturn

PR_SET_PDEATHSIG: Final = 1
PR_SET_CHILD_SUBREAPER: Final = 36
PR_SET_NO_NEW_PRIVS: Final = 38
#: The task's oom_score_adj: when memory is short, the kernel treats a task as if it used this many
#: thousandths of the memory more than it does.
TASK_OOM_SCORE: Final = 500
TASK_UMASK: Final = 0o007
#: Attempts to end what runs as a user.
END_USER_TRIES: Final = 100
#: Folders in which all users may create files.
SHARED_FOLDERS: Final = ("/tmp", "/var/tmp", "/dev/shm", "/dev/mqueue")
IPC_RMID: Final = 0
#: Exit codes of the runner itself; the exit code of the task is in the file `exit`.
ALREADY_STARTED: Final = 75
BAD_SPEC: Final = 64
FENCED: Final = 69
NOT_ENDED: Final = 70
NOT_LIMITED: Final = 71
#: The shell's exit codes for a command that cannot be run, and for one that does not exist.
CANNOT_RUN: Final = 126
NOT_FOUND: Final = 127
#: Attempts, one per second, to write the exit status to a full disk.
EXIT_WRITE_TRIES: Final = 60
#: Seconds by which the runner kills later than the agent. An agent that is alive thus ends the
#: incarnation first, which does not count as a failure of the tasks. Part of
#: `core.fencing.MARGIN_S`.
LATER_S: Final = 1.0
#: Seconds between two rounds of SIGKILL, for processes that started during the last round.
KILL_AGAIN_S: Final = 0.05


def identity(pid: int) -> dict[str, Any]:
    """Return boot, pid and start time (clock ticks) of an existing process."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot_id = file.read().strip()
    with open(f"/proc/{pid}/stat", "rb") as stat:
        fields = stat.read().rpartition(b")")[2].split()
    return {"boot_id": boot_id, "pid": pid, "started": int(fields[19])}


def write_durably(directory: str, name: str, content: object, place: Callable[..., None]) -> None:
    """Create a file atomically: `os.link` fails if the name exists, `os.rename` replaces the file.

    Raises:
        FileExistsError: with `os.link`.
        OSError.
    """
    draft = os.path.join(directory, f".{name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, json.dumps(content).encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    try:
        place(draft, os.path.join(directory, name))
    finally:
        if place is os.link:
            os.unlink(draft)
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def wake_agent(directory: str) -> None:
    """Wake the agent if it listens."""
    try:
        descriptor = os.open(os.path.join(directory, "bell"), os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return
    try:
        os.write(descriptor, b".")
    except OSError:
        pass
    finally:
        os.close(descriptor)


class LeaseFence:
    """Enforces the agent's lease in the runner; `arm` sets the only timer of the process.

    If the runner itself is killed, the kernel kills its command (PR_SET_PDEATHSIG).
    """

    def __init__(self, directory: str, given: dict[str, Any]) -> None:
        self._directory = directory
        self._renewed: str = given["renewed"]
        self._incarnation: str = given["incarnation"]
        self._seconds: int = given["seconds"]
        self._acknowledged_s = float("-inf")
        self._over = False

    def left_s(self) -> float:
        """Read the agent's last renewal; return the seconds until the runner must kill."""
        try:
            with open(self._renewed, encoding="ascii") as file:
                note = json.load(file)
            if note["incarnation"] == self._incarnation:
                self._acknowledged_s = float(note["acknowledged_s"])
        except (OSError, ValueError, KeyError, TypeError):
            pass  # the last renewal that was read still counts, and expires in time
        return self._acknowledged_s + self._seconds + LATER_S - time.monotonic()

    def arm(self) -> bool:
        """Set the timer to the end of the lease; return False if the lease has ended."""
        left_s = 0.0 if self._over else self.left_s()
        if left_s > 0:
            signal.setitimer(signal.ITIMER_REAL, left_s)
        return left_s > 0

    def on_alarm(self, _signum: int, _frame: FrameType | None) -> None:
        """Handle the timer: if the lease was not renewed, create `fenced` and kill all children.

        The timer is then set again, because the killed processes may leave children.
        """
        if self.arm():
            return
        ended = os.path.exists(os.path.join(self._directory, "exit"))
        if not self._over and not ended:
            try:
                with open(os.path.join(self._directory, "fenced"), "w", encoding="ascii"):
                    pass
            except OSError:
                pass  # without the file the exit counts as the task's own
        self._over = True
        kill_children()
        signal.setitimer(signal.ITIMER_REAL, KILL_AGAIN_S)


def kill_children() -> None:
    """SIGKILL the children of this process.

    This process then becomes the parent of the grandchildren, and the next call kills these. Only
    this process can reap its children, so no other process can reuse their pids meanwhile.
    """
    own = str(os.getpid()).encode()
    for entry in os.listdir("/proc"):
        if not entry.isdecimal():
            continue
        try:
            with open(f"/proc/{entry}/stat", "rb") as stat:
                parent = stat.read().rpartition(b")")[2].split()[1]
            if parent == own:
                os.kill(int(entry), signal.SIGKILL)
        except (OSError, IndexError):
            continue  # it ended meanwhile


def _offer_to_oom_killer() -> None:
    """Make the kernel kill the task, not its runner or the agent, when memory is short.

    The runner can then report the exit. If the kernel killed the runner, the exit would be lost.
    """
    path = "/proc/self/oom_score_adj"
    try:
        with open(path, "r+", encoding="ascii") as file:
            if int(file.read()) < TASK_OOM_SCORE:
                file.seek(0)
                file.write(str(TASK_OOM_SCORE))
    except (OSError, ValueError):
        pass  # a container may have a read-only /proc


def _ignore(_signum: int, _frame: FrameType | None) -> None:
    """Ignore a signal. An exec resets a handler, but the task would inherit SIG_IGN."""


def _exec_command(directory: str, spec: dict[str, Any], go: int, libc: ctypes.CDLL) -> NoReturn:
    """In the child: wait until the runner writes to `go`, then exec the command."""
    for name in ("SIGPIPE", "SIGXFSZ", "SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT"):
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    os.setsid()
    _offer_to_oom_killer()
    runner = os.getppid()
    if os.read(go, 1) != b"g":
        os._exit(CANNOT_RUN)
    stdin = os.open(os.devnull, os.O_RDONLY)
    appending = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    stdout = os.open(os.path.join(directory, "stdout"), appending, 0o600)
    stderr = os.open(os.path.join(directory, "stderr"), appending, 0o600)
    for source, target in ((stdin, 0), (stdout, 1), (stderr, 2)):
        os.dup2(source, target)
    if spec.get("user") is not None:
        _become(spec["user"], libc)
    if spec.get("fence") is not None:
        # Set the signal again: the change of the user has cleared it.
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != runner:
            os._exit(CANNOT_RUN)
    command, cwd, env = spec["command"], spec["cwd"], spec["env"]
    try:
        os.chdir(cwd)
    except (OSError, ValueError) as error:
        _exit_not_run(
            f"the working directory {cwd} cannot be used on this node: {_reason(error)}. "
            "Set working_dir to a directory that every node has, or leave it out",
            error,
        )
    try:
        os.execvpe(command[0], command, env)
    except (OSError, ValueError) as error:
        _exit_not_run(_explain_not_run(command[0], cwd, env, error), error)


def _become(user: dict[str, Any], libc: ctypes.CDLL) -> None:
    """Change to another user; this process and its programs can never get other rights again.

    New files are closed to others. The group is the user's own, unless a folder gives them another.
    """
    os.umask(TASK_UMASK)
    os.setgroups(user["groups"])
    os.setresgid(user["gid"], user["gid"], user["gid"])
    os.setresuid(user["uid"], user["uid"], user["uid"])
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def end_user(user: dict[str, Any], libc: ctypes.CDLL) -> bool:
    """Kill all that runs as the user, and remove what it left outside of its folders.

    A child does this as the user itself. So its one signal reaches all processes of the user, also
    while they fork, and no link can lead it to what belongs to others. Return False if it did not
    end by itself: a process of the user may kill it first.
    """
    for _ in range(END_USER_TRIES):
        child = os.fork()
        if child == 0:
            done = 1
            try:
                _become(user, libc)
                with suppress(ProcessLookupError):  # nothing of the user runs
                    os.kill(-1, signal.SIGKILL)
                done = 0
                _remove_files_of(user["uid"])
                _remove_ipc_of(user["uid"], libc)
            finally:
                if sys.exc_info()[0] is not None:
                    sys.excepthook(*sys.exc_info())
                os._exit(done)
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0:
            return True
    return False


def _remove_files_of(uid: int) -> None:
    """Remove what a user has directly in the folders that all users may write to."""
    for folder in SHARED_FOLDERS:
        try:
            entries = list(os.scandir(folder))
        except OSError:
            continue
        for entry in entries:
            with suppress(OSError):
                if entry.stat(follow_symlinks=False).st_uid == uid:
                    _remove(entry.path)


def _remove(path: str) -> None:
    """Remove a file, or a folder with all that the user may remove in it; follow no link.

    This needs no module of Python's library: its folder may be closed to the user.
    """
    if os.path.islink(path) or not os.path.isdir(path):
        os.unlink(path)
        return
    for parent, folders, files in os.walk(path, topdown=False):
        for name in (*folders, *files):
            inside = os.path.join(parent, name)
            with suppress(OSError):
                if os.path.isdir(inside) and not os.path.islink(inside):
                    os.rmdir(inside)
                else:
                    os.unlink(inside)
    os.rmdir(path)


def _remove_ipc_of(uid: int, libc: ctypes.CDLL) -> None:
    """Remove the shared memory, message queues and semaphores of System V that a user owns.

    This needs no module of Python's library either, so no codec but that of UTF-8.
    """
    for kind, number in (("shm", "shmid"), ("msg", "msqid"), ("sem", "semid")):
        try:
            with open(f"/proc/sysvipc/{kind}", "rb") as file:
                names, *rows = [line.decode().split() for line in file]
        except (OSError, ValueError):
            continue
        for row in rows:
            found = dict(zip(names, map(int, row), strict=True))
            if found["uid"] != uid:
                continue
            if kind == "shm":
                libc.shmctl(found[number], IPC_RMID, None)
            elif kind == "msg":
                libc.msgctl(found[number], IPC_RMID, None)
            else:
                libc.semctl(found[number], 0, IPC_RMID)


def _explain_not_run(program: str, cwd: str, env: dict[str, str], error: Exception) -> str:
    """Return why a command cannot run, and what the user can do."""
    if isinstance(error, PermissionError):
        return (
            f"cannot run {program}: {_reason(error)}. "
            "Make it executable (chmod +x), or name its interpreter before it"
        )
    if not isinstance(error, FileNotFoundError):
        return f"cannot run {program!r}: {_reason(error)}"
    if "/" not in program:
        path = env.get("PATH", os.defpath)
        return (
            f"cannot run {program}: this node has no such program in PATH ({path}). "
            "Install it on the nodes, give its full path, or set PATH in the job's env"
        )
    if os.path.exists(program):
        return f"cannot run {program}: this node lacks the interpreter that its first line names"
    return (
        f"cannot run {program}: this node has no such file (the working directory is {cwd}). "
        "Put it where every node has it, or correct the path"
    )


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _exit_not_run(text: str, error: Exception) -> NoReturn:
    """Write to the task's output why its command does not run; exit with the code of a shell."""
    os.write(2, f"yardmaster: {text}\n".encode(errors="backslashreplace"))
    os._exit(NOT_FOUND if isinstance(error, FileNotFoundError) else CANNOT_RUN)


def _enter(groups: list[str], pid: int) -> bool:
    """Move a process to control groups; return False if that failed."""
    try:
        for group in groups:
            with open(os.path.join(group, "cgroup.procs"), "w", encoding="ascii") as file:
                file.write(str(pid))
    except OSError as error:
        print(f"its limits cannot be set: {error}", file=sys.stderr)
        return False
    return True


def _exceeded_memory(groups: list[str]) -> bool:
    """Whether the kernel killed a process of control groups because memory was short."""
    for group in groups:
        for name in ("memory.events", "memory.oom_control"):
            try:
                with open(os.path.join(group, name), encoding="ascii") as file:
                    counts = dict(line.split() for line in file)
            except (OSError, ValueError):
                continue  # the group is of another controller or version
            if counts.get("oom_kill", "0") != "0":
                return True
    return False


def _remove_groups(groups: list[str]) -> None:
    """Remove control groups; the agent removes what is left."""
    for group in groups:
        for path, _, _ in os.walk(group, topdown=False):
            try:
                os.rmdir(path)
            except OSError:
                break


def _write_exit(directory: str, status: int, groups: list[str]) -> None:
    code = os.waitstatus_to_exitcode(status)
    content: dict[str, int | bool] = {"signal": -code} if code < 0 else {"exit_code": code}
    if code != 0 and _exceeded_memory(groups):
        content["out_of_memory"] = True
    for _ in range(EXIT_WRITE_TRIES):
        try:
            write_durably(directory, "exit", content, os.rename)
        except FileNotFoundError:
            break  # the directory was removed, so no agent waits for this exit
        except OSError:
            time.sleep(1)
        else:
            break
    wake_agent(directory)


def main(directory: str) -> int:
    """Run the command of the spec on stdin at most once; return when all its processes ended."""
    for handled in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(handled, _ignore)
    try:
        spec = json.load(sys.stdin)
    except ValueError as error:
        print(f"no spec: {error}", file=sys.stderr)
        return BAD_SPEC
    # The spec has secrets: no descriptor of this process may stay open on it.
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        write_durably(directory, "start", {"runner": identity(os.getpid())}, os.link)
    except FileExistsError:
        return ALREADY_STARTED
    go, start = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(start)
        _exec_command(directory, spec, go, libc)
    os.close(go)
    given, user, groups = spec.get("fence"), spec.get("user"), spec.get("groups", [])
    fence = None if given is None else LeaseFence(directory, given)
    del spec
    if not _enter(groups, child):
        os.close(start)
        os.waitpid(child, 0)
        return NOT_LIMITED
    if fence is not None:
        signal.signal(signal.SIGALRM, fence.on_alarm)
        if not fence.arm():
            print("the node's lease had ended before it was started", file=sys.stderr)
            os.close(start)
            os.waitpid(child, 0)
            return FENCED
    write_durably(directory, "process", identity(child), os.rename)
    os.write(start, b"g")
    os.close(start)
    wake_agent(directory)
    while True:
        try:
            pid, status = os.waitpid(-1, 0)
        except ChildProcessError:
            break
        if pid == child:
            _write_exit(directory, status, groups)
    signal.setitimer(signal.ITIMER_REAL, 0)
    if user is not None and not user["shared"] and not end_user(user, libc):
        return NOT_ENDED  # the agent kills what is left
    _remove_groups(groups)
    with open(os.path.join(directory, "gone"), "w", encoding="ascii"):
        return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
