"""The HTTP client: its requests, its retries, and how it parses answers."""

import json
import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import httpx
import pytest

from yardmaster.client import ApiError, Client
from yardmaster.errors import InputError
from yardmaster.retry import LONGEST_PAUSE_S, MAX_TRIES
from yardmaster.transport import parse_events
from yardmaster_schemas.api import (
    Department,
    JobSpec,
    NodePatch,
    NodeSlots,
    PoolConfig,
    Project,
    RequestedNodeState,
    Submitted,
)
from yardmaster_schemas.events.requests import PolicyRef
from yardmaster_schemas.job_file import JobRun

Handler = Callable[[httpx.Request], httpx.Response]
SPEC = JobSpec(project="nlp", run=JobRun(command=["true"]))
SUBMITTED = {"job_id": "a" * 12, "task_ids": ["a" * 12 + ".0"], "position": "main@r1"}
ACCEPTED = {"request_ids": ["main.3"], "position": "main@r4"}


class Server:
    """Gives the answers of a test, one per request; records the requests and the pauses."""

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
            monotonic_s=lambda: sum(self.slept),
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
def test_a_transient_failure_is_retried_with_the_same_key(failure: Any) -> None:
    server = Server(failure, failure, httpx.Response(202, json=SUBMITTED))
    server.client().submit(SPEC)
    keys = {request.headers["Idempotency-Key"] for request in server.requests}
    assert (len(server.requests), len(keys)) == (3, 1)
    assert server.slept == [0.2, 0.4]


def test_a_given_key_is_used() -> None:
    server = Server(httpx.Response(202, json=SUBMITTED))
    server.client().submit(SPEC, idempotency_key="mine-0123456789abc")
    assert server.requests[0].headers["Idempotency-Key"] == "mine-0123456789abc"


def test_the_client_waits_as_long_as_retry_after_says() -> None:
    server = Server(
        problem(429, "rate_limited", **{"Retry-After": "7"}), httpx.Response(202, json=SUBMITTED)
    )
    server.client().submit(SPEC)
    assert server.slept == [7.0]


def test_the_client_gives_up_after_the_last_attempt() -> None:
    server = Server(problem(503, "log_unavailable"))
    with pytest.raises(ApiError) as caught:
        server.client().submit(SPEC)
    assert len(server.requests) == MAX_TRIES
    assert (caught.value.status, caught.value.problem.code) == (503, "log_unavailable")
    assert str(caught.value) == "it is log_unavailable"


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 412, 422, 428])
def test_a_permanent_failure_is_not_retried(status: int) -> None:
    server = Server(problem(status, "some_code"))
    with pytest.raises(ApiError) as caught:
        server.client().submit(SPEC)
    assert len(server.requests) == 1
    assert caught.value.problem.code == "some_code"


def test_an_unreachable_gateway_is_an_api_error_too() -> None:
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
def test_an_answer_that_cannot_be_parsed_is_an_api_error(answer: httpx.Response) -> None:
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


def test_shares_are_of_one_pool() -> None:
    nothing = {"gpu_milli": 0, "cpu_milli": 0, "memory_mib": 0}
    unlimited = dict.fromkeys(nothing)
    queue = {
        **{"name": "nlp", "level": "project", "parent": "research"},
        **{"deserved": {**unlimited, "gpu_milli": 8000}, "limit": unlimited},
        **dict.fromkeys(("fair_share", "held", "reserved", "requested"), nothing),
    }
    body = {
        **{"pool": "h100", "divided_at": "2026-11-24T10:20:11.000Z", "cycle": 7},
        **{"items": [queue], "position": "main@r1"},
    }
    server = Server(httpx.Response(200, json=body))
    found = server.client().shares("h100", min_position="main@r1")
    assert (found.items[0].name, found.items[0].deserved.gpu_milli) == ("nlp", 8000)
    assert dict(server.requests[0].url.params) == {"pool": "h100", "min_position": "main@r1"}


def test_all_tasks_follows_the_cursors() -> None:
    def page(cursor: str | None) -> httpx.Response:
        return httpx.Response(200, json={"items": [], "next_cursor": cursor, "position": "main@r1"})

    server = Server(page("c1"), page("c2"), page(None))
    assert list(server.client().all_tasks(project="nlp")) == []
    cursors = [request.url.params.get("cursor") for request in server.requests]
    assert cursors == [None, "c1", "c2"]


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


def test_creating_an_object_requires_that_it_does_not_exist() -> None:
    server = Server(httpx.Response(202, json=ACCEPTED))
    config = PoolConfig(policy=PolicyRef(name="priority"))
    server.client().put_pool("h100", config, create=True)
    assert server.requests[0].headers["If-None-Match"] == "*"
    assert json.loads(server.requests[0].content)["policy"]["name"] == "priority"


