"""The lines of `yard demo` about the tasks of its cluster."""

from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.answers import Answer, answering
from tests.unit.cli.commands.test_submit import JOB, POSITION, shown_task
from yardmaster_cli.demo.cluster import ContainerCluster, DemoCluster
from yardmaster_cli.errors import CliError, Exit
from yardmaster_cli.main import run
from yardmaster_cli.server.remote import Remote


def page(*phases: str) -> Answer:
    """A list with a gang of 12 GPUs and one of 6, in these phases."""
    tasks: list[dict[str, Any]] = [
        shown_task(
            task_id=f"{JOB}.{index}", index=index, name=name, phase=phase, gpu_milli=gpus * 1000
        )
        for index, (name, gpus, phase) in enumerate(
            zip(("all", "late"), (12, 6), phases, strict=True)
        )
    ]
    body = {"items": tasks, "next_cursor": None, "position": POSITION}
    return Answer(body, headers={"Yard-Position": POSITION})


def test_a_list_of_two_moments_in_which_more_gpus_are_held_than_there_are_is_not_shown(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pages = (page("running", "pending"), page("running", "running"), page("succeeded", "running"))
    with answering(*pages) as server:
        cluster = DemoCluster.in_folder(tmp_path, color=False)
        cluster.nodes, cluster.slots, cluster.jobs = 3, 4, [JOB]
        cluster.remote = Remote(server.url, None, None)
        cluster.watch(lambda tasks: tasks[0].phase.final, "the gang of all GPUs has ended")
    assert capsys.readouterr().out.splitlines() == [
        "  12 of 12 GPUs | all 12 | pending: 1 late",
        "  6 of 12 GPUs | late 6",
    ]


@pytest.mark.parametrize("options", [["--executor", "docker", "--running"], ["--image", "python"]])
def test_options_that_exclude_each_other_are_refused(options: list[str]) -> None:
    assert run(["demo", *options]) == Exit.USAGE


def test_without_a_container_engine_the_demo_in_containers_ends_before_its_first_step(
    tmp_path: Path,
) -> None:
    cluster = ContainerCluster(tmp_path, "python:3.12", color=False)
    with answering(Answer({"items": [], "position": POSITION, "next_cursor": None})) as server:
        cluster.remote = Remote(server.url, None, None)
        with pytest.raises(CliError, match="no container engine answers"):
            cluster.prepare()
