"""The commands of README.md, parsed as printed and typed into terminals as a reader does.

A reader has an empty home, a copy of the tree, and bash. Blocks of `sh` are commands, one per line;
a block of `text` after them is their output, shortened. Any other block is an error, so that no
command stays unchecked.
"""

import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

#: Longest that one command may take, in seconds.
COMMAND_S: Final = 240.0
#: How long the output of a killed terminal may still be read.
CLOSE_S: Final = 10.0
_FENCE: Final = re.compile(r"^\s*```(\S*)\s*$")
_PLACEHOLDER: Final = re.compile(r"(?<![\w$-])[A-Z]{2,}(?![\w=])")
_COMMENT: Final = re.compile(r"(?:^|\s)#.*$")
_ID: Final = re.compile(r"(?<![\w-])(?:[0-9a-z]{12}|ID)\b")
_NUMBER: Final = re.compile(r"\d+(?:\.\d+)?")


class ReadmeError(Exception):
    """A line of the README cannot be executed."""


@dataclass(frozen=True, slots=True)
class Block:
    """Commands as printed, with their line in the README and the output that the README shows."""

    heading: str
    before: str
    commands: tuple[tuple[int, str], ...]
    shown: tuple[str, ...] = ()


def blocks(text: str) -> list[Block]:
    """Every block of commands, in order; `before` is the text since the block before it.

    Raises:
        ReadmeError: a block is of no known kind, not closed, or without commands; a line
            continues in the next.
    """
    found: list[Block] = []
    heading, prose = "", ""
    lines = iter(enumerate(text.splitlines(), start=1))
    for number, line in lines:
        fence = _FENCE.match(line)
        if fence is None:
            if "```" in line:
                raise ReadmeError(f"line {number}: a fence that is not alone on its line")
            if line.startswith("#"):
                heading = line.strip("# ")
            prose += line + "\n"
            continue
        inside = list(_inside(number, lines))
        if fence[1] == "sh":
            found.append(Block(heading, prose, tuple(_commands(number, inside))))
            prose = ""
        elif fence[1] == "text":
            if not found or found[-1].shown or prose.strip():
                raise ReadmeError(f"line {number}: output that follows no commands")
            last = found.pop()
            shown = tuple(each for _, each in inside if each.strip())
            found.append(Block(last.heading, last.before, last.commands, shown))
        else:
            raise ReadmeError(f"line {number}: a block of kind {fence[1] or 'nothing'}")
    return found