CALLS: list[tuple[Callable[[Client], object], str, str]] = [
    (lambda c: c.cancel("a.0", reason="x"), "POST", "/v1/tasks/a.0/cancel"),
    (lambda c: c.cancel("a"), "POST", "/v1/jobs/a/cancel"),
    (
        lambda c: c.cancel(Submitted(job_id="a" * 12, task_ids=[], position="main@r1")),
        "POST",
        f"/v1/jobs/{'a' * 12}/cancel",
    ),
    (lambda c: c.pause("a"), "POST", "/v1/jobs/a/pause"),
    (lambda c: c.resume("a.1"), "POST", "/v1/tasks/a.1/resume"),
    (
        lambda c: c.patch_node("n1", NodePatch(state=RequestedNodeState.READY), if_match="*"),
        "PATCH",
        "/v1/nodes/n1",
    ),
    (
        lambda c: c.put_slots("n1", NodeSlots(disabled=[0]), if_match="*"),
        "PUT",
        "/v1/nodes/n1/slots",
    ),
    (lambda c: c.put_rules(2, if_match="*"), "PUT", "/v1/rules"),
    (lambda c: c.delete_pool("p/../q", if_match="*"), "DELETE", "/v1/pools/p%2F..%2Fq"),
    (
        lambda c: c.delete_quota("nlp", "h100", if_match="*"),
        "DELETE",
        "/v1/projects/nlp/quotas/h100",
    ),
    (lambda c: c.delete_project("nlp", if_match="*"), "DELETE", "/v1/projects/nlp"),
    (lambda c: c.delete_department("d", if_match="*"), "DELETE", "/v1/departments/d"),
]


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda c: c.submit(42), "job: expected a dict, a text, a pathlib.Path or a JobSpec"),
        (lambda c: c.cancel(42), "expected an id or a name, not int"),
        (lambda c: c.task(None), "expected an id or a name, not NoneType"),
    ],
)
def test_an_argument_of_a_wrong_type_is_named_and_nothing_is_sent(
    call: Callable[[Any], object], problem: str
) -> None:
    server = Server()
    with pytest.raises(InputError, match=problem):
        call(server.client())
    assert not server.requests


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


#: Ends a watch or a wait, which otherwise reconnects.
OVER = problem(401, "unauthenticated")


def watched(server: Server, **more: Any) -> list[tuple[str, str | None]]:
    """The changes of a watch until the server refuses it: event and id."""
    found: list[tuple[str, str | None]] = []
    with pytest.raises(ApiError, match="unauthenticated"):
        found.extend((change.event, change.id) for change in server.client().watch(**more))
    return found


def test_a_watch_yields_complete_events_with_the_id_to_resume_after() -> None:
    server = Server(httpx.Response(200, text=STREAM), OVER)
    changes = server.client().watch(["task", "node"], after="main@r0")
    assert next(changes).data == {"kind": "task", "items": []}
    assert [(one.event, one.id) for one in (next(changes), next(changes))] == [
        ("upsert", "main@r1"),
        ("bookmark", "main@r2"),
    ]
    request = server.requests[0]
    assert request.headers["Last-Event-ID"] == "main@r0"
    assert request.url.params["kinds"] == "task,node"


def test_the_items_of_a_change_are_the_objects_that_the_other_calls_return() -> None:
    plain = {"used_milli": 0, "pending_milli": 0, "pools": []}
    department = {"name": "labs", "revision": 1, "config": {}, "projects": ["nlp"], **plain}
    project = {
        **{"name": "nlp", "department": "labs", "revision": 2},
        "config": {"department": "labs"},
        **{"running": 0, "pending": 0, **plain},
    }
    sent = [
        ("snapshot", {"kind": "department", "items": [department]}),
        ("upsert", {"kind": "project", "item": project}),
        ("delete", {"kind": "project", "key": "nlp"}),
        ("bookmark", {}),
    ]
    text = "".join(
        f"event: {event}\nid: main@r{number}\ndata: {json.dumps(data)}\n\n"
        for number, (event, data) in enumerate(sent)
    )
    server = Server(httpx.Response(200, text=text), OVER)
    found = [change.items for change in islice(server.client().watch(), len(sent))]
    assert [[type(item) for item in items] for items in found] == [[Department], [Project], [], []]
    assert [item.name for items in found for item in items] == ["labs", "nlp"]


def changes(*events: tuple[str, str | None], cut: bool = False) -> httpx.Response:
    """A stream of events with their ids; it ends, or its connection breaks (`cut`)."""

    def parts() -> Iterator[bytes]:
        for event, id_ in events:
            own = "" if id_ is None else f"id: {id_}\n"
            yield f"event: {event}\n{own}data: {{}}\n\n".encode()
        if cut:
            raise httpx.ReadError("cut")

    return httpx.Response(200, content=parts(), headers={"Yard-Position": "main@r1"})


