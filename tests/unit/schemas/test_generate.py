"""The generated documents are those in the tree; a published version keeps its meaning."""

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.support.events import schema
from yardmaster_schemas import generate
from yardmaster_schemas.envelope import Event
from yardmaster_schemas.events import EVENTS
from yardmaster_schemas.topics import ASSIGNED, DECISIONS, INPUT_ORDER, TOPICS

GOLDEN = Path(__file__).parents[2] / "golden" / "records"
CLASSES = [pytest.param(cls, id=f"{t}.v{v}") for (t, v), cls in sorted(EVENTS.items())]


@pytest.fixture(scope="module")
def asyncapi() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(generate.documents()["asyncapi.json"])
    return document


def test_the_generated_files_match_the_models() -> None:
    """If this fails, run `make schemas` and commit the changes."""
    assert generate.main(["--check"]) == 0


def test_generating_twice_gives_the_same_bytes() -> None:
    assert generate.documents() == generate.documents()


def test_no_published_version_has_another_meaning_now() -> None:
    assert generate.broken(generate.published_in(generate.FOLDER)) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s["$defs"]["TaskPaused"]["properties"].update(more={"type": "boolean"}),
        lambda s: s["$defs"]["TaskPaused"]["properties"].pop("index"),
        lambda s: s["$defs"]["TaskPaused"]["properties"]["job_id"].update(pattern="^x$"),
        lambda s: s["$defs"]["TaskPaused"].update(required=["job_id", "index"]),
        lambda s: s["$defs"]["TaskPaused"].update(additionalProperties=True),
        lambda s: s["properties"]["time_ms"].update(maximum=9),
        lambda s: s["$defs"]["ActorKind"]["enum"].append("robot"),
    ],
)
def test_any_change_of_a_closed_model_is_a_change_of_meaning(change: Any) -> None:
    before = schema(EVENTS["TaskPaused", 1])
    after = json.loads(json.dumps(before))
    change(after)
    assert generate.digest(after) != generate.digest(before)


def test_descriptions_may_change() -> None:
    before = schema(EVENTS["TaskPaused", 1])
    after = json.loads(json.dumps(before))
    after["description"] = after["title"] = "said otherwise"
    after["$defs"]["TaskPaused"]["properties"]["job_id"]["description"] = "which"
    assert generate.digest(after) == generate.digest(before)


def test_a_field_named_like_a_description_is_part_of_the_meaning() -> None:
    thing = {"properties": {"title": {"type": "string"}}}
    other = {"properties": {"title": {"type": "integer"}}}
    assert generate.digest(thing) != generate.digest(other)


def test_a_published_version_that_changed_or_is_gone_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert generate.main(["--folder", str(tmp_path)]) == 0
    assert generate.published_in(tmp_path) == {}, "no version is published before a release"
    assert generate.main(["--folder", str(tmp_path), "--publish"]) == 0
    published = generate.published_in(tmp_path)
    assert sorted(published) == sorted(f"{t}.v{v}" for t, v in EVENTS)
    path = tmp_path / generate.PUBLISHED
    path.write_text(json.dumps({**published, "TaskPaused.v1": "0" * 64, "Gone.v3": "1" * 64}))
    before = {p: p.read_bytes() for p in tmp_path.glob("**/*.json")}
    assert generate.main(["--folder", str(tmp_path)]) == 1
    assert "Gone.v3, TaskPaused.v1" in capsys.readouterr().err
    assert {p: p.read_bytes() for p in tmp_path.glob("**/*.json")} == before


def test_check_names_what_differs_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert generate.main(["--folder", str(tmp_path)]) == 0
    (tmp_path / "reasons.json").write_text("{}")
    (tmp_path / "events" / "Old.v1.json").write_text("{}")
    capsys.readouterr()
    assert generate.main(["--folder", str(tmp_path), "--check"]) == 1
    assert "events/Old.v1.json, reasons.json" in capsys.readouterr().err
    assert (tmp_path / "reasons.json").read_text() == "{}"
    assert generate.main(["--folder", str(tmp_path)]) == 0
    assert not (tmp_path / "events" / "Old.v1.json").exists()
    assert generate.main(["--folder", str(tmp_path), "--check"]) == 0


