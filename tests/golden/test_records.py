"""A record of every event version ever published is decoded, and encodes to the same bytes.

`make golden` (YARDMASTER_GOLDEN=rewrite) writes the records of versions that no release has
published. It never rewrites another one: what a release wrote must stay readable as it is.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.events import key_of, sample, schema
from yardmaster_eventlog.codec import decode, encode
from yardmaster_eventlog.port import Record
from yardmaster_schemas.events import EVENTS
from yardmaster_schemas.generate import FOLDER as SCHEMAS
from yardmaster_schemas.generate import published_in

FOLDER = Path(__file__).parent / "records"
NAMES = sorted(f"{type_}.v{version}" for type_, version in EVENTS)
VARIANTS = {"full": True, "least": False}


def written(record: Record) -> dict[str, Any]:
    assert record.value is not None
    return {
        "key": record.key.decode(),
        "headers": {name: content.decode() for name, content in record.headers},
        "value": record.value.decode(),
    }


def read(plain: dict[str, Any]) -> Record:
    headers = tuple((name, content.encode()) for name, content in plain["headers"].items())
    return Record(key=plain["key"].encode(), value=plain["value"].encode(), headers=headers)


@pytest.fixture(scope="module", autouse=True)
def _missing_records() -> None:
    if os.environ.get("YARDMASTER_GOLDEN") != "rewrite":
        return
    published = published_in(SCHEMAS)
    for path in FOLDER.glob("*.json"):
        if path.stem not in {*published, *NAMES}:
            path.unlink()
    for (type_, version), cls in EVENTS.items():
        path = FOLDER / f"{type_}.v{version}.json"
        if path.stem not in published:
            records = {
                variant: written(encode(sample(cls, full=full), key_of(cls)))
                for variant, full in VARIANTS.items()
            }
            path.write_text(json.dumps(records, indent=1, ensure_ascii=False) + "\n")


@pytest.mark.parametrize("name", NAMES)
def test_a_golden_record_is_decoded_and_encodes_to_the_same_bytes(name: str) -> None:
    path = FOLDER / f"{name}.json"
    assert path.exists(), f"no golden record of {name}: run `make golden`, and commit it"
    for variant, plain in json.loads(path.read_text()).items():
        record = read(plain)
        envelope = decode(record)
        cls: type[Any] = type(envelope.data)
        assert f"{envelope.type}.v{envelope.version}" == name
        assert encode(envelope, plain["key"]) == record, f"{name}, {variant}: other bytes"
        if variant == "full":
            given = json.loads(plain["value"])
            assert set(given["data"]) == set(schema(cls)["$defs"][cls.TYPE]["properties"])


def test_every_golden_record_is_of_a_known_event() -> None:
    """Without the type of a published event, existing logs could not be read."""
    assert sorted(path.stem for path in FOLDER.glob("*.json")) == NAMES
