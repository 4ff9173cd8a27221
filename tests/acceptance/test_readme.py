"""Run every command of README.md as printed, with an empty home folder and a copy of the tree.

The whole README runs in a separate network, where every port is free and Docker is unavailable: the
services are processes. Where Docker is available, the section on all services also runs in
containers, on the ports of the machine.
"""

import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from tests.support import containers
from tests.support.netns import Network, SharedNetwork, allowed, own_network
from tests.support.readme import (
    Block,
    ReadmeError,
    Terminal,
    bare,
    blocks,
    clean_copy,
    filled,
    missing,
    reader_env,
)
from yardmaster_localcluster import compose
from yardmaster_localcluster.orphans import end_tasks, of_cluster, of_tasks

# Tests that share the default ports of the machine run one after the other.
pytestmark = [
    pytest.mark.timeout(1200),
    pytest.mark.kafka,
    pytest.mark.xdist_group("readme" if allowed() else "up"),
]

ROOT: Final = Path(__file__).parents[2]
#: Not typed: it runs all tests, and so this one.
NOT_RUN: Final = ("make test",)
#: Commands that follow until Ctrl-C, and the pattern of a line that each prints before.
FOLLOWS: Final = {
    "yard ls -w": r"\bsweep\b",
    "yard logs -f $search.0": r"^step \d+ loss|^resumed from step",
    "tail -f ~/.local/share/yardmaster/up/logs/scheduler-1.log": r'"service": ?"scheduler"',
}
#: Commands that run until Ctrl-C in a separate terminal, the line that each prints when it is up,
#: and the command before which the text says to end it.
STAYS: Final = {
    "yard dev --nodes 2 --slots 4": (r"^Ctrl-C stops", "make up"),
}
SERVICES: Final = "make up"


@dataclass
class Reader:
    """A reader who types the commands of the README into terminals."""

    folder: Path
    network: Network
    env: dict[str, str]
    terminals: list[Terminal] = field(default_factory=list)
    staying: dict[str, Terminal] = field(default_factory=dict)
    known: dict[str, str] = field(default_factory=dict)
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
        self.terminals.append(Terminal(self.network.prefix, self.env, self.tree))

    def read(self, found: list[Block]) -> None:
        """Type all commands of these blocks; check each against the README."""
        for block in found:
            printed = ""
            for line, command in block.commands:
                began = time.monotonic()
                try:
                    printed += self._type(command, block)
                except (AssertionError, ReadmeError) as error:
                    raise AssertionError(f"README.md:{line}: {command}\n{error}") from error
                self.took_s.append((time.monotonic() - began, bare(command)))
            lacking = missing(block.shown, printed)
            where = block.commands[0][0]
            assert lacking == [], (
                f"README.md:{where}: shown but not printed: {lacking}\n--- printed\n{printed}"
            )

    def _type(self, command: str, block: Block) -> str:
        plain = bare(command)
        self.seen.add(plain)
        if plain in NOT_RUN:
            return ""
        for name, (_, before) in STAYS.items():
            if plain == before and name in self.staying:
                self._end(name, block)
        terminal = self.terminals[-1]
        if plain in STAYS:
            terminal.begin(command)
            said = terminal.until(STAYS[plain][0])
            self.staying[plain] = terminal
            self._open()
            return said
        if plain in FOLLOWS:
            terminal.begin(command)
            said = terminal.until(FOLLOWS[plain])
            code, rest = terminal.interrupt()
            assert code in (0, 130), f"after Ctrl-C it ended with {code}:\n{said}{rest}"
            return said + rest
        code, said = terminal.run(filled(command, self.known))
        assert code == 0, f"exit code {code}:\n{said}"
        if plain.startswith("yard submit"):
            self.known["ID"] = said.split()[-1]
        return said + "\n"

    def _end(self, name: str, block: Block) -> None:
        """Press Ctrl-C where the README says so."""
        terminal = self.staying.pop(name)
        code, said = terminal.interrupt()
        assert code == 0, f"{name}: after Ctrl-C exit code {code}:\n{said}"

    def close(self) -> None:
        for terminal in self.terminals:
            terminal.close()


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short name: a job's working directory has at most 128 characters."""
    path = Path(tempfile.mkdtemp(prefix="yard-readme-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def installed(folder: Path, env: dict[str, str]) -> None:
    """Copy the tree and install it, with the network of the machine and its caches."""
    clean_copy(ROOT, folder / "yardmaster")
    (folder / "home").mkdir()
    terminal = Terminal((), env, folder / "yardmaster")
    try:
        code, said = terminal.run("make install")
    finally:
        terminal.close()
    assert code == 0, said


def readme() -> list[Block]:
    return blocks((ROOT / "README.md").read_text())


def read(folder: Path, network: Network, found: list[Block], env: dict[str, str]) -> Reader:
    """Type all commands of `found`; check that no process is left."""
    reader = Reader(folder, network, env)
    dev, up = reader.data / "dev", reader.data / "up"
    try:
        reader.read(found)
        assert of_cluster(up) == []
        assert of_tasks(reader.data) == []
    finally:
        if (up / "up.json").exists():
            reader.terminals[-1].run(".venv/bin/yard down --purge")
        reader.close()
        end_tasks(dev)
    for seconds, command in sorted(reader.took_s, reverse=True)[:12]:
        print(f"{seconds:6.1f} s  {command}")
    return reader


def test_every_command_of_the_readme_does_what_it_says(folder: Path) -> None:
    env = reader_env(folder / "home", DOCKER_HOST="unix:///nonexistent")
    installed(folder, env)
    with own_network() as network:
        reader = read(folder, network, readme(), env)
    # Each exception names a command of the README.
    assert {*NOT_RUN, *FOLLOWS, *STAYS} <= reader.seen
    assert all(before in reader.seen for _, before in STAYS.values())


def test_the_services_of_the_readme_run_in_containers(folder: Path) -> None:
    if not containers.is_there(containers.KAFKA_IMAGE) or not compose.available():
        pytest.skip("needs Docker, compose and the images")
    env = reader_env(folder / "home")
    installed(folder, env)
    found = [block for block in readme() if SERVICES in map(bare, dict(block.commands).values())]
    assert len(found) == 1
    reader = read(folder, SharedNetwork(), found, env)
    assert "make down" in reader.seen
