"""What stands between the agent and a task's command, so that its exit code survives the agent.

Started by the process executor as `python -I -S runner.py DIRECTORY`, in a session of its own, with
the command, environment and working directory as JSON on stdin (an anonymous file: secrets touch no
disk). It imports the standard library alone and starts the command at most once:

1. It links its identity as `start` into the attempt's directory. Only one link can succeed: a
   second runner, or an agent that came back and gave the attempt up, wins or loses here and nowhere
   else.
2. The command's process waits in a session of its own until its identity is durable in `process`.
3. Its exit goes durably into `exit`. Orphans of the command come to the runner, which ends when
   none is left, and says so with `gone`.

After each step it rings `bell`, a FIFO on which the agent listens while it lives.

It kills nothing, but in a pool with `fence: kill`: there it holds the agent's lease (`lease`) and
kills all below it, and notes `fenced`, when that was not renewed in time. It sleeps until then and
only then looks at the note, so it costs a wake-up each time the fence would have run out.
"""

import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Final, NoReturn

PR_SET_PDEATHSIG: Final = 1
PR_SET_CHILD_SUBREAPER: Final = 36
#: Exit codes of the runner itself; the task's are in `exit`.
ALREADY_STARTED: Final = 75
BAD_SPEC: Final = 64
FENCED: Final = 69
#: The shell's: what was asked for cannot be run, is not there.
CANNOT_RUN: Final = 126
NOT_FOUND: Final = 127
#: How often, a second apart, the exit status is tried to be written to a full disk.
EXIT_WRITE_TRIES: Final = 60
#: How long after the agent should have killed the runner does: alive, the agent ends the
#: incarnation, which is not held against the tasks. Part of `core.fencing.MARGIN_S`.
LATER_S: Final = 1.0
#: Between two rounds of killing, for what was started during the last.
KILL_AGAIN_S: Final = 0.05


def identity(pid: int) -> dict[str, Any]:
    """Boot, pid and start time in clock ticks of a process that exists."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot_id = file.read().strip()
    with open(f"/proc/{pid}/stat", "rb") as stat:
        fields = stat.read().rpartition(b")")[2].split()
    return {"boot_id": boot_id, "pid": pid, "started": int(fields[19])}


def write_durably(directory: str, name: str, content: object, place: Callable[..., None]) -> None:
    """Put JSON under a name in one step: `os.link` fails when it is taken, `os.rename` replaces.

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


def ring(directory: str) -> None:
    """Let the agent look again, when one listens."""
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


class Fence:
    """The agent's lease as a runner holds it; `arm` sets the process's one timer.

    Should the runner itself be killed, its command is killed by the kernel (PR_SET_PDEATHSIG).
    """

    def __init__(self, directory: str, given: dict[str, Any]) -> None:
        self._directory = directory
        self._renewed: str = given["renewed"]
        self._incarnation: str = given["incarnation"]
        self._seconds: int = given["seconds"]
        self._acknowledged_s = float("-inf")
        self._over = False

    def left_s(self) -> float:
        """Seconds until the lease ends, as the agent noted last."""
        try:
            with open(self._renewed, encoding="ascii") as file:
                note = json.load(file)
            if note["incarnation"] == self._incarnation:
                self._acknowledged_s = float(note["acknowledged_s"])
        except (OSError, ValueError, KeyError, TypeError):
            pass  # what was known of it still holds, and ends in time
        return self._acknowledged_s + self._seconds + LATER_S - time.monotonic()

    def arm(self) -> bool:
        """Wake up at the lease's end; False when that has passed."""
        left_s = 0.0 if self._over else self.left_s()
        if left_s > 0:
            signal.setitimer(signal.ITIMER_REAL, left_s)
        return left_s > 0

    def ring(self, _signum: int, _frame: FrameType | None) -> None:
        """The timer's handler: look again, and kill when the lease was not renewed."""
        if self.arm():
            return
        ended = os.path.exists(os.path.join(self._directory, "exit"))
        if not self._over and not ended:
            try:
                with open(os.path.join(self._directory, "fenced"), "w", encoding="ascii"):
                    pass
            except OSError:
                pass  # without the note the exit is taken for the task's own
        self._over = True
        kill_children()
        signal.setitimer(signal.ITIMER_REAL, KILL_AGAIN_S)


