"""The exit codes of the public interface, one by one."""

import pytest

from tests.support.terminal import on_terminal
from yardmaster_cli.errors import (
    BadUsage,
    Exit,
    exit_of_all,
    exit_of_end,
    exit_of_problem,
    problem_error,
)
from yardmaster_cli.main import run
from yardmaster_gateway.errors import NotFound
from yardmaster_gateway.http.problems import KINDS


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (400, "malformed", 2),
        (401, "unauthenticated", 102),
        (403, "forbidden", 102),
        (404, "not_found", 101),
        (409, "wrong_phase", 103),
        (409, "in_use", 103),
        (410, "position_unknown", 101),
        (412, "version_mismatch", 103),
        (413, "too_large", 2),
        (422, "invalid_spec", 2),
        (422, "idempotency_mismatch", 103),
        (422, "invalid_package", 2),
        (501, "no_packages", 2),
        (503, "packages_unavailable", 106),
        (428, "precondition_required", 103),
        (429, "rate_limited", 106),
        (503, "view_behind", 106),
        (503, "views_unavailable", 106),
        (503, "log_unavailable", 106),
        (504, "outcome_unknown", 106),
        (200, "bad_answer", 106),
        (404, "bad_answer", 106),
        (500, "internal", 100),
        (418, None, 100),
    ],
)
def test_every_problem_code_has_its_exit_code(status: int, code: str | None, expected: int) -> None:
    assert exit_of_problem(status, code) == expected


@pytest.mark.parametrize(
    ("phase", "code", "exit_code", "signal", "expected"),
    [
        ("succeeded", "exit", 0, None, 0),
        ("failed", "exit", 3, None, 3),
        ("failed", "signal", None, 9, 137),
        ("failed", "restarts_exhausted", 7, None, 7),
        ("failed", "time_limit", None, None, 107),
        ("failed", "unschedulable", None, None, 105),
        ("cancelled", "cancelled", None, None, 107),
        ("cancelled", "cancelled", None, 15, 107),
        ("rejected", None, None, None, 104),
    ],
)
def test_a_task_that_ended_gives_its_exit_code(
    phase: str, code: str | None, exit_code: int | None, signal: int | None, expected: int
) -> None:
    assert exit_of_end(phase, code=code, exit_code=exit_code, signal=signal) == expected


def test_several_tasks_give_the_highest_exit_code() -> None:
    assert exit_of_all([0, 3, 1]) == 3
    assert exit_of_all([]) == 0


def test_bad_usage_is_2_and_shows_what_to_do() -> None:
    error = BadUsage("job.yaml:3: resorces: unknown key", hint="did you mean resources?")
    assert error.exit_code == Exit.USAGE
    assert error.lines() == [
        "error: job.yaml:3: resorces: unknown key",
        "hint: did you mean resources?",
    ]


def test_a_problem_with_places_names_each_place() -> None:
    error = problem_error(
        422,
        {
            "code": "invalid_spec",
            "detail": "the job is not valid",
            "hint": "Try replicas: 2, gpus: 6.",
            "errors": [
                {
                    "pointer": "/resources/gpus",
                    "code": "too_large",
                    "detail": "12 per replica, largest node has 8.",
                }
            ],
        },
    )
    assert error.lines() == [
        "error: resources.gpus: 12 per replica, largest node has 8.",
        "hint: Try replicas: 2, gpus: 6.",
    ]
    assert error.exit_code == 2


def test_an_answer_that_is_no_problem_document_still_says_its_status() -> None:
    assert "502" in problem_error(502, {}).message


@pytest.mark.parametrize(
    ("what", "command"),
    [
        ("project nlp", "yard projects"),
        ("department vision", "yard departments"),
        ("pool a100", "yard pools"),
        ("node node-9", "yard nodes"),
        ("user ana", "yard users"),
        ("job tsobp7l3mw5x", "yard ls -A"),
        ("task tsobp7l3mw5x.0", "yard ls -A"),
    ],
)
def test_an_unknown_name_is_answered_with_the_command_that_lists_the_names(
    what: str, command: str
) -> None:
    error = problem_error(404, {"code": "not_found", "detail": str(NotFound(what=what))})
    assert error.lines() == [f"error: There is no {what}.", f"hint: list them with: {command}"]


def test_an_unknown_attempt_and_a_wrong_path_have_no_list() -> None:
    for what in ("attempt 7 of task x.0; it has attempt 1 only", "endpoint GET /v1/x"):
        error = problem_error(404, {"code": "not_found", "detail": str(NotFound(what=what))})
        assert error.hint is None


def test_a_rejected_token_is_explained_with_commands_not_with_headers() -> None:
    problem = {"code": "unauthenticated", "detail": "no", "hint": KINDS["unauthenticated"].hint}
    hint = problem_error(401, problem).hint
    assert hint is not None
    assert "Authorization" not in hint
    assert all(each in hint for each in ("yard config", "yard login", "YARD_TOKEN"))


#: A command line that is wrong.
NO_PHASE = ("ls", "--phase", "none", "--server", "http://127.0.0.1:1")


@pytest.mark.parametrize(
    ("env", "words", "red"),
    [
        ({}, (), True),
        ({"NO_COLOR": "1"}, (), False),
        ({"TERM": "dumb"}, (), False),
        ({}, ("--no-color",), False),
    ],
)
def test_an_error_is_red_on_a_terminal_that_has_colors(
    env: dict[str, str], words: tuple[str, ...], red: bool
) -> None:
    with on_terminal([*NO_PHASE, *words], env) as terminal:
        assert terminal.end() == Exit.USAGE
    shown = "\x1b[31merror:\x1b[0m" if red else "error:"
    assert f"{shown} --phase: unknown phase none\r\n" in terminal.raw


def test_an_error_in_a_pipe_is_plain(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(NO_PHASE) == Exit.USAGE
    assert capsys.readouterr().err.startswith("error: --phase: unknown phase none\n")