def test_a_watch_resumes_after_a_cut_without_loss_and_without_repeats() -> None:
    server = Server(
        changes(("snapshot", "main@r1"), ("upsert", "main@r2"), ("upsert", None), cut=True),
        httpx.ConnectError("refused"),
        problem(503, "view_behind", **{"Retry-After": "1"}),
        changes(("upsert", None), ("delete", "main@r4")),
        OVER,
    )
    assert watched(server) == [
        ("snapshot", "main@r1"),
        ("upsert", "main@r2"),
        ("upsert", "main@r2"),  # of the step that was cut: it came once
        ("delete", "main@r4"),
    ]
    resumed = [request.headers.get("Last-Event-ID") for request in server.requests]
    assert resumed == [None, "main@r2", "main@r2", "main@r2", "main@r4"]
    # The gateway must not answer with views that are older than what the watch has shown.
    covered = [request.headers.get("Yard-Min-Position") for request in server.requests]
    assert covered == resumed
    assert server.slept == [0.2, 0.4, 1.0, 0.2]


def test_a_watch_that_resumes_after_nothing_gets_a_new_snapshot() -> None:
    server = Server(
        changes(("snapshot", None), cut=True), changes(("snapshot", "main@r1"), cut=True), OVER
    )
    assert watched(server) == [("snapshot", "main@r1")]


def test_an_outage_that_is_too_long_ends_a_watch() -> None:
    server = Server(changes(("snapshot", "main@r1"), cut=True), httpx.ConnectError("refused"))
    found: list[str] = []
    with pytest.raises(ApiError, match="cannot be reached: refused"):
        found.extend(change.event for change in server.client(longest_outage_s=60.0).watch())
    assert found == ["snapshot"]
    assert max(server.slept) == LONGEST_PAUSE_S
    assert 60.0 <= sum(server.slept) <= 60.0 + LONGEST_PAUSE_S


def test_a_watch_ends_after_its_timeout() -> None:
    server = Server(changes(("snapshot", "main@r1")), httpx.ConnectError("refused"))
    assert [change.event for change in server.client().watch(timeout_s=30)] == ["snapshot"]
    assert sum(server.slept) == pytest.approx(30)


def test_a_step_without_an_id_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("yardmaster.transport.MOST_CHANGES", 2)
    server = Server(changes(*[("upsert", None)] * 3))
    with pytest.raises(ApiError, match="more than 2 changes arrived without an id"):
        next(server.client().watch())


def test_a_refused_watch_raises_the_problem() -> None:
    with pytest.raises(ApiError) as caught:
        next(iter(Server(problem(429, "rate_limited")).client().watch()))
    assert caught.value.problem.code == "rate_limited"


def output_stream(*pieces: tuple[int, int, str], end: str | None = None) -> httpx.Response:
    """A stream of output pieces (offset, seq, text); it ends with the phase `end`, or is cut."""
    text = "".join(
        f"event: output\nid: {offset}\n"
        f"data: {json.dumps({'attempt': 1, 'replica': 0, 'seq': seq, 'text': text})}\n\n"
        for offset, seq, text in pieces
    )
    if end is not None:
        text += f'event: end\ndata: {{"phase": "{end}"}}\n\n'
    return httpx.Response(200, text=text, headers={"Yard-Position": "main@r7"})


def test_output_is_read_as_text_or_in_pieces() -> None:
    assert "".join(Server(httpx.Response(200, text="a\nb\n")).client().logs("a.0")) == "a\nb\n"
    server = Server(output_stream((1, 0, "a\n"), end="succeeded"))
    assert list(server.client().logs("a.0", follow=True)) == ["a\n"]
    assert server.requests[0].url.params["follow"] == "true"
    server = Server(output_stream((1, 0, "a\n"), end="running"))
    assert [piece.text for piece in server.client().output("a.0")] == ["a\n"]
    assert server.requests[0].url.params["pieces"] == "true"


def test_characters_that_some_programs_take_for_line_ends_stay_within_output_and_changes() -> None:
    noisy = "a\u2028b\u2029c\x85d\x0be\x1cf\r\u202eg"
    piece = json.dumps({"attempt": 1, "replica": 0, "seq": 0, "text": noisy}, ensure_ascii=False)
    stream = f'event: output\r\ndata: {piece}\r\n\r\nevent: end\ndata: {{"phase": "failed"}}\n\n'

    def in_parts() -> Iterator[bytes]:
        content = stream.encode()
        yield from (content[at : at + 3] for at in range(0, len(content), 3))

    server = Server(httpx.Response(200, content=in_parts()))
    assert list(server.client().logs("a.0", follow=True)) == [noisy]
    item = json.dumps({"kind": "task", "item": {"name": noisy}}, ensure_ascii=False)
    server = Server(httpx.Response(200, text=f"event: upsert\nid: 1\ndata: {item}\n\n"), OVER)
    assert next(server.client().watch()).data["item"]["name"] == noisy


