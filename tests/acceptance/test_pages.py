"""Type every command of the pages in `docs` as printed, and compare the output.

The pages share one `yard dev`, in a separate network and with an empty home folder. Each page has a
terminal of its own; after it, its tasks are cancelled and the pool and nodes are as before, so that
the order of the pages does not matter.
"""

import shutil
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.support.containers import pulled
from tests.support.netns import Network, allowed, own_network
from tests.support.reader import Exceptions, Reader
from tests.support.readme import Block, Terminal, blocks, clean_copy, reader_env
from yardmaster_localcluster.orphans import end_tasks

# Tests that share the default ports of the machine run one after the other.
pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("pages" if allowed() else "up"),
]

ROOT: Final = Path(__file__).parents[2]
DOCS: Final = ROOT / "docs"
#: Typed into the terminal of each page before its first command.
PREAMBLE: Final = ". .venv/bin/activate"
#: The command of the cluster that all pages share.
SHARED: Final = "yard dev --nodes 2 --slots 4"
SHARED_IS_UP: Final = r"^Ctrl-C stops"
#: The width of the reader's terminal.
COLUMNS: Final = 160
#: Run by other tests: the first two in test_readme.py, the last in test_add_a_policy.py.
NOT_RUN: Final = (
    *("make install", "make demo"),
    ".venv/bin/python -m pytest tests/unit/core/scheduling/policies/test_non_preemptible_first.py",
)
FOLLOWS: Final = {
    "yard logs -f $search.0": r"^step \d+ loss",
    "yard logs -f $id.0": r"^step \d+ loss",
}
#: Further clusters, which run until the end of their page, and the line that each prints when it
#: is up.
STAYS: Final = {
    "yard dev --data team --port 7460 --token-file tokens.json": SHARED_IS_UP,
}
#: The images that the commands of pages name.
IMAGES: Final = {"how-to/containers.md": "python:3.12"}
#: Blocks that contain no commands.
NO_COMMANDS: Final = ("json", "nginx", "properties", "python", "sql", "text", "yaml")
#: Blocks of `shell` show commands that cannot run here. How many each page has, and why.
NOT_HERE: Final = {
    "explanation/fitgpp.md": (2, "hours of simulation"),
    "how-to/install.md": (1, "an environment that another project has changed"),
    "how-to/tls.md": (4, "a broker, Redis and a proxy with TLS"),
    "how-to/nodes.md": (3, "a group, a project, and a GPU with the control daemon of MPS"),
    "how-to/users.md": (1, "Kubernetes"),
    "how-to/monitor.md": (3, "kubectl, and promtool of Prometheus"),
    "explanation/simulator.md": (2, "traces that are not in the tree, and long simulations"),
}
#: How the commands of a page are undone after it, by how they begin.
UNDO: Final = {
    "yard apply": (
        "yard projects delete speech && yard projects delete faces && yard projects delete tracks"
        " && yard departments delete vision && yard departments delete research"
        " && yard pools delete long"
    ),
    "yard login": "yard contexts use dev",
    "yard submit": "yard cancel -A --phase active --now --yes",
    "yard projects create nlp department=default": "yard projects delete nlp",
    "yard nodes drain": "! yard nodes | grep -q drain || yard nodes uncordon node-1",
    "yard departments create labs": (
        "yard projects delete image && yard projects delete text && yard departments delete labs"
    ),
    "yard pools set": "yard pools set default policy=priority placement=best_fit seed=0 fence=none "
    "pool-order=idle_first",
}


def pages() -> dict[str, list[Block]]:
    """The blocks of each page of the documentation."""
    return {
        str(path.relative_to(DOCS)): blocks(path.read_text(), (*NO_COMMANDS, "shell"))
        for path in sorted(DOCS.rglob("*.md"))
    }


RUN: Final = sorted(
    page for page, found in pages().items() if any(block.commands for block in found)
)


@dataclass(frozen=True)
class PagesCluster:
    """The running cluster, the folder with a copy of the tree, and what `yard dev` printed."""

    folder: Path
    network: Network
    env: dict[str, str]
    said: str


@pytest.fixture(scope="module")
def cluster() -> Iterator[PagesCluster]:
    """`yard dev` in a copy of the tree that uses the installed program."""
    # A short name: a job's working directory has at most 128 characters.
    folder = Path(tempfile.mkdtemp(prefix="yard-pages-"))
    tree = folder / "yardmaster"
    env = reader_env(folder / "home", TMPDIR=str(folder / "tmp"), NO_COLOR="1")
    try:
        clean_copy(ROOT, tree)
        (tree / ".venv").symlink_to(ROOT / ".venv")
        (folder / "home").mkdir()
        (folder / "tmp").mkdir()
        with own_network() as network:
            terminal = Terminal(network.prefix, env, tree)
            try:
                assert terminal.run(PREAMBLE)[0] == 0
                terminal.begin(SHARED)
                yield PagesCluster(folder, network, env, terminal.until(SHARED_IS_UP))
                code, said = terminal.interrupt()
                assert code == 0, said
            finally:
                terminal.close()
                end_tasks(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def clean_up(cluster: PagesCluster, typed: Collection[str]) -> None:
    """Undo the commands of a page, also of one that failed."""
    terminal = Terminal(cluster.network.prefix, cluster.env, cluster.folder / "yardmaster")
    try:
        assert terminal.run(PREAMBLE)[0] == 0
        for begins, command in UNDO.items():
            if any(begins in each for each in typed):
                code, said = terminal.run(command)
                assert code == 0, f"{command}: exit code {code}:\n{said}"
    finally:
        terminal.close()


@pytest.mark.parametrize("page", RUN)
def test_every_command_of_a_page_does_what_the_page_says(page: str, cluster: PagesCluster) -> None:
    exceptions = Exceptions(
        not_run=NOT_RUN, follows=FOLLOWS, stays=STAYS, running={SHARED: cluster.said}
    )
    reader = Reader(
        *(cluster.folder, cluster.network, cluster.env, exceptions),
        columns=COLUMNS,
        preamble=PREAMBLE,
    )
    with pulled(IMAGES[page]) if page in IMAGES else nullcontext():
        try:
            reader.read(f"docs/{page}", pages()[page])
            reader.end_staying()
        finally:
            reader.close()
            clean_up(cluster, reader.seen)
    for seconds, command in sorted(reader.took_s, reverse=True)[:5]:
        print(f"{seconds:6.1f} s  {command}")


def test_every_exception_names_a_command_of_a_page() -> None:
    typed = {
        command.text for found in pages().values() for block in found for command in block.commands
    }
    assert {*NOT_RUN, *FOLLOWS, *STAYS, SHARED} <= typed


def test_the_blocks_that_are_not_run_are_listed_with_the_reason() -> None:
    found = {
        page: count
        for page, of_page in pages().items()
        if (count := Counter(block.kind for block in of_page)["shell"])
    }
    assert not any(block.kind == "sh" for of_page in pages().values() for block in of_page)
    assert found == {page: count for page, (count, _) in NOT_HERE.items()}
