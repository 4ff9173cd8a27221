"""`yard logs`: what is followed ends when it cannot be read."""

import pytest

from tests.unit.cli.answers import Answer, answering
from tests.unit.cli.output.test_describe import task
from yardmaster_cli.errors import Exit
from yardmaster_cli.main import run


@pytest.mark.parametrize("data", ["{}", "no JSON"])
def test_followed_output_that_is_not_understood_ends_the_command(
    data: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = task(index=0)
    stream = Answer(f"event: output\ndata: {data}\n\n")
    words = ("logs", "-f", shown["task_id"], "--timeout", "5s")
    with answering(Answer(shown), stream) as server:
        assert run([*words, "--server", server.url]) == Exit.INTERNAL
    assert "internal" in capsys.readouterr().err
