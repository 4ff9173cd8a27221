"""The commands of README.md and of pages in `docs`, parsed as printed and typed into terminals.

A reader has an empty home, a copy of the tree, and bash. There are two forms:

- `sh` (README.md): commands, one per line; a block of `text` after them is their output, shortened.
- `console` (pages): a line that starts with `$ ` is a command; the lines after it are its output,
  shortened. A here-document belongs to its command.

A block of another kind is an error unless the caller names the kind, so that no command stays
unchecked.
"""

import os
import queue
import re
import signal
import subprocess
import sys
import termios
import threading
import time
import tty
from collections.abc import Collection, Iterator, Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Final, NamedTuple

#: Longest that one command may take, in seconds.
COMMAND_S: Final = 240.0
#: How long the output of a killed terminal may still be read.
CLOSE_S: Final = 10.0
_FENCE: Final = re.compile(r'^\s*```(\S*)(?: title="[^"]+")?\s*$')
_PLACEHOLDER: Final = re.compile(r"(?<![\w$-])[A-Z]{2,}(?![\w=])")
_COMMENT: Final = re.compile(r"(?:^|\s)#.*$")
_HERE: Final = re.compile(r"<<'?([A-Z]+)'?")
_ID: Final = re.compile(r"(?<![\w-])(?:[0-9a-z]{12}|ID)\b")
_DIGEST: Final = re.compile(r"\b[0-9a-f]{32,}\b")
_DURATION: Final = re.compile(r"(?<!\w)(?:\d+(?:\.\d+)?(?:ms|[dhms]))+\b")
_NUMBER: Final = re.compile(r"\d+(?:\.\d+)?")
#: A path of the reader's machine, from its root or from a home folder.
_PLACE: Final = re.compile(r"(?<![\w.~])~?(?:/[\w.@+-]+)+")
#: Sequences that control a terminal, and lines that a progress display has overwritten.
_CONTROL: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[^\n]*\r(?!\n)")
#: A line of output that stands for lines left out.
_LEFT_OUT: Final = "..."


class ReadmeError(Exception):
    """A line of a page cannot be executed."""


class Command(NamedTuple):
    """A command as printed, its line in the page, and the output shown directly after it."""

    line: int
    text: str
    shown: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Block:
    """Commands of one block, and the output of all of them where it is a block of its own."""

    kind: str
    heading: str
    before: str
    commands: tuple[Command, ...]
    shown: tuple[str, ...] = ()


