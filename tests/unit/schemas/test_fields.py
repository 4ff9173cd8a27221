"""Every field type has bounds: values at the bounds pass, values one step beyond do not."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from yardmaster_schemas import fields
from yardmaster_schemas.fields import MAX_INT
from yardmaster_schemas.plain import dump, load
from yardmaster_schemas.resources import Resources

TEN_YEARS_S = 10 * 365 * 86_400

#: name: (least, most)
INTEGERS = {
    "Count": (0, MAX_INT),
    "Positive": (1, MAX_INT),
    "Permille": (0, 1000),
    "SignedInt": (-MAX_INT, MAX_INT),
    "Millis": (0, 253_402_300_799_999),
    "Seconds": (0, TEN_YEARS_S),
    "Priority": (1, 99),
    "Rank": (0, 1000),
    "SlotIndex": (0, 1023),
    "GpuMilli": (0, 1000),
    "Port": (1, 65_535),
    "ReplicaIndex": (0, 4095),
    "RunAsId": (1, 2_099_999_999),
}
#: name: (what passes, what does not)
STRINGS: dict[str, tuple[list[str], list[str]]] = {
    "Name": (["a", "0", "gpu-07", "a" * 63, "a.b_c"], ["", "A", "-a", "a-", "a" * 64, "a b", "ä"]),
    "JobId": (["4kq7w2mz9c1f"], ["4kq7w2mz9c1", "4kq7w2mz9c1f0", "4KQ7w2mz9c1f"]),
    "TaskId": (
        ["4kq7w2mz9c1f.0", "4kq7w2mz9c1f.9999"],
        ["4kq7w2mz9c1f", "4kq7w2mz9c1f.", "4kq7w2mz9c1f.01", "4kq7w2mz9c1f.10000"],
    ),
    "Source": (
        ["gateway/gw-1", "scheduler/main.5f0c1e2d3a4b", "node_agent/" + "n" * 91],
        ["gateway", "gateway/", "Gateway/x", "a/b/c", "node/" + "n" * 92, "a" * 21 + "/x"],
    ),
    "RecordId": (
        ["gateway/gw-1/0/0", "node/gpu-07/9/9999999999999999"],
        ["gateway/gw-1", "gateway/gw-1/0", "gateway/gw-1/-1/0", "node/n/1/" + "1" * 17],
    ),
    "Incarnation": (["5f0c1e2d3a4b"], ["5f0c1e2d3a4", "5F0C1E2D3A4B", "5f0c1e2d3a4bc"]),
    "Digest": (["0f" * 32], ["0f" * 31, "0F" * 32, "0f" * 33]),
    "CommitId": (["0f" * 20], ["0f" * 19, "0F" * 20, "main", "0f" * 21]),
    "GitHost": (
        ["git.example.org", "127.0.0.1:8443", "h"],
        ["", "-c", "h:", "H", "h/x", "https://h", "a@h", "h:123456", "h x"],
    ),
    "GitUrl": (
        ["https://h/x", "https://git.example.org:8443/team/repo.git", "https://10.0.0.7/~a/b_c"],
        [
            *(
                "http://h/x",
                "ssh://h/x",
                "https://u@h/x",
                "https://h",
                "https://h/",
                "https://h/x?y",
            ),
            *("https://h/x#y", "https://h/a b", "https://H/x", "-c", "https://h/x%2e", "git@h:x"),
        ],
    ),
    "Signature": (["0f" * 64], ["0f" * 32, "zz" * 64]),
    "RecordMarks": (["", "0f" * 8, "0f" * 8 * 65_536], ["0f" * 7, "0f" * 8 * 65_537]),
    "ShapeId": (["0f" * 8], ["0f" * 7]),
    "Code": (["a", "a1_b", "a" * 41], ["", "1a", "A", "a" * 42, "a-b"]),
    "LogId": (["0f" * 16], ["0f" * 15]),
    "TraceParent": ([f"00-{'0f' * 16}-{'0f' * 8}-01"], ["", f"01-{'0f' * 16}-{'0f' * 8}-01"]),
    "ClaimantName": (["vision", "A.b_c@d:e-f", "project/vision"], ["", "a b", "job/vision", "a/b"]),
    "PrincipalId": (["u", "A.b_c@d:e-f", "u" * 128], ["", "a b", "@u", "u" * 129]),
    "UserName": (["u", "A.b_c:d-e", "u" * 63], ["", "a b", ".u", "a@b", "u" * 64]),
    "Address": (["gpu-07", "10.0.0.7", "2001:db8::1", "a" * 254], ["", "a b", "-a", "a" * 255]),
    "CheckpointUri": (
        ["s3://runs/4kq7/step-1", "file:///data/c", "https://x/" + "y" * 1014],
        [
            *("", "runs/1", "ftp://x/y", "s3://", "s3://a b", "s3://u@h/x", "s3://x?y", "s3://x#y"),
            "https://x/" + "y" * 1015,
        ],
    ),
    "MountGrant": (
        ["datasets", "scratch:rw", "a" * 63 + ":rw"],
        ["", ":rw", "a:ro", "a:rw:rw", "A", "a/b", "a" * 64],
    ),
    "UserGrant": (
        ["1:1", "1500:100", "2099999999:2099999999"],
        ["", "1500", "0:1", "1:0", "01:1", "2100000000:1", "1:9999999999", "ada:ada", "1:1:1"],
    ),
    "ListedName": (
        ["datasets", "docker.io/library/python", "[::1]:5000/a", "a" * 255],
        ["", "A", "a b", "ä", "a" * 256],
    ),
    "CheckpointPrefix": (
        ["s3://runs/", "s3://runs/nlp", "file:///data/", "https://x/" + "y" * 246],
        [
            *("", "runs/", "ftp://x/", "s3://", "s3://a b", "s3://u@h/", "s3://x?y", "s3://x#y"),
            "https://x/" + "y" * 247,
        ],
    ),
}
NOT_INTEGERS = [1.0, "1", True, None, [1], 2**64, float("nan")]


def adapter(name: str) -> TypeAdapter[Any]:
    return TypeAdapter(getattr(fields, name), config=None)


def refuses(name: str, value: object) -> bool:
    try:
        adapter(name).validate_python(value, strict=True)
    except ValidationError:
        return True
    return False


def test_every_field_type_is_tested() -> None:
    kinds = {
        name
        for name, value in vars(fields).items()
        if hasattr(value, "__metadata__") and value.__origin__ in (int, str)
    }
    texts = {"ShortText", "LongText"}
    assert kinds - texts == {*INTEGERS, *STRINGS}


@pytest.mark.parametrize("name", INTEGERS)
def test_an_integer_holds_its_bounds(name: str) -> None:
    least, most = INTEGERS[name]
    assert not refuses(name, least)
    assert not refuses(name, most)
    assert refuses(name, least - 1)
    assert refuses(name, most + 1)
    for value in NOT_INTEGERS:
        assert refuses(name, value), value


@pytest.mark.parametrize("name", INTEGERS)
@given(data=st.data())
def test_no_integer_beyond_its_bounds_is_accepted(name: str, data: st.DataObject) -> None:
    least, most = INTEGERS[name]
    value = data.draw(st.integers() | st.integers(least - 2, least + 2))
    assert refuses(name, value) is not (least <= value <= most)


@pytest.mark.parametrize("name", STRINGS)
def test_a_string_holds_its_pattern(name: str) -> None:
    good, bad = STRINGS[name]
    for value in good:
        assert not refuses(name, value), value[:80]
    for value in bad:
        assert refuses(name, value), value[:80]
    for value in good:
        assert refuses(name, value + "\n") or not value, "a line break at the end"
        assert refuses(name, value + " ")


@pytest.mark.parametrize("name", STRINGS)
@given(text=st.text(min_size=1, max_size=30).filter(lambda t: not t.isascii() or " " in t))
def test_no_pattern_accepts_words_or_other_alphabets(name: str, text: str) -> None:
    assert refuses(name, text)


@pytest.mark.parametrize(("name", "most"), [("ShortText", 256), ("LongText", 65_536)])
def test_text_that_expires_is_bounded_too(name: str, most: int) -> None:
    assert not refuses(name, "ü" * most)
    assert refuses(name, "ü" * (most + 1))


@pytest.mark.parametrize(
    ("name", "most", "entry"),
    [
        ("Numbers", 24, lambda i: (f"n{i}", i)),
        ("Labels", 64, lambda i: (f"k{i}", "v")),
    ],
)
def test_a_mapping_has_a_maximum_size(name: str, most: int, entry: Any) -> None:
    assert not refuses(name, dict(entry(i) for i in range(most)))
    assert refuses(name, dict(entry(i) for i in range(most + 1)))


def test_names_have_a_maximum_count() -> None:
    assert not refuses("Names", ("a",) * 64)
    assert refuses("Names", ("a",) * 65)


@given(
    gpus=st.integers(0, 1024),
    gpu_milli=st.integers(0, 1000),
    cpu_milli=st.integers(0, MAX_INT),
    memory_mib=st.integers(0, MAX_INT),
)
def test_resources_have_both_gpus_and_gpu_milli_or_neither(
    gpus: int, gpu_milli: int, cpu_milli: int, memory_mib: int
) -> None:
    amounts = {"cpu_milli": cpu_milli, "memory_mib": memory_mib}
    if (gpus == 0) != (gpu_milli == 0):
        with pytest.raises(ValueError, match="both zero or both positive"):
            Resources(gpus=gpus, gpu_milli=gpu_milli, **amounts)
        return
    made = Resources(gpus=gpus, gpu_milli=gpu_milli, **amounts)
    assert made.gpu_total_milli == gpus * gpu_milli
    assert load(Resources, dump(made)) == made
