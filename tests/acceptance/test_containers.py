"""`yard submit --image IMAGE`: jobs in containers, by default where an engine answers."""

import os
import re
import threading
from collections.abc import Iterator

import pytest

from tests.support.containers import CONTAINER_IMAGE, is_there, remove_containers
from tests.support.packages import write_tree
from tests.support.registry import running_registry
from tests.support.yard_cli import Dev, running_dev, until

pytestmark = pytest.mark.timeout(180)

TRAIN = b"""
import pathlib
print("words:", pathlib.Path("words.txt").read_text().strip())
print("process", pathlib.Path("/proc/self/ns/pid").readlink())
"""


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    if not is_there(CONTAINER_IMAGE):
        pytest.skip(f"Docker has no image {CONTAINER_IMAGE}")
    folder = tmp_path_factory.mktemp("containers")
    with running_dev(
        folder, nodes=2, env={"YARD_AGENT_CONTAINER_NETWORK": "host_for_gangs"}
    ) as dev:
        yield dev
    remove_containers(folder)


def test_a_folder_runs_in_an_image(dev: Dev) -> None:
    write_tree(dev.folder / "project", {"train.py": TRAIN, "words.txt": b"from the folder\n"})
    options = ("--image", CONTAINER_IMAGE, "--gpus", "1", "--context", "project", "--follow")
    said = dev.yard("submit", *options, "--", "python3", "train.py")
    words, process = said.lines[1:]
    assert words == "words: from the folder"
    assert re.fullmatch(r"process pid:\[\d+\]", process)
    assert process != f"process {os.readlink('/proc/self/ns/pid')}"


def test_jobs_without_an_image_run_as_processes_on_the_same_node(dev: Dev) -> None:
    # The namespace differs in a container, also when this test itself runs in one.
    said = dev.yard("submit", "--follow", "--", "readlink", "/proc/self/ns/pid")
    assert said.lines[1:] == [os.readlink("/proc/self/ns/pid")]


def test_an_image_that_cannot_be_pulled_is_a_failed_start_with_the_words_of_the_engine(
    dev: Dev,
) -> None:
    said = dev.yard("submit", "--image", "127.0.0.1:1/team/train:1", "--", "true")
    until(
        lambda: "never started" in dev.yard("logs", said.lines[0], code=None).out,
        "the task was not started",
        dev.words,
    )
    assert "127.0.0.1:1" in dev.yard("logs", said.lines[0], code=None).out
    dev.yard("cancel", said.lines[0])


def test_a_gang_whose_tag_moves_between_two_pulls_runs_the_first_image_on_all_nodes(
    dev: Dev,
) -> None:
    with running_registry() as registry:
        image = registry.image("team/train:1")
        first = registry.push("team/train:1", Env=["PATH=/bin", "VERSION=one"])
        registry.turns = turns = threading.Semaphore(1)
        (dev.folder / "gang.yaml").write_text(
            f"""
name: train
replicas: 2
resources: {{gpus: 2}}
run:
  image: {image}
  pull: always
  script: echo "runs $VERSION"
"""
        )
        job = dev.yard("submit", "gang.yaml").lines[0]
        # One of both nodes has pulled and started; then the tag moves.
        until(
            lambda: first in dev.yard("show", job).out,
            "a replica runs",
            lambda: dev.yard("show", job).out + dev.yard("logs", job).out + str(registry.requests),
        )
        registry.push("team/train:1", Env=["PATH=/bin", "VERSION=two"])
        turns.release(10)
        dev.yard("wait", job)
        shown = dev.yard("show", job).out
        assert f"Image       {first}" in shown
        assert "image_changed" in shown
        assert dev.yard("logs", job, "--attempt", "2").out.count("runs one") == 2


def test_explain_and_show_say_on_how_many_nodes_an_image_was_not_found(dev: Dev) -> None:
    with running_registry() as registry:
        image = registry.image("team/absent:1")
        job = dev.yard("submit", "--image", image, "--", "true").lines[0]
        dev.yard("wait", job, code=None)
        for command in ("explain", "show"):
            said = dev.yard(command, job).out
            assert "Last start  image not found (checked on 2 nodes)" in said
            assert "manifest unknown" in said
