"""Reads without models: what is sent, what is tried again, what an error becomes."""

import pytest

from tests.unit.cli.answers import Answer, answering
from yardmaster.errors import ApiError
from yardmaster.retry import MAX_TRIES
from yardmaster_cli.server.reader import Reader, trust

PROBLEM = {"type": "x", "title": "t", "status": 503, "detail": "not ready", "code": "view_behind"}


def reader(server: str, slept: list[float] | None = None) -> Reader:
    return Reader(server, "secret", sleep=(slept if slept is not None else []).append)


def test_a_read_sends_the_token_and_the_filters_and_returns_the_json() -> None:
    with answering(Answer({"items": [{"job_id": "a"}]})) as server:
        found = reader(server.url + "/").jobs(ref="a b", phase=["running", "pending"], user=None)
    assert found == {"items": [{"job_id": "a"}]}
    path, headers = server.asked[0]
    assert path == "/v1/jobs?ref=a+b&phase=running%2Cpending"
    assert headers["Authorization"] == "Bearer secret"


def test_all_pages_are_read() -> None:
    first = Answer({"items": [{"n": 1}], "next_cursor": "next"})
    with answering(first, Answer({"items": [{"n": 2}], "next_cursor": None})) as server:
        assert list(reader(server.url).all_tasks(limit=1)) == [{"n": 1}, {"n": 2}]
    assert server.asked[1][0] == "/v1/tasks?limit=1&cursor=next"


def test_a_request_to_a_gateway_that_is_not_ready_is_retried_after_the_time_it_names() -> None:
    slept: list[float] = []
    busy = Answer(PROBLEM, 503, {"Retry-After": "7"})
    with answering(busy, Answer({"ok": True})) as server:
        assert reader(server.url, slept).get("/v1/version") == {"ok": True}
    assert slept == [7.0]


def test_a_refusal_is_an_error_with_its_problem_document_and_is_not_tried_again() -> None:
    denied = {**PROBLEM, "status": 403, "code": "forbidden"}
    with answering(Answer(denied, 403)) as server, pytest.raises(ApiError) as caught:
        reader(server.url).get("/v1/version")
    assert (caught.value.status, caught.value.document["code"]) == (403, "forbidden")
    assert caught.value.problem.detail == "not ready"
    assert len(server.asked) == 1


def test_a_gateway_that_does_not_answer_is_unreachable_after_all_tries() -> None:
    with answering(Answer({})) as server:
        pass
    slept: list[float] = []
    with pytest.raises(ApiError) as caught:
        reader(server.url, slept).get("/v1/version")
    assert (caught.value.status, caught.value.document["code"]) == (0, "unreachable")
    assert server.url in caught.value.document["detail"]
    assert len(slept) == MAX_TRIES - 1


@pytest.mark.parametrize("answer", [Answer("oops", 500), Answer("<html>"), Answer("[1]")])
def test_an_answer_that_is_not_the_api_s_is_an_error_that_names_its_status(answer: Answer) -> None:
    with answering(answer) as server, pytest.raises(ApiError) as caught:
        reader(server.url).get("/v1/version")
    assert caught.value.document["code"] == "bad_answer"
    assert f"status {answer.status}" in caught.value.document["detail"]


def test_certificates_are_read_for_https_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
    assert trust("http://gateway:1", None).cert_store_stats()["x509_ca"] == 0
    trusted = trust("https://gateway:1", None)
    assert trusted.cert_store_stats()["x509_ca"] > 0
    assert trusted.check_hostname


def test_a_redirect_does_not_get_the_token() -> None:
    with answering(Answer({})) as other:
        moved = Answer("", 302, {"Location": other.url})
        with answering(moved) as server, pytest.raises(ApiError) as caught:
            reader(server.url).get("/v1/version")
    assert caught.value.status == 302
    assert other.asked == []


class Noted:
    """Notes when the gateway was lost and was back."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def lost(self, error: ApiError) -> None:
        self.found.append(error.document["code"])

    def back(self) -> None:
        self.found.append("back")


def test_reads_outlast_an_outage_and_cover_what_was_read_before() -> None:
    page = Answer({"items": []}, headers={"Yard-Position": "main@r3"})
    away = (Answer("Internal Server Error", 500), Answer("<html>", 502))
    with answering(page, *away, *away, *away, page) as server:
        slept: list[float] = []
        reader = Reader(server.url, sleep=slept.append, max_tries=2)
        noted = Noted()
        reader.tolerance.listener = noted
        assert reader.tasks() == reader.tasks() == {"items": []}
    assert noted.found == ["back", *["bad_answer"] * 5, "back"]
    assert slept == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0]
    assert "Yard-Min-Position" not in server.asked[0][1]
    assert {headers["Yard-Min-Position"] for _, headers in server.asked[1:]} == {"main@r3"}


def test_a_server_that_never_answered_is_not_waited_for() -> None:
    reader = Reader("http://127.0.0.1:9", sleep=lambda _: None, max_tries=2)
    reader.tolerance.listener = Noted()
    with pytest.raises(ApiError, match="cannot be reached"):
        reader.tasks()