@pytest.mark.parametrize("cls", CLASSES)
def test_a_schema_is_valid_described_and_accepts_the_golden_records(
    cls: type[Event],
) -> None:
    document = schema(cls)
    Draft202012Validator.check_schema(document)
    assert document["title"] == f"{cls.TYPE} version {cls.VERSION}"
    assert len(document["description"]) > 20
    records = json.loads((GOLDEN / f"{cls.TYPE}.v{cls.VERSION}.json").read_text())
    validator = Draft202012Validator(document)
    for record in records.values():
        value = json.loads(record["value"])
        assert [e.message for e in validator.iter_errors(value)] == []
        value["data"]["unheard_of"] = 1
        assert not validator.is_valid(value), "the schema is not closed"


@pytest.mark.parametrize("cls", CLASSES)
def test_every_model_is_described_and_closed(cls: type[Event]) -> None:
    for name, definition in schema(cls)["$defs"].items():
        if name == "JsonValue":
            continue
        assert definition.get("description"), f"{name} has no docstring"
        if definition.get("type") == "object":
            assert definition["additionalProperties"] is False, f"{name} is open"


def test_docstrings_describe_the_fields_they_name() -> None:
    fields = schema(EVENTS["TaskRequeued", 1])["$defs"]["TaskRequeued"]["properties"]
    assert fields["restarts"]["description"] == "`restarts` counts the failures so far"
    assert "title" not in fields["restarts"]


def test_every_reference_of_the_asyncapi_document_resolves(asyncapi: Any) -> None:
    files = generate.documents()
    for reference in references(asyncapi):
        if reference.startswith("./"):
            assert reference.removeprefix("./") in files, reference
            continue
        at = asyncapi
        for part in reference.removeprefix("#/").split("/"):
            at = at[part]
        assert at


def references(node: Any) -> list[str]:
    if isinstance(node, list):
        return [r for each in node for r in references(each)]
    if not isinstance(node, dict):
        return []
    own = [node["$ref"]] if "$ref" in node else []
    return own + [r for each in node.values() for r in references(each)]


def test_channels_are_those_of_the_catalog_with_their_events(asyncapi: Any) -> None:
    channels = {c["address"]: c for c in asyncapi["channels"].values()}
    assert sorted(channels) == sorted([*TOPICS, "assignments.{node}"])
    for name, topic in TOPICS.items():
        carried = {f"{t}.v{v}" for (t, v), cls in EVENTS.items() if name in cls.TOPICS}
        assert set(channels[name]["messages"]) == carried
        configuration = channels[name]["bindings"]["kafka"]["topicConfiguration"]
        assert configuration["max.message.bytes"] == topic.max_batch_bytes
        assert ("compact" in configuration["cleanup.policy"]) is topic.compacted
    for name in INPUT_ORDER:
        configuration = channels[name]["bindings"]["kafka"]["topicConfiguration"]
        assert configuration["retention.ms"] == -1, f"{name} is kept for ever"
    copied = {message.partition(".")[0] for message in channels["assignments.{node}"]["messages"]}
    assert copied == set(ASSIGNED)
    assert all(DECISIONS.name in EVENTS[name, 1].TOPICS for name in ASSIGNED)


def test_the_operations_name_the_writers_and_readers(asyncapi: Any) -> None:
    operations = asyncapi["operations"]
    for name, topic in TOPICS.items():
        channel = name.replace("-", "_")
        for action, services in (("send", topic.writers), ("receive", topic.readers)):
            named = {
                key.partition(".")[0]
                for key, operation in operations.items()
                if operation["action"] == action
                and operation["channel"]["$ref"] == f"#/channels/{channel}"
            }
            assert named == set(services), name
