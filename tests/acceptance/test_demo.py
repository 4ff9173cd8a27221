"""`yard demo` is the first command of a new user: it works on a pipe, is quick and is correct."""

import re
import signal
import time
from pathlib import Path

import pytest

from tests.support.containers import CONTAINER_IMAGE, is_there
from tests.support.yard_cli import STEP_S, Dev, next_line

pytestmark = pytest.mark.xdist_group("cli")


def test_the_demo_shows_all_seven_steps_and_their_proof_within_a_minute(tmp_path: Path) -> None:
    dev = Dev(tmp_path)
    started_s = time.monotonic()
    said = dev.yard("demo")
    took_s = time.monotonic() - started_s
    assert took_s < 60, f"the demo took {took_s:.0f} s"
    steps = re.findall(r"^# (\d)\. ", said.out, re.MULTILINE)
    assert steps == [str(number) for number in range(1, 8)]
    for state in (
        "8 of 8 GPUs | search 8 | pending: 12 search (insufficient_free)",
        "8 of 8 GPUs | search 4 | gang 4 | pending: 16 search",
        "| notebook 1\n",
        "1 of 8 GPUs | notebook 1 | pending: 1 all (insufficient_free)",
        "5 of 8 GPUs | notebook 1 | late 4 | pending: 1 all (insufficient_free)",
        "8 of 8 GPUs | all 8 | pending: 1 late (insufficient_free)",
    ):
        assert state in said.out
    assert re.search(r"^resumed from step [1-9]\d* \(attempt 2\)$", said.out, re.MULTILINE)
    assert re.search(r"^\[1\] rank 1 of 2 on node-", said.out, re.MULTILINE)
    assert "4 points were preempted for the gang, each with a checkpoint" in said.out
    assert "6 of 6 tasks that were not cancelled succeeded" in said.out
    assert "every decision was recomputed" in said.out
    assert "NOT" not in said.out
    assert "\x1b" not in said.out


def test_the_gangs_of_the_demo_also_run_in_containers(tmp_path: Path) -> None:
    if not is_there(CONTAINER_IMAGE):
        pytest.skip(f"Docker has no image {CONTAINER_IMAGE}")
    said = Dev(tmp_path).yard("demo", "--executor", "docker", "--image", CONTAINER_IMAGE)
    assert re.search(r"^Python 3\.", said.out, re.MULTILINE)
    gangs = re.findall(r"^\$ yard submit .*--replicas 2 (.*) -- ", said.out, re.MULTILINE)
    assert len(gangs) == 3
    assert all(f"--image {CONTAINER_IMAGE}" in gang for gang in gangs)
    assert "6 of 6 tasks that were not cancelled succeeded" in said.out
    assert "every decision was recomputed" in said.out
    assert "NOT" not in said.out


def test_ctrl_c_during_a_command_of_the_demo_ends_the_demo(tmp_path: Path) -> None:
    demo = Dev(tmp_path).begin("demo")
    while not next_line(demo).startswith("$ yard cancel"):
        pass
    demo.send_signal(signal.SIGINT)
    _, err = demo.communicate(timeout=STEP_S)
    assert demo.returncode == 130, err