def test_a_closed_stream_of_followed_output_is_resumed_after_its_last_piece() -> None:
    server = Server(
        output_stream((4, 0, "a\n"), (6, 1, "b\n"), end="running"),
        output_stream((8, 1, "b\n"), (9, 2, "c\n"), end="failed"),
    )
    assert list(server.client().logs("a.0", follow=True, tail=5)) == ["a\n", "b\n", "c\n"]
    assert [request.headers.get("Last-Event-ID") for request in server.requests] == [None, "6"]
    assert len(server.slept) == 1


def test_followed_output_without_pieces_is_resumed_at_its_start() -> None:
    begun = httpx.Response(200, text="event: bookmark\nid: 4\ndata: {}\n\n")
    server = Server(begun, output_stream((6, 1, "b\n"), end="failed"))
    assert list(server.client().logs("a.0", follow=True, tail=0)) == ["b\n"]
    assert [request.headers.get("Last-Event-ID") for request in server.requests] == [None, "4"]


class RecordedOutages:
    """Records outages and recoveries."""

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
OUTAGE = (
    *(httpx.ConnectError("refused"),) * 3 * MAX_TRIES,
    httpx.Response(500, text="Internal Server Error"),
    httpx.Response(502, text="<html>"),
    problem(503, "not_ready"),
    problem(503, "view_behind"),
)


def test_a_client_that_waits_out_an_outage_never_reads_an_older_position() -> None:
    server = Server(PAGE, *OUTAGE, PAGE)
    client, outages = server.client(), RecordedOutages()
    client.wait_out_outages(outages)
    assert client.tasks(limit=1).items == []
    assert client.tasks(limit=1).items == []
    assert server.requests[0].headers.get("Yard-Min-Position") is None
    assert server.requests[-1].headers["Yard-Min-Position"] == "main@r3"
    assert outages.found[0] == outages.found[-1] == "back"
    assert set(outages.found[1:-1]) == {"unreachable", "bad_answer", "not_ready", "view_behind"}
    assert max(server.slept) == LONGEST_PAUSE_S
    assert server.slept[:6] == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0]


def test_followed_output_survives_outages_without_loss_or_repeat() -> None:
    server = Server(
        output_stream((4, 0, "a\n"), (6, 1, "b\n")),
        *OUTAGE,
        output_stream((8, 1, "b\n"), (9, 2, "c\n"), end="failed"),
    )
    client = server.client()
    client.wait_out_outages(RecordedOutages())
    assert list(client.logs("a.0", follow=True)) == ["a\n", "b\n", "c\n"]
    assert {request.headers.get("Last-Event-ID") for request in server.requests[1:]} == {"6"}


def test_a_gateway_that_has_never_answered_is_not_waited_for() -> None:
    server = Server(httpx.ConnectError("refused"))
    client = server.client()
    client.wait_out_outages(RecordedOutages())
    with pytest.raises(ApiError):
        client.tasks()
    assert len(server.requests) == MAX_TRIES


def test_a_permanent_failure_ends_the_wait_for_the_end_of_an_outage() -> None:
    server = Server(PAGE, problem(401, "unauthenticated"))
    client = server.client()
    client.wait_out_outages(RecordedOutages())
    client.tasks()
    with pytest.raises(ApiError) as caught:
        client.tasks()
    assert caught.value.status == 401


def test_server_sent_events_without_data_are_skipped() -> None:
    def lines() -> Iterator[str]:
        yield from ["event: nothing", "", "data: 1", ""]

    assert [(one.event, one.data) for one in parse_events(lines())] == [("message", 1)]


def test_certificates_are_loaded_for_https_only(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []

    def create_ssl_context() -> bool:
        read.append(True)
        return True

    monkeypatch.setattr(httpx, "create_ssl_context", create_ssl_context)
    for server in ("http://gateway:1", "https://gateway:1"):
        Client(server, None, sleep=time.sleep, new_key=lambda: "a-key")
        assert len(read) == server.startswith("https"), server


def test_a_client_needs_no_more_than_a_server() -> None:
    server = Server(httpx.Response(202, json=SUBMITTED))
    with Client("http://gateway:1", transport=httpx.MockTransport(server)) as client:
        client.submit(SPEC)
        client.submit(SPEC)
    keys = [request.headers["Idempotency-Key"] for request in server.requests]
    assert len(set(keys)) == 2
    assert all(len(key) == 32 for key in keys)
