"""`yard submit --context DIR`: a folder on this machine, and tasks that run in copies of it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.packages import write_tree
from tests.support.terminal import on_terminal
from tests.support.yard_cli import Dev, running_dev

pytestmark = pytest.mark.xdist_group("cli")

#: The jobs for which one folder is submitted.
JOBS = 20
PRINT = ("--", "sh", "-c", "cat data/words.txt; ls -A . data")


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    with running_dev(tmp_path_factory.mktemp("code"), nodes=2, slots=2) as dev:
        yield dev


def tree(folder: Path, words: bytes) -> Path:
    return write_tree(
        folder,
        {
            "data/words.txt": words,
            "data/large.bin": b"x" * 1000,
            ".yardignore": b"*.bin\n",
            ".git/config": b"",
        },
    )


def stored(dev: Dev) -> list[Path]:
    return sorted((dev.data / "packages").rglob("*"))


def test_a_task_runs_in_a_copy_of_the_submitted_folder(dev: Dev) -> None:
    tree(dev.folder / "plain", b"from the folder\n")
    said = dev.yard("submit", "--follow", "--context", "plain", *PRINT)
    _, *printed = said.lines
    assert printed == ["from the folder", ".:", ".yardignore", "data", "", "data:", "words.txt"]
    assert (dev.folder / "plain/data/large.bin").exists()


def test_the_context_of_a_job_file_is_relative_to_the_file(dev: Dev) -> None:
    tree(dev.folder / "project/src", b"next to the file\n")
    job = dev.folder / "project/job.yaml"
    job.write_text(
        "run:\n  context: src\n  working_dir: data\n  command: [sh, -c, 'cat words.txt; ls ..']\n"
    )
    said = dev.yard("submit", "--follow", "project/job.yaml")
    job_id, *printed = said.lines
    assert printed == ["next to the file", "data"]
    spec = dev.yard("show", "--spec", job_id).out
    assert "packed_bytes:" in spec
    again = dev.yard("submit", "--follow", "-", stdin=spec)
    assert again.lines[1:] == printed


def test_jobs_with_one_context_upload_it_once(dev: Dev) -> None:
    tree(dev.folder / "many", b"many jobs\n")
    before = len(stored(dev))
    words = ("submit", "-v", "--no-wait", "--context", "many", *PRINT)
    first = dev.yard(*words)
    assert ", uploaded" in first.err
    written = stored(dev)
    stats = [path.stat().st_mtime_ns for path in written]
    assert len(written) <= before + 2, "the package, and at most the folder of its project"
    jobs = [first.lines[0]]
    for _ in range(JOBS - 1):
        said = dev.yard(*words)
        assert ", stored already" in said.err
        jobs += said.lines
    assert stored(dev) == written
    assert [path.stat().st_mtime_ns for path in written] == stats
    dev.yard("wait", *jobs, "--timeout", "45s")


def test_an_upload_shows_its_progress_on_a_terminal_only(dev: Dev) -> None:
    folder = tree(dev.folder / "shown", b"shown\n")
    words = ["submit", "--no-wait", "--context", str(folder), "--", "true"]
    with on_terminal(words, dev.env) as terminal:
        assert terminal.end() == 0
    assert "uploading the context" in terminal.text
    assert "100%" in terminal.text
    (folder / "new").touch()
    assert dev.yard(*words).err == ""


def test_each_replica_has_a_folder_of_its_own_that_it_may_change(dev: Dev) -> None:
    tree(dev.folder / "gang", b"one\n")
    script = "echo changed > data/words.txt; touch new; test $(ls | wc -l) = 2 && ls"
    said = dev.yard("submit", "--wait", "--context", "gang", "--replicas", "2", "--script", script)
    for replica in ("0", "1"):
        printed = dev.yard("logs", said.lines[0], "--replica", replica)
        assert printed.lines == ["data", "new"]
    assert (dev.folder / "gang/data/words.txt").read_text() == "one\n"


def test_what_cannot_be_uploaded_is_refused_before_anything_is_recorded(dev: Dev) -> None:
    said = dev.yard("submit", "--context", "nowhere", "--", "true", code=2)
    assert "--context: run.context: " in said.err
    assert "nowhere does not exist" in said.err
    said = dev.yard("submit", "--context", "dev", "--", "true", code=2)
    assert "for the server dev, write: yard --context dev submit" in said.err
    write_tree(dev.folder / "bad", {"link": "-> /etc/passwd"})
    said = dev.yard("submit", "--context", "bad", "--", "true", code=2)
    assert "link" in said.err
    assert "Remove it, or exclude it in .yardignore" in said.err


def test_a_server_context_can_precede_submit(dev: Dev) -> None:
    tree(dev.folder / "both", b"both\n")
    words = ("submit", "--follow", "--context", "both", *PRINT)
    assert "both" in dev.yard("--context", "dev", *words).lines
    said = dev.yard("--context", "elsewhere", *words, code=2)
    assert "there is no context elsewhere" in said.err
