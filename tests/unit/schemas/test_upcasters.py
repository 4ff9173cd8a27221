"""Bodies of old versions are upcast before validation, step by step."""

import json
from typing import Any

import pytest

from tests.support.events import sample
from yardmaster_eventlog import codec
from yardmaster_eventlog.port import Record
from yardmaster_schemas.errors import MalformedRecord, UnknownVersion
from yardmaster_schemas.events import EVENTS
from yardmaster_schemas.upcasters import UPCASTERS, Body, upcast


def renamed(body: Body) -> Body:
    """An invented version 0 of TaskPaused: `job` was not yet `job_id`."""
    return {("job_id" if key == "job" else key): value for key, value in body.items()}


def old_record() -> Record:
    """A record that says it is version 0, with a body that version 1 would refuse."""
    new = codec.encode(sample(EVENTS["TaskPaused", 1]), "main")
    assert new.value is not None
    value = json.loads(new.value)
    value["version"] = 0
    value["data"]["job"] = value["data"].pop("job_id")
    headers = tuple((n, b"0" if n == "yard_version" else c) for n, c in new.headers)
    return Record(key=b"main", value=json.dumps(value).encode(), headers=headers)


def test_steps_follow_one_another() -> None:
    steps = {
        ("X", 1): lambda body: {**body, "two": True},
        ("X", 2): lambda body: {**body, "three": True},
        ("Y", 3): lambda body: {},
    }
    assert upcast("X", 1, {"one": True}, steps) == (3, {"one": True, "two": True, "three": True})
    assert upcast("X", 2, {}, steps) == (3, {"three": True})
    assert upcast("X", 3, {"new": 1}, steps) == (3, {"new": 1})


def test_a_step_does_not_change_its_input() -> None:
    body = {"job": "4kq7w2mz9c1f"}
    upcast("TaskPaused", 0, body, {("TaskPaused", 0): renamed})
    assert body == {"job": "4kq7w2mz9c1f"}


def test_an_old_record_is_upcast_before_it_is_validated(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: Any = {("TaskPaused", 0): renamed}
    monkeypatch.setattr(codec, "UPCASTERS", steps)
    monkeypatch.setattr(codec, "upcast", lambda t, v, body: upcast(t, v, body, steps))
    envelope = codec.decode(old_record())
    assert envelope.version == 1
    assert envelope.data == sample(EVENTS["TaskPaused", 1]).data


def test_the_result_of_a_step_is_validated(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: Any = {("TaskPaused", 0): lambda body: {**renamed(body), "job_id": "no id"}}
    monkeypatch.setattr(codec, "UPCASTERS", steps)
    monkeypatch.setattr(codec, "upcast", lambda t, v, body: upcast(t, v, body, steps))
    with pytest.raises(MalformedRecord, match="job_id"):
        codec.decode(old_record())


def test_a_version_without_a_step_is_unknown() -> None:
    with pytest.raises(UnknownVersion, match="version 0"):
        codec.decode(old_record())


def test_every_step_leads_to_a_published_version() -> None:
    for type_, version in UPCASTERS:
        reached, _ = version, None
        while (type_, reached) in UPCASTERS:
            reached += 1
        assert (type_, reached) in EVENTS
