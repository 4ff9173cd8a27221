"""Processes of a local cluster."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from yardmaster_localcluster.plan import Plan
from yardmaster_localcluster.process import ServiceProcess, path_with_python


def test_tasks_find_this_python_first() -> None:
    here = str(Path(sys.executable).parent)
    assert path_with_python({"PATH": "/usr/bin"}) == f"{here}:/usr/bin"
    assert path_with_python({"PATH": f"{here}:/usr/bin"}) == f"{here}:/usr/bin"


def test_services_get_the_log_levels_of_the_command_and_none_of_its_other_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("YARD_LOG_LEVEL", "warning")
    monkeypatch.setenv("YARD_SCHEDULER_LOG_LEVEL", "error")
    monkeypatch.setenv("YARD_LOG", "kafka://elsewhere:9092")
    plan = Plan(
        name="scheduler-1",
        service="scheduler",
        module="yardmaster_scheduler.main",
        cell="main",
        env={"YARD_CELLS": "main"},
        health_port=1,
    )
    seen: dict[str, str] = {}

    def launch(module: str, words: Any, *, env: Mapping[str, str], **_: Any) -> Any:
        seen.update(env)

    ServiceProcess(plan, tmp_path / "scheduler-1.log", launch=launch).begin()
    assert {name: value for name, value in seen.items() if name.startswith("YARD_")} == {
        "YARD_CELLS": "main",
        "YARD_LOG_LEVEL": "warning",
        "YARD_SCHEDULER_LOG_LEVEL": "error",
    }
