"""`yard dev`: what it checks before it writes anything, and the options that it passes on."""

from pathlib import Path
from typing import Any

import pytest

from yardmaster_cli.dev import embedded
from yardmaster_cli.errors import Exit
from yardmaster_cli.main import run


@pytest.mark.parametrize(
    ("flags", "set_to", "expected"),
    [
        ([], None, "warning"),
        (["-v"], None, "info"),
        ([], "error", "error"),
        ([], "info", "info"),
        (["-v"], "error", "info"),
    ],
)
def test_the_log_level_is_that_of_the_flag_else_of_the_variable_else_warning(
    flags: list[str],
    set_to: str | None,
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    used: list[str] = []

    def serve(_: object, options: embedded.Options, __: object) -> int:
        used.append(options.log_level)
        return 0

    monkeypatch.setattr(embedded, "serve", serve)
    monkeypatch.delenv("YARD_LOG_LEVEL", raising=False)
    if set_to is not None:
        monkeypatch.setenv("YARD_LOG_LEVEL", set_to)
    assert run(["dev", *flags, "--data", str(tmp_path / "data")]) == 0
    assert used == [expected]


def test_the_start_is_announced_before_the_services_are_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[Any]
) -> None:
    announced: list[str] = []

    def serve(*_: object) -> int:
        announced.append(capsys.readouterr().err)
        return 0

    monkeypatch.setattr(embedded, "serve", serve)
    assert run(["dev", "--data", str(tmp_path / "data")]) == 0
    (said,) = announced
    assert said.startswith("starting gateway, quota, scheduler, views and agents in one process")


def test_a_wrong_log_level_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[Any]
) -> None:
    monkeypatch.setenv("YARD_LOG_LEVEL", "verbose")
    assert run(["dev", "--data", str(tmp_path / "data")]) == Exit.USAGE
    said = capsys.readouterr().err
    assert said.startswith("error: YARD_LOG_LEVEL: Input should be 'info', 'warning' or 'error'")
    assert not (tmp_path / "data").exists()
