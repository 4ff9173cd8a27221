"""The HTTP client: what it sends, what it tries again, what it makes of answers."""

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from yardmaster.calls import LONGEST_PAUSE_S, MAX_TRIES
from yardmaster.client import ApiError, Client
from yardmaster.transport import events
from yardmaster_schemas.api import JobSpec, NodePatch, NodeSlots, NodeWish, PoolConfig
from yardmaster_schemas.events.requests import PolicyRef
from yardmaster_schemas.job_file import JobRun

Handler = Callable[[httpx.Request], httpx.Response]
SPEC = JobSpec(project="nlp", run=JobRun(command=["true"]))
SUBMITTED = {"job_id": "a" * 12, "task_ids": ["a" * 12 + ".0"], "position": "main@r1"}
ACCEPTED = {"request_ids": ["main.3"], "position": "main@r4"}


class Server:
    """Answers as a test says, one answer a request; notes what was asked and how long was slept."""

    def __init__(self, *answers: httpx.Response | Exception) -> None:
        self.answers = list(answers)
        self.requests: list[httpx.Request] = []
        self.slept: list[float] = []
        self.keys = iter(f"key-{number}-0123456789" for number in range(99))

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def client(self, **more: Any) -> Client:
        return Client(
            "http://gateway:1/",
            "token-1",
            sleep=self.slept.append,
            new_key=lambda: next(self.keys),
            transport=httpx.MockTransport(self),
            **more,
        )


def problem(status: int, code: str, **headers: str) -> httpx.Response:
    body = {"type": "x", "title": code, "status": status, "detail": f"it is {code}", "code": code}
    return httpx.Response(status, json=body, headers=headers)


def test_a_submission_carries_token_body_and_key() -> None:
    server = Server(httpx.Response(202, json=SUBMITTED))
    answer = server.client().submit(SPEC)
    request = server.requests[0]
    assert answer.job_id == "a" * 12
    assert str(request.url) == "http://gateway:1/v1/jobs"
    assert request.headers["Authorization"] == "Bearer token-1"
    assert request.headers["Idempotency-Key"].startswith("key-0")
    assert json.loads(request.content) == {"project": "nlp", "run": {"command": ["true"]}}


@pytest.mark.parametrize(
    "failure",
    [
        httpx.ConnectError("refused"),
        httpx.ReadTimeout("slow"),
        problem(503, "log_unavailable"),
        problem(503, "views_unavailable"),
        problem(504, "outcome_unknown"),
        problem(429, "rate_limited"),
    ],
)
def test_what_may_pass_is_tried_again_with_the_same_key(failure: Any) -> None:
    server = Server(failure, failure, httpx.Response(202, json=SUBMITTED))
    server.client().submit(SPEC)
    keys = {request.headers["Idempotency-Key"] for request in server.requests}
    assert (len(server.requests), len(keys)) == (3, 1)
    assert server.slept == [0.2, 0.4]


def test_a_given_key_is_used() -> None:
    server = Server(httpx.Response(202, json=SUBMITTED))
    server.client().submit(SPEC, idempotency_key="mine-0123456789abc")
    assert server.requests[0].headers["Idempotency-Key"] == "mine-0123456789abc"


def test_it_waits_as_long_as_the_gateway_says() -> None:
    server = Server(
        problem(429, "rate_limited", **{"Retry-After": "7"}), httpx.Response(202, json=SUBMITTED)
    )
    server.client().submit(SPEC)
    assert server.slept == [7.0]


def test_it_gives_up_after_some_tries() -> None:
    server = Server(problem(503, "log_unavailable"))
    with pytest.raises(ApiError) as caught:
        server.client().submit(SPEC)
    assert len(server.requests) == MAX_TRIES
    assert (caught.value.status, caught.value.problem.code) == (503, "log_unavailable")
    assert str(caught.value) == "it is log_unavailable"


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 412, 422, 428])
def test_what_will_not_pass_is_not_tried_again(status: int) -> None:
    server = Server(problem(status, "some_code"))
    with pytest.raises(ApiError) as caught:
        server.client().submit(SPEC)
    assert len(server.requests) == 1
    assert caught.value.problem.code == "some_code"


def test_a_gateway_that_cannot_be_reached_is_a_problem_as_well() -> None:
    server = Server(httpx.ConnectError("refused"))
    with pytest.raises(ApiError, match="cannot be reached: refused") as caught:
        server.client().whoami()
    assert (caught.value.status, caught.value.problem.code) == (0, "unreachable")
    assert not server.client().ready()


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(200, text="<html>"),
        httpx.Response(200, json={"user": 1}),
        httpx.Response(502, text="bad gateway"),
    ],
)
def test_an_answer_that_is_none_is_said_so(answer: httpx.Response) -> None:
    with pytest.raises(ApiError) as caught:
        Server(answer).client(max_tries=1).whoami()
    assert caught.value.problem.code == "bad_answer"


