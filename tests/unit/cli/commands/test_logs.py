"""`yard logs`: what a terminal and a pipe show; it ends when the stream cannot be read."""

import json

import pytest

from tests.support.terminal import on_terminal
from tests.unit.cli.answers import Answer, answering
from tests.unit.cli.commands.test_submit import JOB, RECORDED, WORDS
from tests.unit.cli.commands.test_wait import ENV, WaitedTask
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


#: A title of the window, a question to the terminal, a cleared screen, an override of the order of
#: text, a line separator; then conceal, which would stay.
NOISY = "x\x1b]0;evil\x07\x1b[6n\x1b[2J\u202e\u2028y\n\x1b[31mred\x1b[0m \x1b[8mhidden\n"


@pytest.mark.parametrize("follow", [(), ("-f",)])
def test_noisy_output_reaches_a_terminal_without_its_controls_and_a_pipe_as_it_is(
    capsys: pytest.CaptureFixture[str], follow: tuple[str, ...]
) -> None:
    shown = task(index=0, replicas_max=1)
    piece = json.dumps({"attempt": 1, "replica": 0, "seq": 0, "text": NOISY}, ensure_ascii=False)
    stream = Answer(f'event: output\ndata: {piece}\n\nevent: end\ndata: {{"phase": "failed"}}\n\n')
    words = ("logs", *follow, shown["task_id"], "--server")
    with answering(Answer(shown), stream) as server:
        env = {"XDG_CONFIG_HOME": "/nonexistent", "PYTHONUTF8": "1"}
        with on_terminal([*words, server.url], env) as terminal:
            assert terminal.end() == 0, terminal.raw
    last = "\x1b[31mred\x1b[0m \x1b[8mhidden\r\n\x1b[0m"
    assert terminal.raw == f"x]0;evil[6n[2Jy\r\n{last}"
    with answering(Answer(shown), stream) as server:
        assert run([*words, server.url]) == 0
    assert capsys.readouterr().out == NOISY


@pytest.mark.parametrize(
    "words",
    [
        ("logs", "-f", JOB),
        ("logs", "-f", f"{JOB}.0"),
        ("submit", "--follow", *WORDS),
        ("submit", "--follow", "--no-wait", *WORDS),
    ],
)
def test_output_is_followed_with_the_phase_and_the_reason_while_the_task_waits(
    words: tuple[str, ...],
) -> None:
    task = WaitedTask()

    def answer(path: str) -> Answer:
        return RECORDED if path.startswith("/v1/jobs") else task.answer(path)

    with (
        answering(choose=answer) as server,
        on_terminal([*words[:2], "--server", server.url, *words[2:]], ENV) as terminal,
    ):
        terminal.until(f"{JOB}.0 pending: insufficient_free\n")
        task.becomes(phase="running", wait=None, nodes=["n1"])
        terminal.until(f"{JOB}.0 running on n1\n")
        task.becomes(phase="succeeded", nodes=[])
        task.finished.set()
        assert terminal.end() == 0
    assert terminal.text.count("pending") == 1