def kill_children() -> None:
    """SIGKILL this process's children; what hangs on them comes here and is met by the next call.

    Only this process can reap its children, so no pid here is another's by now.
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


def _ignore(_signum: int, _frame: FrameType | None) -> None:
    """A handler, not SIG_IGN: an exec resets handlers, but would hand SIG_IGN down to the task."""


def _become_command(directory: str, spec: dict[str, Any], go: int, libc: ctypes.CDLL) -> NoReturn:
    """In the child: wait for the word, then turn into the command."""
    for name in ("SIGPIPE", "SIGXFSZ", "SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT"):
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    os.setsid()
    if spec.get("fence") is not None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.read(go, 1) != b"g":
        os._exit(CANNOT_RUN)
    stdin = os.open(os.devnull, os.O_RDONLY)
    appending = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    stdout = os.open(os.path.join(directory, "stdout"), appending, 0o600)
    stderr = os.open(os.path.join(directory, "stderr"), appending, 0o600)
    for source, target in ((stdin, 0), (stdout, 1), (stderr, 2)):
        os.dup2(source, target)
    command, cwd, env = spec["command"], spec["cwd"], spec["env"]
    try:
        os.chdir(cwd)
    except (OSError, ValueError) as error:
        _end_unrun(
            f"the working directory {cwd} cannot be used on this node: {_reason(error)}. "
            "Set working_dir to a directory that every node has, or leave it out",
            error,
        )
    try:
        os.execvpe(command[0], command, env)
    except (OSError, ValueError) as error:
        _end_unrun(_why_not_run(command[0], cwd, env, error), error)


def _why_not_run(program: str, cwd: str, env: dict[str, str], error: Exception) -> str:
    """What is missing for a command, and what the user can do."""
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


def _end_unrun(said: str, error: Exception) -> NoReturn:
    """Say in the task's output why its command does not run; end as a shell would."""
    os.write(2, f"yardmaster: {said}\n".encode(errors="backslashreplace"))
    os._exit(NOT_FOUND if isinstance(error, FileNotFoundError) else CANNOT_RUN)


def _write_exit(directory: str, status: int) -> None:
    code = os.waitstatus_to_exitcode(status)
    content = {"signal": -code} if code < 0 else {"exit_code": code}
    for _ in range(EXIT_WRITE_TRIES):
        try:
            write_durably(directory, "exit", content, os.rename)
        except FileNotFoundError:
            break  # the directory was removed: nobody waits for this exit
        except OSError:
            time.sleep(1)
        else:
            break
    ring(directory)


def main(directory: str) -> int:
    """Run the command of the spec on stdin, once; return when nothing of it is left."""
    for handled in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(handled, _ignore)
    try:
        spec = json.load(sys.stdin)
    except ValueError as error:
        print(f"no spec: {error}", file=sys.stderr)
        return BAD_SPEC
    # Nothing of the spec stays readable through this process's descriptors.
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        write_durably(directory, "start", {"runner": identity(os.getpid())}, os.link)
    except FileExistsError:
        return ALREADY_STARTED
    go, say = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(say)
        _become_command(directory, spec, go, libc)
    os.close(go)
    given = spec.get("fence")
    fence = None if given is None else Fence(directory, given)
    del spec
    if fence is not None:
        signal.signal(signal.SIGALRM, fence.ring)
        if not fence.arm():
            print("the node's lease had ended before it was started", file=sys.stderr)
            os.close(say)
            os.waitpid(child, 0)
            return FENCED
    write_durably(directory, "process", identity(child), os.rename)
    os.write(say, b"g")
    os.close(say)
    ring(directory)
    while True:
        try:
            pid, status = os.waitpid(-1, 0)
        except ChildProcessError:
            break
        if pid == child:
            _write_exit(directory, status)
    signal.setitimer(signal.ITIMER_REAL, 0)
    with open(os.path.join(directory, "gone"), "w", encoding="ascii"):
        return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