def test_filters_become_parameters() -> None:
    page: dict[str, Any] = {"items": [], "next_cursor": None, "position": "main@r1"}
    server = Server(httpx.Response(200, json=page))
    server.client().tasks(
        phase=["pending", "running"],
        project="nlp",
        label=["team=x", "stage=final=1"],
        limit=5,
        cursor=None,
    )
    assert dict(server.requests[0].url.params) == {
        "phase": "pending,running",
        "project": "nlp",
        "label.team": "x",
        "label.stage": "final=1",
        "limit": "5",
    }


def test_all_tasks_follows_the_cursors() -> None:
    def page(cursor: str | None) -> httpx.Response:
        return httpx.Response(200, json={"items": [], "next_cursor": cursor, "position": "main@r1"})

    server = Server(page("c1"), page("c2"), page(None))
    assert list(server.client().all_tasks(project="nlp")) == []
    asked = [request.url.params.get("cursor") for request in server.requests]
    assert asked == [None, "c1", "c2"]


def test_a_change_reads_the_etag_unless_it_is_given() -> None:
    job = httpx.Response(200, json={}, headers={"ETag": '"4"'})
    server = Server(job, httpx.Response(202, json=ACCEPTED))
    server.client().patch_job("a" * 12, priority=7)
    assert [request.method for request in server.requests] == ["GET", "PATCH"]
    assert server.requests[1].headers["If-Match"] == '"4"'
    assert json.loads(server.requests[1].content) == {"priority": 7}
    server = Server(httpx.Response(202, json=ACCEPTED))
    server.client().patch_job("a" * 12, max_slots=None, if_match='"9"')
    assert server.requests[0].headers["If-Match"] == '"9"'
    assert json.loads(server.requests[0].content) == {"max_slots": None}


def test_making_a_thing_asks_that_it_is_not_there() -> None:
    server = Server(httpx.Response(202, json=ACCEPTED))
    config = PoolConfig(policy=PolicyRef(name="priority"))
    server.client().put_pool("h100", config, create=True)
    assert server.requests[0].headers["If-None-Match"] == "*"
    assert json.loads(server.requests[0].content)["policy"]["name"] == "priority"


CALLS: list[tuple[Callable[[Client], object], str, str]] = [
    (lambda c: c.cancel("a.0", reason="x"), "POST", "/v1/tasks/a.0/cancel"),
    (lambda c: c.cancel("a"), "POST", "/v1/jobs/a/cancel"),
    (lambda c: c.pause("a"), "POST", "/v1/jobs/a/pause"),
    (lambda c: c.resume("a.1"), "POST", "/v1/tasks/a.1/resume"),
    (
        lambda c: c.patch_node("n1", NodePatch(state=NodeWish.READY), if_match="*"),
        "PATCH",
        "/v1/nodes/n1",
    ),
    (
        lambda c: c.put_slots("n1", NodeSlots(disabled=[0]), if_match="*"),
        "PUT",
        "/v1/nodes/n1/slots",
    ),
    (lambda c: c.delete_pool("p/../q", if_match="*"), "DELETE", "/v1/pools/p%2F..%2Fq"),
    (
        lambda c: c.delete_quota("nlp", "h100", if_match="*"),
        "DELETE",
        "/v1/projects/nlp/quotas/h100",
    ),
    (lambda c: c.delete_project("nlp", if_match="*"), "DELETE", "/v1/projects/nlp"),
    (lambda c: c.delete_department("d", if_match="*"), "DELETE", "/v1/departments/d"),
]


@pytest.mark.parametrize(("call", "method", "path"), CALLS)
def test_each_write_goes_to_its_endpoint(
    call: Callable[[Client], object], method: str, path: str
) -> None:
    server = Server(httpx.Response(202, json=ACCEPTED))
    call(server.client())
    request = server.requests[0]
    assert (request.method, request.url.raw_path.decode()) == (method, path)
    assert ("Idempotency-Key" in request.headers) == (method == "POST")


STREAM = (
    ": hello\n\n"
    'event: snapshot\nid: main@r1\ndata: {"kind":"task",\ndata: "items":[]}\n\n'
    'event: upsert\ndata: {"kind":"task","item":{}}\n\n'
    "event: bookmark\nid: main@r2\ndata: {}\n\n"
    'event: half\ndata: {"never": "ended"}\n'
)


def test_a_watch_gives_whole_events_with_the_id_to_resume_after() -> None:
    server = Server(httpx.Response(200, text=STREAM))
    found = list(server.client().watch(["task", "node"], after="main@r0"))
    assert [(one.event, one.id) for one in found] == [
        ("snapshot", "main@r1"),
        ("upsert", "main@r1"),
        ("bookmark", "main@r2"),
    ]
    assert found[0].data == {"kind": "task", "items": []}
    request = server.requests[0]
    assert request.headers["Last-Event-ID"] == "main@r0"
    assert request.url.params["kinds"] == "task,node"


def test_a_watch_that_is_refused_says_why() -> None:
    with pytest.raises(ApiError) as caught:
        next(iter(Server(problem(429, "rate_limited")).client().watch()))
    assert caught.value.problem.code == "rate_limited"


