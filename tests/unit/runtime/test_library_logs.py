"""Log messages of libraries become log lines of the service."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from yardmaster_runtime.clock import ManualClock
from yardmaster_runtime.telemetry.library_logs import REPEAT_S, LibraryLogs
from yardmaster_runtime.telemetry.port import Telemetry


class CapturedLogs:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.out = io.StringIO()
        self.telemetry = Telemetry("quota", now_ms=self.clock.now_ms, stream=self.out)
        self.handler = LibraryLogs(self.telemetry, self.clock.monotonic_s)
        self.logger = logging.getLogger("somelib.client")

    def lines(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.out.getvalue().splitlines()]

    def complain(self, what: str) -> None:
        self.logger.error("cannot connect to %s", what)


@pytest.fixture
def captured() -> Iterator[CapturedLogs]:
    captured = CapturedLogs()
    captured.logger.addHandler(captured.handler)
    captured.logger.propagate = False
    yield captured
    captured.logger.removeHandler(captured.handler)
    captured.logger.propagate = True


def test_a_librarys_error_is_a_line_with_its_logger(captured: CapturedLogs) -> None:
    captured.complain("a")
    (line,) = captured.lines()
    assert (line["level"], line["event"], line["logger"]) == ("error", "library", "somelib.client")
    assert line["found"] == "cannot connect to a"


def test_records_below_warning_are_not_written(captured: CapturedLogs) -> None:
    captured.logger.setLevel(logging.DEBUG)
    captured.logger.info("all is well")
    assert captured.lines() == []


def test_repeated_lines_are_written_at_a_limited_rate_and_all_are_counted(
    captured: CapturedLogs,
) -> None:
    for _ in range(50):
        captured.complain("a")
    assert len(captured.lines()) == 1
    captured.clock.advance(REPEAT_S)
    captured.complain("b")
    assert [line["left_out"] for line in captured.lines()] == [0, 49]
    assert (
        b'yard_quota_library_lines_total{library="somelib"} 51.0' in captured.telemetry.exposition()
    )


def test_an_exception_is_written_with_its_traceback(captured: CapturedLogs) -> None:
    try:
        raise OSError("gone")
    except OSError:
        captured.logger.exception("failed")
    (line,) = captured.lines()
    assert "OSError: gone" in str(line["trace"])


def test_a_line_that_cannot_be_written_does_not_fail_the_library(
    captured: CapturedLogs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    captured.handler.emit(logging.makeLogRecord({"msg": "two: %s %s", "args": ("one",)}))
    assert "Logging error" in capsys.readouterr().err
    captured.out.close()
    monkeypatch.setattr(logging, "raiseExceptions", False)
    captured.complain("a")
    assert capsys.readouterr().err == ""