def blocks(text: str, others: Collection[str] = ()) -> list[Block]:
    """Every block of commands, in order; `before` is the text since the block before it.

    Blocks of the kinds in `others` are returned without commands.

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
        if fence[1] in others:
            found.append(Block(fence[1], heading, prose, ()))
            prose = ""
        elif fence[1] in ("sh", "console"):
            parse = _commands if fence[1] == "sh" else _typed
            found.append(Block(fence[1], heading, prose, tuple(parse(number, inside))))
            prose = ""
        elif fence[1] == "text":
            if not found or found[-1].kind != "sh" or found[-1].shown or prose.strip():
                raise ReadmeError(f"line {number}: output that follows no commands")
            shown = tuple(each for _, each in inside if each.strip())
            found[-1] = replace(found[-1], shown=shown)
        else:
            raise ReadmeError(f"line {number}: a block of kind {fence[1] or 'nothing'}")
    return found


def _inside(number: int, lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    for at, line in lines:
        if _FENCE.match(line):
            return
        yield at, line
    raise ReadmeError(f"line {number}: a block that does not end")


def _commands(number: int, inside: Sequence[tuple[int, str]]) -> Iterator[Command]:
    some = False
    for at, line in inside:
        if line.endswith("\\") or "<<" in line:
            raise ReadmeError(f"line {at}: a command that continues in the next line")
        if _COMMENT.sub("", line).strip():
            some = True
            yield Command(at, line.strip())
    if not some:
        raise ReadmeError(f"line {number}: a block without a command")


def _typed(number: int, inside: Sequence[tuple[int, str]]) -> Iterator[Command]:
    """The commands of a `console` block, each with its output."""
    found: list[tuple[int, list[str], list[str]]] = []
    until = None
    for at, line in inside:
        if until is not None:
            found[-1][1].append(line)
            until = None if line == until else until
        elif line.startswith("$ "):
            if line.endswith("\\"):
                raise ReadmeError(f"line {at}: a command that continues in the next line")
            found.append((at, [line.removeprefix("$ ")], []))
            here = _HERE.search(line)
            until = None if here is None else here[1]
        elif not found:
            raise ReadmeError(f"line {at}: output that follows no commands")
        elif line.strip() not in ("", _LEFT_OUT):
            found[-1][2].append(line)
    if until is not None:
        raise ReadmeError(f"line {number}: a here-document that does not end")
    if not found:
        raise ReadmeError(f"line {number}: a block without a command")
    for at, words, shown in found:
        yield Command(at, "\n".join(words), tuple(shown))


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


def with_ids(command: str, ids: Mapping[str, str]) -> str:
    """A command with the ids of the page replaced by those of this run."""
    return _ID.sub(lambda found: ids.get(found[0], found[0]), command)


def missing(
    shown: Sequence[str], printed: str, ids: MutableMapping[str, str] | None = None
) -> list[str]:
    """The lines of `shown` that were not printed in this order, ids and numbers left open.

    A line may be the beginning of a printed line. With `ids`, an id of the page stands for the same
    id of this run wherever it is shown; new ones are added to `ids`.
    """
    lines = printed.splitlines()
    lacking = []
    for line in shown:
        for number, each in enumerate(lines):
            pairs = _same(line, each, ids)
            if pairs is not None:
                if ids is not None:
                    ids.update(pairs)
                lines = lines[number + 1 :]
                break
        else:
            lacking.append(line)
    return lacking


#: How lines begin that say what is wrong or what to do.
_ADVICE: Final = ("error: ", "hint: ", "warning: ")


def unshown_advice(shown: Sequence[str], printed: str) -> list[str]:
    """The printed errors, hints and warnings that a page does not show."""
    return [
        line
        for line in printed.splitlines()
        if line.startswith(_ADVICE)
        and not any(_plain(line).startswith(_plain(each)) for each in shown)
    ]


#: A page that shows `8 details` is right about `1 detail` too.
_ONE: Final = re.compile(r"\b1 ([a-z]+)\b")


def _same(shown: str, printed: str, ids: Mapping[str, str] | None) -> dict[str, str] | None:
    """The ids of a shown line and those printed in their place; None if the lines differ."""
    counted = (printed, _ONE.sub(r"2 \1s", printed))
    if not any(_plain(each).startswith(_plain(shown)) for each in counted):
        return None
    pairs = {
        ours: theirs
        for ours, theirs in zip(_ids(shown), _ids(printed), strict=False)
        # A word of twelve letters is no id.
        if re.search(r"\d", ours)
    }
    known = {} if ids is None else ids
    return pairs if all(known.get(id_, pairs[id_]) == pairs[id_] for id_ in pairs) else None


def _ids(line: str) -> list[str]:
    return _ID.findall(_PLACE.sub("PLACE", line))


def _plain(line: str) -> str:
    line = _PLACE.sub("PLACE", line)
    line = _DURATION.sub("N", _DIGEST.sub("DIGEST", _ID.sub("ID", line)))
    return " ".join(_NUMBER.sub("N", line).split())


class Terminal:
    """A bash in which one command is typed after another; it keeps variables and its folder.

    With `columns`, commands print to a terminal of this width, else to a pipe.
    """

    def __init__(
        self, prefix: Sequence[str], env: Mapping[str, str], cwd: Path, columns: int | None = None
    ) -> None:
        self._said: queue.Queue[str | None] = queue.Queue()
        self.all = ""
        read, write = os.pipe() if columns is None else _pty(columns)
        try:
            self._shell = subprocess.Popen(
                [*prefix, "bash", "--noprofile", "--norc"],
                stdin=subprocess.PIPE,
                stdout=write,
                stderr=write,
                text=True,
                env=dict(env),
                cwd=cwd,
                start_new_session=True,
            )
        finally:
            os.close(write)
        self._output = os.fdopen(read, encoding="utf-8", errors="replace")
        self._reader = threading.Thread(target=self._read, args=(self._output,), daemon=True)
        self._reader.start()
        self._turn = 0
        #: The line that marks the end of the running command.
        self._end = ""

    def _read(self, stream: IO[str]) -> None:
        # A terminal that no process has open any more is an error to read.
        with suppress(OSError):
            for line in stream:
                self._said.put(_CONTROL.sub("", line))
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
        # No command waits for input, and none reads the next command as its input. The next command
        # finds the exit code in `$?`.
        self._shell.stdin.write(
            f"{{ {command}\n}} </dev/null\n"
            f"yard_code=$?; printf '\\n%s%s\\n' '{self._end}' $yard_code; (exit $yard_code)\n"
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
        self._send(signal.SIGINT)
        return self.until_end()

    def close(self) -> None:
        """Close the terminal and kill its processes."""
        self._send(signal.SIGKILL)
        self._shell.kill()
        self._shell.wait()
        self._reader.join(CLOSE_S)
        assert self._shell.stdin is not None
        self._shell.stdin.close()
        self._output.close()

    def _send(self, number: signal.Signals) -> None:
        for child in self._children():
            # It may end by itself before.
            with suppress(ProcessLookupError):
                os.kill(child, number)

    def _children(self) -> list[int]:
        try:
            found = Path(f"/proc/{self._shell.pid}/task/{self._shell.pid}/children").read_text()
        except OSError:
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


def _pty(columns: int) -> tuple[int, int]:
    """Both ends of a new terminal, which passes bytes on as they are."""
    read, write = os.openpty()
    tty.setraw(write)
    termios.tcsetwinsize(write, (50, columns))
    return read, write


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
