"""The names of images in the form of the engines, and the prefixes of allow-lists."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yardmaster_schemas.image_names import is_allowed, prefix_of, repository_of

DIGEST = "0f1e2d3c4b5a6978" * 4


@pytest.mark.parametrize(
    ("reference", "repository"),
    [
        ("python", "docker.io/library/python"),
        ("python:3.12", "docker.io/library/python"),
        (f"python:3.12@sha256:{DIGEST}", "docker.io/library/python"),
        ("docker.io/python", "docker.io/library/python"),
        ("team/train:1", "docker.io/team/train"),
        ("index.docker.io/team/train", "docker.io/team/train"),
        ("registry-1.docker.io/team/train", "docker.io/team/train"),
        ("registry.example.org/train", "registry.example.org/train"),
        ("Registry.Example.org/team/train:1", "registry.example.org/team/train"),
        ("127.0.0.1:5000/team/train:1", "127.0.0.1:5000/team/train"),
        ("[::1]:5000/train", "[::1]:5000/train"),
        ("localhost/train", "localhost/train"),
    ],
)
def test_an_image_is_known_by_its_registry_and_path(reference: str, repository: str) -> None:
    assert repository_of(reference) == repository


@pytest.mark.parametrize(
    "reference", ["", "Python", "a//b", "a/../b", "a b", "-x", "python@sha256:0", "a/b/", "ä"]
)
def test_what_names_no_image_is_refused(reference: str) -> None:
    with pytest.raises(ValueError, match="is not the name of an image"):
        repository_of(reference)


def test_a_name_with_capital_letters_needs_a_registry_with_a_domain() -> None:
    with pytest.raises(ValueError, match="'Team' is no registry"):
        repository_of("Team/train")


@pytest.mark.parametrize("reference", [DIGEST, f"sha256:{DIGEST}"])
def test_the_id_of_an_image_is_not_its_name(reference: str) -> None:
    with pytest.raises(ValueError, match="is the id of an image: give its name"):
        repository_of(reference)


@pytest.mark.parametrize(
    ("entry", "prefix"),
    [
        ("python", "docker.io/library/python"),
        ("library/", "docker.io/library"),
        ("team/", "docker.io/team"),
        ("team/train", "docker.io/team/train"),
        ("docker.io", "docker.io"),
        ("docker.io/", "docker.io"),
        ("registry.example.org", "registry.example.org"),
        ("registry.example.org/team/", "registry.example.org/team"),
        ("localhost:5000", "localhost:5000"),
    ],
)
def test_an_entry_of_a_list_is_written_as_images_are(entry: str, prefix: str) -> None:
    assert prefix_of(entry) == prefix


@pytest.mark.parametrize(
    "entry", ["", "/", "a//b", "docker.io//", "python:3.12-slim", "a@b", "*", "team/*", "Team/"]
)
def test_an_entry_with_a_tag_or_a_pattern_is_refused(entry: str) -> None:
    with pytest.raises(ValueError, match="without tag and digest"):
        prefix_of(entry)


@pytest.mark.parametrize(
    ("entry", "reference", "allowed"),
    [
        ("registry.example.org", "registry.example.org/team/train:1", True),
        ("registry.example.org", "registry.example.org.evil.net/train", False),
        ("registry.example.org/team/", "registry.example.org/team/train", True),
        ("registry.example.org/team/", "registry.example.org/team2/train", False),
        ("registry.example.org/team/train", "registry.example.org/team/train-next", False),
        ("registry.example.org/team/train", "registry.example.org/team/train/cuda", True),
        ("registry.example.org", "registry.example.org:5000/train", False),
        ("docker.io", "python:3.12", True),
        ("python", "python:3.12", True),
        ("python", "team/python", False),
        ("registry.example.org", "python", False),
    ],
)
def test_an_entry_allows_whole_parts_of_names(entry: str, reference: str, allowed: bool) -> None:
    assert is_allowed(repository_of(reference), [entry]) is allowed


HOSTS = st.sampled_from(["", "docker.io/", "localhost/", "[::1]:5000/", "R.example.org:443/", "a/"])
PARTS = st.lists(st.sampled_from(["a", "library", "a-b", "c.d", "e__f"]), min_size=1, max_size=3)
ENDS = st.sampled_from(["", ":1", ":v_1.2-x", f"@sha256:{DIGEST}", f":1@sha256:{DIGEST}"])


@given(HOSTS, PARTS, ENDS)
def test_the_repository_of_any_image_keeps_its_form_and_allows_the_image(host, parts, end):
    repository = repository_of(f"{host}{'/'.join(parts)}{end}")
    assert repository_of(repository) == repository
    assert is_allowed(repository, [repository])
    assert is_allowed(repository, [repository.partition("/")[0]])
    assert not is_allowed(f"{repository}x", [repository])
    assert re.fullmatch(r"[a-z0-9.:\[\]-]+(/[a-z0-9._-]+)+", repository)


def test_a_repository_is_as_long_as_engines_allow() -> None:
    longest = "a" * (255 - len("docker.io/library/"))
    assert len(repository_of(f"{longest}:1.4")) == 255
    with pytest.raises(ValueError, match="is longer than 255 characters"):
        repository_of(f"{longest}a:1.4")
