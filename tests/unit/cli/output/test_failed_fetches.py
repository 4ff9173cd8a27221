"""Starts that failed because nodes could not have the image or the commit."""

from collections.abc import Iterator
from typing import Any

import pytest

from yardmaster_cli.output.failed_fetches import failed_fetch_lines
from yardmaster_node_agent.errors import (
    CommitMissing,
    CommitRefused,
    CommitUnusable,
    GitFailed,
    RunRefused,
)

WORDS = "image team/train:2: manifest unknown"
SAID = f"never started: Not started: {WORDS}.\n"


def attempt(number: int, end: str | None, *nodes: str) -> dict[str, Any]:
    replicas = [{"replica": index, "node": node} for index, node in enumerate(nodes)]
    return {"attempt": number, "end": end, "replicas": replicas}


def said(replicas: int) -> Any:
    """The output of attempts in which this number of replicas could not have the image."""

    def output(_: int) -> Iterator[tuple[int, str]]:
        yield from ((replica, SAID) for replica in range(replicas))
        yield replicas, "never started: stopped before it started: gang_incomplete\n"

    return output


def test_starts_in_a_row_that_failed_alike_count_by_their_nodes() -> None:
    attempts = [
        attempt(1, "image_unreachable", "n9"),
        attempt(2, "image_missing", "n1"),
        attempt(3, "image_missing", "n2"),
    ]
    first = "Last start  image not found (checked on 2 nodes)"
    assert failed_fetch_lines(attempts, said(1)) == [first, f"            {WORDS}"]


def test_replicas_that_were_stopped_meanwhile_checked_nothing() -> None:
    gang = [attempt(1, "image_missing", "n1", "n2", "n3")]
    assert failed_fetch_lines(gang, said(2))[0].endswith("image not found (checked on 2 nodes)")


def test_without_the_words_of_agents_the_cause_is_shown_alone() -> None:
    refused = [attempt(1, "image_refused", "n1")]
    cause = "the registry refuses the image, or its name is not valid"
    assert failed_fetch_lines(refused, lambda _: ()) == [f"Last start  {cause}"]


@pytest.mark.parametrize("end", [None, "exit", "never_started"])
def test_other_ends_are_no_failed_fetches(end: str | None) -> None:
    assert failed_fetch_lines([attempt(1, end, "n1")], said(1)) == []
    assert failed_fetch_lines([], said(1)) == []


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (CommitMissing(found="git: fatal: x"), "commit or repository not found"),
        (
            CommitRefused(found="git: fatal: x"),
            "the git server refuses the node, or asks for a login",
        ),
        (CommitUnusable(found="git: fatal: x"), "the files of the commit cannot be used"),
    ],
)
def test_commits_that_cannot_be_had_are_shown_with_the_words_of_git(
    error: GitFailed, cause: str
) -> None:
    refused = RunRefused(replica="4kq7w2mz9c1f.0.1.0", found=error, failure=error.failure)
    output = [(0, f"never started: {refused}\n")]
    lines = failed_fetch_lines([attempt(1, error.failure.value, "n1")], lambda _: output)
    assert lines[0] == f"Last start  {cause} (checked on 1 node)"
    assert "git: fatal: x" in lines[1]
