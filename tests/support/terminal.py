"""A command on a pseudo-terminal of a given size, as a user runs it."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

#: Sequences that change colors and modes, not the text.
_STYLE = re.compile(r"\x1b\[[0-9;?]*[A-Za-ln-z]|\x1b\[[0-9;]*m")
#: What `click.clear` prints before it draws the screen again.
CLEAR = "\x1b[2J"
STEP_S = 45.0


@dataclass
class Terminal:
    """A running command; all that it printed so far, with the codes of the terminal."""

    process: subprocess.Popen[bytes]
    _fd: int
    raw: str = ""

    @property
    def text(self) -> str:
        """The output without the codes of the terminal."""
        return _STYLE.sub("", self.raw).replace("\r\n", "\n")

    def frames(self) -> list[list[str]]:
        """The lines of each drawn screen; the last one may be unfinished."""
        return [
            _STYLE.sub("", frame).replace("\r\n", "\n").strip("\n").split("\n")
            for frame in self.raw.split(CLEAR)[1:]
        ]

    def until(self, words: str) -> None:
        """Read until the output contains `words`."""
        self._read(lambda: words in self.text, words)

    def until_frames(self, count: int) -> None:
        """Read until `count` screens are complete."""
        self._read(lambda: len(self.frames()) > count, f"{count} screens")

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        self.process.send_signal(signal.SIGINT)

    def end(self) -> int:
        """Read until the command ends; return its exit code."""
        self._read(lambda: False, "the end")
        return self.process.wait(timeout=STEP_S)

    def _read(self, done: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + STEP_S
        while not done():
            left = deadline - time.monotonic()
            assert left > 0, f"no {what} in {self.text!r}"
            if select.select([self._fd], [], [], left)[0]:
                try:
                    data = os.read(self._fd, 65_536)
                except OSError:  # Linux: the command has ended
                    return
                if not data:
                    return
                self.raw += data.decode(errors="replace")


@contextmanager
def on_terminal(
    args: Sequence[str], env: Mapping[str, str], *, columns: int = 80, rows: int = 24
) -> Iterator[Terminal]:
    """Run `yard ARGS` on a terminal of this size; it is killed at the end."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    clean = {key: value for key, value in env.items() if key not in ("COLUMNS", "LINES")}
    process = subprocess.Popen(
        [sys.executable, "-m", "yardmaster_cli.main", *args],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={"TERM": "xterm", **clean},
        start_new_session=True,
    )
    os.close(theirs)
    try:
        yield Terminal(process, ours)
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        process.wait()
        os.close(ours)
