"""A reader who types the commands of a page into terminals, and compares what they print."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.netns import Network
from tests.support.readme import (
    Block,
    Command,
    ReadmeError,
    Terminal,
    bare,
    filled,
    missing,
    unshown_advice,
    with_ids,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exceptions:
    """The commands that a reader does not simply run to their end."""

    #: Not typed.
    not_run: Sequence[str] = ()
    #: Commands that follow until Ctrl-C, and the pattern of a line that each prints before.
    follows: Mapping[str, str] = field(default_factory=dict)
    #: Commands that run until Ctrl-C in a separate terminal, and the pattern of the line that each
    #: prints when it is up.
    stays: Mapping[str, str] = field(default_factory=dict)
    #: Commands of `stays`, and the command before which the text says to end each.
    ends_before: Mapping[str, str] = field(default_factory=dict)
    #: Commands that the test has started already, and what each of them printed.
    running: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Reader:
    """A reader in a copy of the tree; `folder` has it as `yardmaster`."""

    folder: Path
    network: Network
    env: Mapping[str, str]
    exceptions: Exceptions
    #: The width of the terminals; None: commands print to a pipe.
    columns: int | None = None
    #: Typed into each terminal before the first command of the page.
    preamble: str | None = None
    terminals: list[Terminal] = field(default_factory=list)
    staying: dict[str, Terminal] = field(default_factory=dict)
    #: The value of each placeholder.
    known: dict[str, str] = field(default_factory=dict)
    #: The id of this run for each id of the page.
    ids: dict[str, str] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)
    took_s: list[tuple[float, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._open()

    @property
    def tree(self) -> Path:
        return self.folder / "yardmaster"

    @property
    def data(self) -> Path:
        return Path(self.env["HOME"]) / ".local" / "share" / "yardmaster"

    def _open(self) -> None:
        terminal = Terminal(self.network.prefix, self.env, self.tree, self.columns)
        self.terminals.append(terminal)
        if self.preamble is not None:
            code, said = terminal.run(self.preamble)
            assert code == 0, said

    def read(self, page: str, found: Sequence[Block]) -> None:
        """Type all commands of these blocks of a page; check each against the page."""
        for block in found:
            printed = ""
            for number, command in enumerate(block.commands):
                began = time.monotonic()
                where = f"{page}:{command.line}: {command.text}"
                following = block.commands[number + 1 : number + 2]
                try:
                    said = self._type(command, block, checks_code(following))
                except (AssertionError, ReadmeError) as error:
                    raise AssertionError(f"{where}\n{error}") from error
                self.took_s.append((time.monotonic() - began, bare(command.text)))
                printed += said
                if bare(command.text) not in self.exceptions.not_run:
                    check(where, command.shown, said, self.ids)
                    if block.kind == "console":
                        unshown = unshown_advice(command.shown, said)
                        assert unshown == [], f"{where}: printed but not shown: {unshown}"
            if block.shown:
                check(f"{page}:{block.commands[0].line}", block.shown, printed, None)

    def _type(self, command: Command, block: Block, may_fail: bool) -> str:
        plain = bare(command.text)
        self.seen.add(plain)
        exceptions = self.exceptions
        if plain in exceptions.not_run:
            return ""
        if plain in exceptions.running:
            return exceptions.running[plain]
        for name, before in exceptions.ends_before.items():
            if plain == before and name in self.staying:
                self._end(name)
        terminal = self.terminals[-1]
        if plain in exceptions.stays:
            terminal.begin(command.text)
            said = terminal.until(exceptions.stays[plain])
            self.staying[plain] = terminal
            self._open()
            return said
        if plain in exceptions.follows:
            terminal.begin(command.text)
            said = terminal.until(exceptions.follows[plain])
            code, rest = terminal.interrupt()
            assert code in (0, 130), f"after Ctrl-C it ended with {code}:\n{said}{rest}"
            return said + rest
        in_page = block.kind == "console"
        typed = with_ids(command.text, self.ids) if in_page else filled(command.text, self.known)
        code, said = terminal.run(typed)
        if plain == "echo $?":
            assert said.split() == [*command.shown], f"the exit code was {said}"
        elif any(line.startswith("error: ") for line in command.shown):
            assert code != 0, f"it did not fail:\n{said}"
        else:
            assert code == 0 or may_fail, f"exit code {code}:\n{said}"
        if plain.startswith("yard submit") and not in_page:
            self.known["ID"] = said.split()[-1]
        return said + "\n"

    def _end(self, name: str) -> None:
        """Press Ctrl-C where the page says so."""
        terminal = self.staying.pop(name)
        code, said = terminal.interrupt()
        assert code == 0, f"{name}: after Ctrl-C exit code {code}:\n{said}"

    def end_staying(self) -> None:
        """Press Ctrl-C in each terminal in which a command still runs."""
        for name in list(self.staying):
            self._end(name)

    def close(self) -> None:
        for terminal in self.terminals:
            terminal.close()


def checks_code(following: Sequence[Command]) -> bool:
    """Whether the next command shows the exit code of this one."""
    return any(command.text == "echo $?" for command in following)


def check(where: str, shown: Sequence[str], printed: str, ids: dict[str, str] | None) -> None:
    """Check that what a page shows was printed."""
    lacking = missing(shown, printed, ids)
    assert lacking == [], f"{where}: shown but not printed: {lacking}\n--- printed\n{printed}"
