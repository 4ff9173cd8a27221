"""`yard cancel`: jobs and tasks that end between the list and the request."""

from typing import Any

import pytest

from tests.unit.cli.answers import Answer, Answers, answering
from yardmaster_cli.errors import Exit
from yardmaster_cli.main import run

ENDED = Answer(
    {
        **{"type": "about:blank", "title": "It has ended.", "status": 409},
        **{"detail": "It has ended.", "instance": "/", "code": "wrong_phase"},
    },
    409,
    {"Content-Type": "application/problem+json"},
)
ACCEPTED = Answer({"request_ids": ["main.5"], "position": "main@r6"}, 202)
POOLS = Answer({"items": [], "next_cursor": None, "position": "main@r6"})


def task(index: int) -> dict[str, Any]:
    return {"job_id": "4kq7w2mz9c1f", "index": index, "phase": "running"}


def verdict(state: str, refusal: str | None = None) -> Answer:
    found: dict[str, Any] = {"code": refusal, "numbers": {}, "about": None}
    return Answer(
        {
            **{"request_id": "main.5", "type": "T", "subject": "s", "state": state},
            **{
                "refusal": refusal and found,
                "user": "ana",
                "requested_at": "2026-01-31T12:00:00.000Z",
            },
        }
    )


def cancel(*words: str, answers: tuple[Answer, ...], code: int) -> Answers:
    with answering(*answers) as server:
        assert run(["cancel", *words, "--yes", "--server", server.url]) == code
    return server


def test_a_task_that_has_ended_since_the_list_does_not_keep_the_others_from_being_cancelled(
    capsys: pytest.CaptureFixture[str],
) -> None:
    tasks = [task(0), task(1), task(2)]
    listed = Answer({"items": tasks, "next_cursor": None, "position": "main@r6"})
    # One has ended when the request is made, one when the request is decided.
    refused, accepted = verdict("refused", "wrong_phase"), verdict("accepted")
    answers = (listed, ENDED, ACCEPTED, ACCEPTED, POOLS, refused, POOLS, accepted)
    server = cancel("--phase", "active", "-A", answers=answers, code=0)
    assert [path for path, _ in server.sent] == [
        f"/v1/tasks/4kq7w2mz9c1f.{index}/cancel" for index in range(3)
    ]
    said = capsys.readouterr()
    assert said.out.split() == ["4kq7w2mz9c1f.2"]
    assert said.err.splitlines() == [f"4kq7w2mz9c1f.{index} has ended" for index in range(2)]


def test_a_task_that_was_named_and_has_ended_is_an_error() -> None:
    cancel("4kq7w2mz9c1f.0", answers=(ENDED,), code=Exit.CONFLICT)


@pytest.mark.parametrize("label", ["4kq7w2mz9c1f.[3-299]", "4kq7w2mz9c1f.[0,..,29]"])
def test_the_label_of_several_tasks_is_refused_with_the_way_to_their_ids(
    label: str, capsys: pytest.CaptureFixture[str]
) -> None:
    server = cancel(label, answers=(ACCEPTED,), code=Exit.USAGE)
    assert not server.asked
    said = capsys.readouterr().err
    assert f"{label} stands for several tasks in a list" in said
    assert "yard show 4kq7w2mz9c1f --all lists the ids" in said


@pytest.mark.parametrize(
    ("verb", "why"), [("pause", "it is already paused"), ("resume", "it is not paused")]
)
def test_a_refused_pause_or_resume_says_why_and_what_shows_the_job(
    verb: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    refused = verdict("refused", "wrong_phase")
    refused.body["refusal"]["about"] = "4kq7w2mz9c1f"
    with answering(ACCEPTED, POOLS, refused) as server:
        url = server.url
        assert run([verb, "4kq7w2mz9c1f", "--server", url]) == Exit.CONFLICT
    assert capsys.readouterr().err.splitlines() == [
        "error: 4kq7w2mz9c1f: refused: wrong_phase",
        f"hint: {why}; see yard show 4kq7w2mz9c1f --server {url}",
    ]


def test_an_uncordon_of_a_node_that_is_not_cordoned_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with answering(POOLS, ACCEPTED, POOLS, verdict("refused", "wrong_phase")) as server:
        assert run(["nodes", "uncordon", "n1", "--server", server.url]) == Exit.CONFLICT
    assert "it is neither cordoned nor drained" in capsys.readouterr().err