def sent(*pieces: tuple[int, int, str], end: str | None = None) -> httpx.Response:
    """A stream of output: (offset, seq, text) each; cut unless `end` gives the task's phase."""
    text = "".join(
        f"event: output\nid: {offset}\n"
        f"data: {json.dumps({'attempt': 1, 'replica': 0, 'seq': seq, 'text': text})}\n\n"
        for offset, seq, text in pieces
    )
    if end is not None:
        text += f'event: end\ndata: {{"phase": "{end}"}}\n\n'
    return httpx.Response(200, text=text, headers={"Yard-Position": "main@r7"})


def test_output_comes_as_text_or_piece_by_piece() -> None:
    assert "".join(Server(httpx.Response(200, text="a\nb\n")).client().logs("a.0")) == "a\nb\n"
    server = Server(sent((1, 0, "a\n"), end="succeeded"))
    assert list(server.client().logs("a.0", follow=True)) == ["a\n"]
    assert server.requests[0].url.params["follow"] == "true"
    server = Server(sent((1, 0, "a\n"), end="running"))
    assert [piece.text for piece in server.client().output("a.0")] == ["a\n"]
    assert server.requests[0].url.params["pieces"] == "true"


def test_followed_output_that_the_gateway_closes_is_resumed_after_its_last_piece() -> None:
    server = Server(
        sent((4, 0, "a\n"), (6, 1, "b\n"), end="running"),
        sent((8, 1, "b\n"), (9, 2, "c\n"), end="failed"),
    )
    assert list(server.client().logs("a.0", follow=True, tail=5)) == ["a\n", "b\n", "c\n"]
    assert [request.headers.get("Last-Event-ID") for request in server.requests] == [None, "6"]
    assert len(server.slept) == 1


def test_followed_output_is_resumed_where_it_began_when_nothing_was_written() -> None:
    begun = httpx.Response(200, text="event: bookmark\nid: 4\ndata: {}\n\n")
    server = Server(begun, sent((6, 1, "b\n"), end="failed"))
    assert list(server.client().logs("a.0", follow=True, tail=0)) == ["b\n"]
    assert [request.headers.get("Last-Event-ID") for request in server.requests] == [None, "4"]


class Noted:
    """Notes when a gateway was lost and was back."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def lost(self, error: ApiError) -> None:
        self.found.append(error.problem.code)

    def back(self) -> None:
        self.found.append("back")


PAGE = httpx.Response(
    200,
    json={"items": [], "next_cursor": None, "position": "main@r3"},
    headers={"Yard-Position": "main@r3"},
)
AWAY = (
    *(httpx.ConnectError("refused"),) * 3 * MAX_TRIES,
    httpx.Response(500, text="Internal Server Error"),
    httpx.Response(502, text="<html>"),
    problem(503, "not_ready"),
    problem(503, "view_behind"),
)


def test_a_caller_that_outlasts_outages_reads_on_and_never_sees_the_past() -> None:
    server = Server(PAGE, *AWAY, PAGE)
    client, noted = server.client(), Noted()
    client.outlast(noted)
    assert client.tasks(limit=1).items == []
    assert client.tasks(limit=1).items == []
    assert server.requests[0].headers.get("Yard-Min-Position") is None
    assert server.requests[-1].headers["Yard-Min-Position"] == "main@r3"
    assert noted.found[0] == noted.found[-1] == "back"
    assert set(noted.found[1:-1]) == {"unreachable", "bad_answer", "not_ready", "view_behind"}
    assert max(server.slept) == LONGEST_PAUSE_S
    assert server.slept[:6] == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0]


def test_followed_output_survives_outages_without_loss_or_repeat() -> None:
    server = Server(
        sent((4, 0, "a\n"), (6, 1, "b\n")),
        *AWAY,
        sent((8, 1, "b\n"), (9, 2, "c\n"), end="failed"),
    )
    client = server.client()
    client.outlast(Noted())
    assert list(client.logs("a.0", follow=True)) == ["a\n", "b\n", "c\n"]
    assert {request.headers.get("Last-Event-ID") for request in server.requests[1:]} == {"6"}


def test_a_gateway_that_was_never_there_is_not_waited_for() -> None:
    server = Server(httpx.ConnectError("refused"))
    client = server.client()
    client.outlast(Noted())
    with pytest.raises(ApiError):
        client.tasks()
    assert len(server.requests) == MAX_TRIES


def test_what_no_wait_can_mend_ends_a_caller_that_outlasts_outages() -> None:
    server = Server(PAGE, problem(401, "unauthenticated"))
    client = server.client()
    client.outlast(Noted())
    client.tasks()
    with pytest.raises(ApiError) as caught:
        client.tasks()
    assert caught.value.status == 401


def test_server_sent_events_without_data_are_none() -> None:
    def lines() -> Iterator[str]:
        yield from ["event: nothing", "", "data: 1", ""]

    assert [(one.event, one.data) for one in events(lines())] == [("message", 1)]


def test_what_the_machine_trusts_is_read_for_https_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []

    def create_ssl_context() -> bool:
        read.append(True)
        return True

    monkeypatch.setattr(httpx, "create_ssl_context", create_ssl_context)
    for server in ("http://gateway:1", "https://gateway:1"):
        Client(server, None, sleep=time.sleep, new_key=lambda: "a-key")
        assert len(read) == server.startswith("https"), server
