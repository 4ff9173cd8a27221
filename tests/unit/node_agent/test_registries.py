"""Credentials of registries, from a file like Docker's config.json."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from yardmaster_node_agent.executors.registries import (
    AuthsUnusable,
    Credentials,
    RegistryAuths,
)


def auth(user: str, password: str) -> dict[str, str]:
    return {"auth": base64.b64encode(f"{user}:{password}".encode()).decode()}


def auths(tmp_path: Path, content: Any) -> RegistryAuths:
    path = tmp_path / "config.json"
    path.write_text(content if isinstance(content, str) else json.dumps({"auths": content}))
    return RegistryAuths(path)


def test_the_longest_key_that_the_name_of_the_image_begins_with_counts(tmp_path: Path) -> None:
    found = auths(
        tmp_path,
        {
            "https://index.docker.io/v1/": auth("hub", "a"),
            "example.org": auth("all", "b:c"),
            "https://example.org/team": {"username": "team", "password": "d"},
            "token.org": {"identitytoken": "secret"},
        },
    )
    users = {
        "python:3": ("hub", "a"),
        "example.org/other/x": ("all", "b:c"),
        "example.org/team/x:1": ("team", "d"),
        "example.org/teams/x": ("all", "b:c"),
    }
    for reference, (user, password) in users.items():
        login = found.of(reference)
        assert login is not None
        assert (login.username, login.password) == (user, password), reference
    assert found.of("example.com/x") is None
    token = found.of("token.org/x")
    assert token is not None
    assert json.loads(base64.urlsafe_b64decode(token.header)) == {
        "identitytoken": "secret",
        "serveraddress": "token.org",
    }


@pytest.mark.parametrize(
    "content",
    [
        "secret",
        '{"auths": ["secret"]}',
        {"example.org": {}},
        {"example.org": "secret"},
        {"example.org": {"auth": "secret!"}},
        {"example.org": {"username": "secret"}},
    ],
)
def test_a_file_that_cannot_be_used_is_refused_without_its_content(
    tmp_path: Path, content: Any
) -> None:
    with pytest.raises(AuthsUnusable) as refused:
        auths(tmp_path, content).of("example.org/x")
    assert "secret" not in str(refused.value)


def test_the_beginning_of_a_secret_at_the_end_of_a_text_is_hidden() -> None:
    login = Credentials("r", "ada", "analytical-engine")
    assert login.hidden_in("denied for analytical-eng") == "denied for ***"
    assert login.hidden_in("denied for analyt") == "denied for ***"
    assert login.hidden_in("denied for ana") == "denied for ana"
    assert login.hidden_in("denied for analytical-engine") == "denied for ***"


def test_secrets_are_hidden_in_texts_and_not_part_of_the_representation(tmp_path: Path) -> None:
    login = auths(tmp_path, {"example.org": auth("ada", "lovelace")}).of("example.org/x")
    assert login is not None
    pair = auth("ada", "lovelace")["auth"]
    text = login.hidden_in(f"Basic {pair} of lovelace in {login.header}")
    assert text == "Basic *** of *** in ***"
    assert "lovelace" not in repr(login)
