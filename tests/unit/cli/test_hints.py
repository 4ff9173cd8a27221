"""Hints name the program and the cluster so that they work when they are copied."""

import json
import os
import sys
from pathlib import Path

import pytest

from yardmaster_cli.hints import down_for, up_with, yard, yard_for


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The program that runs, which no folder of PATH has."""
    path = tmp_path / "a venv" / "bin" / "yard"
    path.parent.mkdir(parents=True)
    path.touch(mode=0o755)
    monkeypatch.setattr(sys, "argv", [str(path)])
    return path


def test_a_program_that_path_does_not_lead_to_is_called_as_it_was(program: Path) -> None:
    other = program.parents[1] / "other"
    other.mkdir()
    assert yard({"PATH": str(program.parent)}) == "yard"
    assert yard({"PATH": str(other)}) == f"'{program}'"
    (other / "yard").touch(mode=0o755)
    assert yard({"PATH": f"{other}:{program.parent}"}) == f"'{program}'"


def test_only_the_folders_that_commands_look_in_need_no_variable(
    program: Path, tmp_path: Path
) -> None:
    env = {"PATH": str(program.parent), "XDG_DATA_HOME": str(tmp_path)}
    dev, up = tmp_path / "yardmaster" / "dev", tmp_path / "yardmaster" / "up"
    other = tmp_path / "an other"
    assert yard_for(dev, env) == "yard"
    assert yard_for(up, env) == "yard"
    assert yard_for(other, env) == f"YARD_DATA='{other}' yard"
    assert down_for(other, env) == f"YARD_DATA='{other}' yard down"

    # A command takes yard dev before yard up; down means the cluster of yard up.
    dev.mkdir(parents=True)
    (dev / "dev.json").write_text(json.dumps({"port": 1, "token": "t", "pid": os.getpid()}))
    assert yard_for(up, env) == f"YARD_DATA={up} yard"
    assert down_for(up, env) == "yard down"


def test_a_command_that_make_runs_is_hinted_at_through_make(program: Path, tmp_path: Path) -> None:
    env = {"PATH": str(program.parent), "XDG_DATA_HOME": str(tmp_path)}
    up = tmp_path / "yardmaster" / "up"
    assert up_with("--redis-port 6380", env) == "yard up --redis-port 6380"
    assert down_for(up, env) == "yard down"
    by_make = {**env, "MAKELEVEL": "1"}
    assert up_with("--redis-port 6380", by_make) == 'make up UP_ARGS="--redis-port 6380"'
    assert down_for(up, by_make) == "make down"
    assert down_for(tmp_path, by_make) == f"YARD_DATA={tmp_path} yard down"
