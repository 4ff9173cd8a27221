"""Run every command of README.md as printed, with an empty home folder and a copy of the tree.

The whole README runs in a separate network, where every port is free and Docker is unavailable: the
services are processes. Where Docker is available, the section on all services also runs in
containers, on the ports of the machine.
"""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support import containers
from tests.support.netns import Network, SharedNetwork, allowed, own_network
from tests.support.reader import Exceptions, Reader
from tests.support.readme import Block, Terminal, bare, blocks, clean_copy, reader_env
from yardmaster_localcluster import compose
from yardmaster_localcluster.orphans import end_tasks, of_cluster, of_tasks

# Tests that share the default ports of the machine run one after the other.
pytestmark = [
    pytest.mark.timeout(1200),
    pytest.mark.kafka,
    pytest.mark.xdist_group("readme" if allowed() else "up"),
]

ROOT: Final = Path(__file__).parents[2]
EXCEPTIONS: Final = Exceptions(
    # It runs all tests, and so this one.
    not_run=("make test",),
    follows={
        "yard ls -w": r"\bsweep\b",
        "yard logs -f $search.0": r"^step \d+ loss|^resumed from step",
        "tail -f ~/.local/share/yardmaster/up/logs/scheduler-1.log": r'"service": ?"scheduler"',
    },
    stays={"yard dev --nodes 2 --slots 4": r"^Ctrl-C stops"},
    ends_before={"yard dev --nodes 2 --slots 4": "make up"},
)
SERVICES: Final = "make up"


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
    reader = Reader(folder, network, env, EXCEPTIONS)
    dev, up = reader.data / "dev", reader.data / "up"
    try:
        reader.read("README.md", found)
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
    assert {*EXCEPTIONS.not_run, *EXCEPTIONS.follows, *EXCEPTIONS.stays} <= reader.seen
    assert set(EXCEPTIONS.ends_before.values()) <= reader.seen


def test_the_services_of_the_readme_run_in_containers(folder: Path) -> None:
    if not containers.is_there(containers.KAFKA_IMAGE) or compose.why_unavailable() is not None:
        pytest.skip("needs Docker, compose and the images")
    env = reader_env(folder / "home")
    installed(folder, env)
    found = [
        block
        for block in readme()
        if any(bare(command.text) == SERVICES for command in block.commands)
    ]
    assert len(found) == 1
    reader = read(folder, SharedNetwork(), found, env)
    assert "make down" in reader.seen
