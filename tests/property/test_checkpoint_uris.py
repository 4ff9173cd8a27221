"""A URI within a prefix stays within it, however a program decodes and normalizes it."""

import posixpath
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yardmaster_core.checkpoint_uris import is_within

PREFIX = "s3://runs/nlp"
#: What paths are made of that leave a folder, and what names are made of.
PARTS = st.sampled_from(
    [
        *(
            "runs",
            "nlp",
            "nlp2",
            "NLP",
            "x",
            "..",
            ".",
            "",
            "%2e%2e",
            "%2E.",
            ".%2e",
            "%2f",
            "..%2F",
        ),
        *("%5c", "..%5c..", "%252e%252e", "%25", "%zz", "%", "%00", "a%20b", "~", "...", "%c0%ae"),
    ]
)
URIS = st.builds(
    lambda begin, parts: begin + "/".join(parts),
    st.sampled_from(["s3://", "s3://runs/", "s3://runs/nlp", "s3://runs/nlp/", "S3://runs/nlp/"]),
    st.lists(PARTS, max_size=6),
)


def readings(uri: str) -> set[str]:
    """The places that a program may take a URI for: decoded up to three times, with backslashes as
    slashes, and normalized.
    """
    found = [uri]
    for _ in range(3):
        found.append(unquote(found[-1]))
    either = [*found, *(one.replace("\\", "/") for one in found)]
    return {posixpath.normpath(one.partition("://")[2]) for one in either}


@given(URIS)
def test_no_reading_of_an_allowed_uri_is_outside_its_prefix(uri: str) -> None:
    if is_within(uri, [PREFIX]):
        assert uri.startswith("s3://")
        for place in readings(uri):
            assert place == "runs/nlp" or place.startswith("runs/nlp/"), place


@given(st.lists(st.sampled_from(["x", "a%20b", "step-1", "~", "...", "a.b"]), max_size=4))
def test_a_plain_path_below_a_prefix_is_allowed(parts: list[str]) -> None:
    for prefix in (PREFIX, f"{PREFIX}/"):
        assert is_within("/".join([PREFIX, *parts]), ["file:///else", prefix])


@pytest.mark.parametrize(
    ("uri", "prefix", "within"),
    [
        ("file:///data/nlp/x", "file:///", True),
        ("file:///data/nlp/x", "file:///data", True),
        ("file:////data/x", "file:///data", False),
        ("s3://runs2/x", "s3://runs", False),
        ("gs://runs/nlp/x", PREFIX, False),
        ("s3://runs/nlp/%2e%2e/x", "s3://runs", False),
    ],
)
def test_a_prefix_ends_at_the_end_of_a_segment(uri: str, prefix: str, within: bool) -> None:
    assert is_within(uri, [prefix]) is within


def test_without_a_prefix_any_uri_is_allowed() -> None:
    assert is_within("s3://anywhere/../x", [])