def _inside(number: int, lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    for at, line in lines:
        if _FENCE.match(line):
            return
        yield at, line
    raise ReadmeError(f"line {number}: a block that does not end")


def _commands(number: int, inside: Sequence[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    some = False
    for at, line in inside:
        if line.endswith("\\") or "<<" in line:
            raise ReadmeError(f"line {at}: a command that continues in the next line")
        if _COMMENT.sub("", line).strip():
            some = True
            yield at, line.strip()
    if not some:
        raise ReadmeError(f"line {number}: a block without a command")


def bare(command: str) -> str:
    """A command without its comment."""
    return re.sub(r"\s+#.*$", "", command).strip()


def filled(command: str, known: Mapping[str, str]) -> str:
    """A command with its placeholders, words in capitals, replaced.

    Raises:
        ReadmeError: a placeholder is unknown.
    """

    def value(found: re.Match[str]) -> str:
        if found[0] not in known:
            raise ReadmeError(f"{command}: nothing fills {found[0]}")
        return known[found[0]]

    comment = command[len(bare(command)) :]
    return _PLACEHOLDER.sub(value, bare(command)) + comment


def missing(shown: Sequence[str], printed: str) -> list[str]:
    """The lines of `shown` that were not printed in this order, ids and numbers left open.

    A line may be the beginning of a printed line.
    """
    lines = [_plain(line) for line in printed.splitlines()]
    lacking = []
    for line in shown:
        found = next((n for n, each in enumerate(lines) if each.startswith(_plain(line))), None)
        if found is None:
            lacking.append(line)
        else:
            lines = lines[found + 1 :]
    return lacking


def _plain(line: str) -> str:
    line = re.sub(r"(/\S+)+/(?=\.local|yard-checkpoints)", "FOLDER/", line)
    return " ".join(_NUMBER.sub("N", _ID.sub("ID", line)).split())


class Terminal:
    """A bash in which one command is typed after another; it keeps variables and its folder."""

    def __init__(self, prefix: Sequence[str], env: Mapping[str, str], cwd: Path) -> None:
        self._said: queue.Queue[str | None] = queue.Queue()
        self.all = ""
        self._shell = subprocess.Popen(
            [*prefix, "bash", "--noprofile", "--norc"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=dict(env),
            cwd=cwd,
            start_new_session=True,
        )
        assert self._shell.stdout is not None
        self._reader = threading.Thread(target=self._read, args=(self._shell.stdout,), daemon=True)
        self._reader.start()
        self._turn = 0
        #: The line that marks the end of the running command.
        self._end = ""

    def _read(self, stream: IO[str]) -> None:
        for line in stream:
            self._said.put(line)
        self._said.put(None)

    def run(self, command: str) -> tuple[int, str]:
        """Run a command to its end; return its exit code and its output on both streams."""
        self.begin(command)
        return self.until_end()

    def begin(self, command: str) -> None:
        """Type a command."""
        self._turn += 1
        self._end = f"--- {os.getpid()}.{id(self)}.{self._turn} "
        assert self._shell.stdin is not None
        # No command waits for input, and none reads the next command as its input.
        self._shell.stdin.write(
            f"{{ {command}\n}} </dev/null\nprintf '\\n%s%s\\n' '{self._end}' $?\n"
        )
        self._shell.stdin.flush()

    def until(self, pattern: str, limit_s: float = COMMAND_S) -> str:
        """Wait until the running command has printed `pattern`; return its output so far."""
        said = ""
        deadline = time.monotonic() + limit_s
        while not re.search(pattern, said, re.MULTILINE):
            line = self._line(deadline, said, pattern)
            assert not line.startswith(self._end), f"it ended without {pattern!r}:\n{said}"
            said += line
        return said

    def until_end(self, limit_s: float = COMMAND_S) -> tuple[int, str]:
        """Wait for the end of the running command."""
        said = ""
        deadline = time.monotonic() + limit_s
        while True:
            line = self._line(deadline, said, "its end")
            if line.startswith(self._end):
                return int(line.removeprefix(self._end)), said.removesuffix("\n")
            said += line

    def interrupt(self) -> tuple[int, str]:
        """Press Ctrl-C; return the exit code of the command and its output since."""
        for child in self._children():
            os.kill(child, signal.SIGINT)
        return self.until_end()

    def close(self) -> None:
        """Close the terminal and kill its processes."""
        for child in self._children():
            os.kill(child, signal.SIGKILL)
        self._shell.kill()
        self._shell.wait()
        self._reader.join(CLOSE_S)
        for stream in (self._shell.stdin, self._shell.stdout):
            assert stream is not None
            stream.close()

    def _children(self) -> list[int]:
        try:
            found = Path(f"/proc/{self._shell.pid}/task/{self._shell.pid}/children").read_text()
        except FileNotFoundError:
            return []
        return [int(pid) for pid in found.split()]

    def _line(self, deadline: float, said: str, what: str) -> str:
        try:
            line = self._said.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            raise AssertionError(f"no output matches {what!r}; it printed:\n{said}") from None
        assert line is not None, f"the shell ended; it printed:\n{said}"
        self.all += line
        return line


def clean_copy(root: Path, folder: Path) -> None:
    """Copy the tree as a clone would be: the tracked files, with local changes."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=root, stdout=subprocess.PIPE, check=True).stdout
    folder.mkdir(parents=True)
    existing = b"\0".join(n for n in names.split(b"\0") if n and (root / os.fsdecode(n)).exists())
    packed = subprocess.Popen(
        ["tar", "--create", "--null", "--files-from=-"],
        cwd=root,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    archive, _ = packed.communicate(existing)
    assert packed.returncode == 0
    subprocess.run(["tar", "--extract"], cwd=folder, input=archive, check=True)


def reader_env(home: Path, **more: str) -> dict[str, str]:
    """The environment of a reader: an empty home, the machine's caches, and its settings."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(("UV_", "PIP_", "SSL_", "YARD_UP_", "LC_"))
        or name.lower().endswith("_proxy")
        or name in ("LANG", "JAVA_TOOL_OPTIONS", "REQUESTS_CA_BUNDLE")
    }
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
    # Without the entries that the environment of the tests puts first.
    base = str(Path(sys.base_prefix) / "bin")
    here = str(Path(sys.executable).parent)
    path = [base, *(p for p in os.environ["PATH"].split(os.pathsep) if p != here)]
    return {
        **kept,
        "HOME": str(home),
        "XDG_CACHE_HOME": cache,
        "PATH": os.pathsep.join(path),
        **more,
    }
