"""The frame of every command: what its help shows, which shared options it takes."""

import os
import pty
import shlex
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest

from tests.unit.cli.answers import Answer, answering
from yardmaster_cli.catalog import CATALOG
from yardmaster_cli.errors import Exit
from yardmaster_cli.main import run, yard
from yardmaster_core.scheduling.policies import POLICIES

NO_TASKS = Answer({"items": [], "next_cursor": None, "phases": {}, "counted_most": 10_000})
RUNNING = {
    "task_id": "4kq7w2mz9c1f.0",
    "name": "train",
    "project": "nlp",
    "phase": "running",
    "gpu_milli": 1000,
    "pool": "default",
    "submitted_at": "2026-01-31T12:00:00.000Z",
}


def paths() -> Iterator[str]:
    """Every command and group, by the words after `yard`."""
    yield ""
    for name in yard.list_commands(click.Context(yard)):
        yield name
        command = yard.get_command(click.Context(yard), name)
        if isinstance(command, click.Group):
            yield from (f"{name} {verb}" for verb in command.commands)


def parsed(args: list[str]) -> click.Context:
    """The context in which a command line would be carried out."""
    context = yard.make_context("yard", args, allow_interspersed_args=False)
    while isinstance(context.command, click.Group):
        words = [*context._protected_args, *context.args]
        name, command, words = context.command.resolve_command(context, words)
        assert command is not None
        context = command.make_context(name, words, parent=context)
    return context


def test_the_catalog_has_every_command_and_no_other() -> None:
    assert sorted(CATALOG) == sorted(paths())


@pytest.mark.parametrize("path", list(CATALOG))
def test_every_help_ends_with_examples_that_can_be_typed(
    path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*path.split(), "--help"]) == 0
    shown = capsys.readouterr().out.partition("\nExamples:\n")[2].splitlines()
    assert shown == [f"  yard {words}" for words in CATALOG[path].examples]
    assert shown
    for words in CATALOG[path].examples:
        context = parsed(shlex.split(words.partition(" > ")[0]))
        assert context.command_path.startswith(f"yard {path}".rstrip())


@pytest.mark.parametrize("path", [path for path in paths() if " " not in path])
def test_a_list_of_commands_shows_their_first_sentences_whole(
    path: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run([*path.split(), "--help"]) == 0
    _, _, listed = capsys.readouterr().out.partition("\nCommands:\n")
    lines = listed.partition("\n\n")[0].splitlines()
    assert not [line for line in lines if not line.endswith(".") or line.endswith("...")]


@pytest.mark.parametrize(
    ("path", "option"),
    [
        *(("dev", option) for option in ("--columns", "--sort", "--server", "-o")),
        *(("version", option) for option in ("--sort", "--limit", "--columns")),
        *(("completion", option) for option in ("--server", "--data", "-o")),
        *(("nodes cordon", option) for option in ("-o", "--columns")),
    ],
)
def test_an_option_that_would_do_nothing_is_neither_taken_nor_listed(
    path: str, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*path.split(), option, "json"]) == Exit.USAGE
    assert f"No such option: {option}" in capsys.readouterr().err
    assert run([*path.split(), "--help"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert not [line for line in listed if line.strip().startswith(option)]


def test_shared_options_may_come_before_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    with answering(NO_TASKS) as server:
        assert run(["--server", server.url, "-o", "json", "-q", "ls"]) == 0
        assert run(["--server", "http://127.0.0.1:1", "ls", "--server", server.url]) == 0
    assert capsys.readouterr().out.startswith('{\n  "items": []\n}')
    assert len(server.asked) > 1


def test_a_shared_option_that_the_command_does_not_take_is_refused_before_it_too(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["--server", "http://127.0.0.1:1", "completion", "bash"]) == Exit.USAGE
    assert "--server has no effect on yard completion" in capsys.readouterr().err
    assert run(["-o", "csv", "whoami"]) == Exit.USAGE
    assert "'csv' is not one of" in capsys.readouterr().err


def test_simulate_s_help_lists_the_policies(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"Policies: {', '.join(name for name, _ in POLICIES)}." in shown


def test_a_format_that_is_set_is_followed_where_the_command_has_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("YARD_OUTPUT", "csv")
    with answering(NO_TASKS) as server:
        assert run(["ls", "--server", server.url]) == 0
    assert capsys.readouterr().out.startswith("id,name,")
    assert run(["version", "--client"]) == 0
    assert capsys.readouterr().out.startswith("yard ")


def test_the_version_is_printed_without_a_server(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("yard ")


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("nodes list", "ls"),
        ("stop x", "cancel"),
        ("pools describe x", "show"),
        ("sumbit", "submit"),
        ("projects craete x", "create"),
    ],
)
def test_a_word_of_other_tools_or_a_misspelled_one_gets_the_command_meant(
    words: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words.split()) == Exit.USAGE
    assert f"Did you mean {meant}?" in capsys.readouterr().err


@pytest.mark.parametrize("word", ["plan", "diff", "budget"])
def test_a_word_that_is_not_near_any_command_gets_none(
    word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([word]) == Exit.USAGE
    assert "Did you mean" not in capsys.readouterr().err


@pytest.mark.parametrize(("term", "colored"), [("xterm", True), ("dumb", False)])
def test_a_dumb_terminal_gets_no_colors(term: str, colored: bool) -> None:
    env = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
    ours, theirs = pty.openpty()
    with answering(Answer({"items": [RUNNING], "next_cursor": None}), NO_TASKS) as server:
        subprocess.run(
            [sys.executable, "-m", "yardmaster_cli.main", "ls", "--server", server.url],
            stdout=theirs,
            env=env | {"TERM": term, "COLUMNS": "200"},
            check=True,
        )
    os.close(theirs)
    shown = os.read(ours, 10_000).decode()
    os.close(ours)
    assert "running" in shown
    assert ("\x1b[" in shown) is colored
