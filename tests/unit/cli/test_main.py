"""The command as a whole: help, nearest names, exit codes of errors, modules imported late."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from tests.unit.cli.answers import Answer, answering
from tests.unit.cli.output.test_describe import task
from yardmaster.local_cluster import DevServer
from yardmaster_cli.commands import doctor
from yardmaster_cli.errors import Exit
from yardmaster_cli.findings import Finding
from yardmaster_cli.main import CLOSED_PIPE, COMMANDS, Yard, run, yard


def said(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = run(args)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = said(capsys, name, "--help")
    assert code == 0
    assert out.startswith(f"Usage: yard {name}")


#: What takes long to import: models, HTTP clients, terminals, YAML, and the services' libraries.
HEAVY = ("aiokafka", "asyncio", "fastapi", "httpx", "opentelemetry", "pydantic", "rich", "yaml")


def loaded(*args: str) -> tuple[str, list[str]]:
    """The output of a command, and the heavy modules and commands' modules that it imports."""
    shown = f"[m for m in sys.modules if m.startswith({HEAVY!r})]"
    commands = "[m[24:] for m in sys.modules if m.startswith('yardmaster_cli.commands.')]"
    program = (
        "import sys; from yardmaster_cli.main import run; code = run(sys.argv[1:]); "
        f"print({shown}, file=sys.stderr); print(*sorted({commands}), file=sys.stderr); "
        "sys.exit(code)"
    )
    env = {key: value for key, value in os.environ.items() if not key.startswith("YARD_")}
    done = subprocess.run(
        [sys.executable, "-c", program, *args],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={**env, "XDG_CONFIG_HOME": "/nonexistent", "XDG_DATA_HOME": "/nonexistent"},
    )
    heavy, modules = done.stderr.splitlines()[-2:]
    assert heavy == "[]"
    return done.stdout, modules.split()


def test_help_lists_every_command_and_imports_none() -> None:
    shown, modules = loaded("--help")
    assert all(f"  {name} " in shown for name in COMMANDS)
    assert modules == []


def test_ls_and_show_import_neither_models_nor_an_http_library() -> None:
    none: dict[str, Any] = {"items": [], "next_cursor": None, "phases": {}, "counted_most": 10_000}
    with answering(Answer(none)) as server:
        _, modules = loaded("ls", "--server", server.url, "--phase", "active", "--since", "2h")
    assert modules == ["ls"]
    shown_task = task()
    answers = (Answer({"tasks": 1}), Answer(shown_task), Answer({"items": []}))
    with answering(*answers) as server:
        shown, _ = loaded("show", "--server", server.url, shown_task["task_id"])
    assert shown.startswith(shown_task["task_id"])


@pytest.mark.parametrize("words", [("--help",), ("version", "--client"), ("completion", "bash")])
def test_a_closed_pipe_ends_a_command_silently_with_the_code_of_its_signal(
    words: tuple[str, ...],
) -> None:
    read, write = os.pipe()
    os.close(read)
    program = "from yardmaster_cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, *words],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=60,
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (CLOSED_PIPE, "")


FULL = Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="only Linux has a file that is always full")
@pytest.mark.parametrize("words", [("--help",), ("ls", "--help"), ("ls",), ("version", "--client")])
def test_output_that_cannot_be_written_is_named_as_the_error(words: tuple[str, ...]) -> None:
    none: dict[str, Any] = {"items": [], "next_cursor": None, "phases": {}, "counted_most": 10_000}
    program = "from yardmaster_cli.main import main; main()"
    with answering(Answer(none)) as server, FULL.open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", program, *words],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=60,
            env={**os.environ, "YARD_SERVER": server.url, "XDG_CONFIG_HOME": "/nonexistent"},
        )
    assert (done.returncode, done.stderr) == (
        Exit.CHECK_FAILED,
        "error: the output could not be written: No space left on device\n",
    )


@pytest.mark.skipif(not FULL.exists(), reason="only Linux has a file that is always full")
def test_an_error_that_cannot_be_written_keeps_its_exit_code() -> None:
    program = "from yardmaster_cli.main import main; main()"
    words = ("show", "not an id", "--server", "http://127.0.0.1:9")
    with FULL.open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", program, *words], stderr=full, check=False, timeout=60
        )
    assert done.returncode == Exit.USAGE


def test_a_command_that_is_not_there_gets_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = said(capsys, "sumbit")
    assert code == Exit.USAGE
    assert "Did you mean submit?" in err


def test_an_unknown_option_is_bad_usage_with_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = said(capsys, "ls", "--nonsense")
    assert (code, out) == (Exit.USAGE, "")
    assert "hint: yard ls --help" in err


@pytest.mark.parametrize("words", [("ls",), ("whoami",)])
@pytest.mark.parametrize(
    ("server", "token", "named"),
    [
        ("gateway", "t", "not a valid server URL"),
        ("", "t", "not a valid server URL"),
        ("http://gateway:99999", "t", "not a valid server URL"),
        ("http://[", "t", "not a valid server URL"),
        ("http://127.0.0.1:9", "two\nlines", "YARD_TOKEN"),
        ("http://127.0.0.1:9", "t\u00f6ken", "YARD_TOKEN"),
    ],
)
def test_a_server_or_token_that_cannot_be_used_is_bad_usage(
    words: tuple[str, ...],
    server: str,
    token: str,
    named: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("YARD_TOKEN", token)
    code, _, err = said(capsys, *words, "--server", server)
    assert (code, named in err) == (Exit.USAGE, True), err


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("set", "max-slots", "4kq7w2mz9c1f", "nan"), "nan is not a number of GPUs"),
        (("set", "max-slots", "4kq7w2mz9c1f", "1e400"), "1e400 is not a number of GPUs"),
        (("set", "max-slots", "4kq7w2mz9c1f", "0"), "max_slots"),
        (("set", "weight", "4kq7w2mz9c1f", "9" * 20), "weight"),
        (("submit", "-p", "nlp", "--idempotency-key", "", "--", "true"), "--idempotency-key"),
        (("submit", "-p", "nlp", "--idempotency-key", "\u00f6", "--", "true"), "--idempotency-key"),
    ],
)
def test_a_value_that_no_request_can_contain_is_bad_usage_and_nothing_is_sent(
    words: tuple[str, ...], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with answering(Answer({}, 500)) as server:
        at = words.index("--") if "--" in words else len(words)
        code, _, err = said(capsys, *words[:at], "--server", server.url, *words[at:])
    assert (code, named in err, server.asked) == (Exit.USAGE, True, []), err


def test_an_error_without_a_reader_keeps_its_exit_code() -> None:
    read, write = os.pipe()
    os.close(read)
    program = "from yardmaster_cli.main import main; main()"
    words = ("show", "not an id", "--server", "http://127.0.0.1:9")
    done = subprocess.run(
        [sys.executable, "-c", program, *words], stderr=write, check=False, timeout=60
    )
    os.close(write)
    assert done.returncode == Exit.USAGE


def test_an_unforeseen_error_is_internal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> list[Finding]:
        raise RuntimeError("boom")

    monkeypatch.setattr(doctor, "look", fail)
    code, _, err = said(capsys, "doctor")
    assert code == Exit.INTERNAL
    assert "RuntimeError: boom" in err


def test_doctor_fails_only_for_what_is_needed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = Finding("SQLite with WAL", False, "none", True, "install one")
    optional = Finding("GPUs", False, "none", get="not needed")
    monkeypatch.setattr(doctor, "look", lambda *_: [optional])
    assert said(capsys, "doctor")[0] == 0
    monkeypatch.setattr(doctor, "look", lambda *_: [optional, needed])
    code, out, err = said(capsys, "doctor")
    assert code == Exit.CHECK_FAILED
    assert "install one" in out
    assert "missing: SQLite with WAL" in err


def test_a_word_that_is_no_job_file_may_be_a_command_but_a_job_file_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("jobs").mkdir()
    Path("job.yaml").write_bytes("name: \xe9tude\n".encode("latin-1"))
    Path("train").write_bytes(b"\x7fELF\x02\xff")
    for word, message, hint in (
        ("jobb.yaml", "jobb.yaml: there is no such file", "did you mean job.yaml?"),
        ("nosuch.yaml", "nosuch.yaml: there is no such file", f"files are read in {tmp_path}"),
        ("away/a.yaml", "away/a.yaml: there is no such file", f"no folder {tmp_path / 'away'}"),
        ("nosuch", "nosuch: there is no such file", "yard submit -- nosuch"),
        ("train", "train:1: not UTF-8 text (byte 0xff)", "yard submit -- train"),
        ("jobs", "jobs is a folder", "name a file in it"),
        ("job.yaml", "job.yaml:1: not UTF-8 text (byte 0xe9)", "save the file as UTF-8"),
    ):
        code, _, err = said(capsys, "submit", word)
        assert code == Exit.USAGE
        lines = err.splitlines()
        assert lines[0] == f"error: {message}"
        assert ("put --" in err) == hint.startswith("yard submit")
        assert lines[1].endswith(hint)


def test_docker_without_a_daemon_is_not_ok(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "docker"
    program.write_text("#!/bin/sh\necho Cannot connect to the Docker daemon >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    docker = next(one for one in doctor.look(tmp_path) if one.what == "docker")
    assert docker.state == "no daemon"
    assert docker.found == f"{program}, but no daemon answers"


def test_doctor_reports_a_cluster_of_containers_whose_docker_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    dev = DevServer(server="http://127.0.0.1:9", token="t", pid=0, what="yard up")
    found = {one.what: one for one in doctor._clusters([(tmp_path, dev)])}
    assert found["containers"].found == "no Docker daemon answers"
    assert doctor.lacks(found.values())["not ready"] == ["cluster", "containers"]


def test_doctor_looks_at_this_machine(tmp_path: Path) -> None:
    found = {finding.what: finding for finding in doctor.look(tmp_path / "not" / "there")}
    assert found["Python 3.11"].good
    assert found["SQLite with WAL"].good, found["SQLite with WAL"]


@pytest.mark.parametrize("noun", ["nodes", "pools", "projects", "departments", "contexts"])
def test_a_bare_noun_lists(noun: str) -> None:
    assert isinstance(yard, Yard)
    group = yard.get_command(click.Context(yard), noun)
    assert isinstance(group, click.Group)
    assert "ls" in group.commands


#: Third-party modules that only extras install.
EXTRAS = (
    *("aiokafka", "fastapi", "faust", "fsspec", "msgspec", "opentelemetry", "plotly"),
    *("prometheus_client", "pyarrow", "pydantic_settings", "redis", "starlette", "uvicorn"),
)
#: Runs each command of a JSON list, with the exit codes as JSON on stdout.
WITHOUT_EXTRAS = """
import json, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[1].split(","):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())
from yardmaster_cli.main import run
print(json.dumps([run(words) for words in json.loads(sys.argv[2])]))
"""


def without_extras(*commands: tuple[str, ...]) -> tuple[list[int], list[str]]:
    """Exit codes, and lines on stderr, of commands of a `yardmaster` that has no extra."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("YARD_")}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_EXTRAS, ",".join(EXTRAS), json.dumps(commands)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={**env, "XDG_CONFIG_HOME": "/nonexistent", "XDG_DATA_HOME": "/nonexistent"},
    )
    return json.loads(done.stdout.splitlines()[-1]), done.stderr.splitlines()


def test_a_command_whose_extra_is_not_installed_names_the_extra(tmp_path: Path) -> None:
    local = (("dev", "--port", "0", "--data", str(tmp_path)), ("replay", "verify"), ("simulate",))
    codes, lines = without_extras(*local, ("views", "rebuild"), ("setup",), ("log", "stat"))
    assert codes == [Exit.USAGE] * 6
    for error, hint in zip(lines[::2], lines[1::2], strict=True):
        assert error.startswith("error: this command needs the extra `all`: the module ")
        assert hint == "hint: pip install 'yardmaster-scheduler[all]'"


def test_doctor_needs_no_extra() -> None:
    [code], lines = without_extras(("doctor",))
    assert code in (Exit.DONE, Exit.CHECK_FAILED), lines
    assert "error:" not in " ".join(lines)


def test_commands_that_call_a_server_need_no_extra() -> None:
    job, at = "4kq7w2mz9c1f", ("--server", "http://127.0.0.1:9")
    codes, lines = without_extras(
        *(("ls", *at), ("show", job, *at), ("whoami", *at), ("nodes", *at), ("pools", *at)),
        *(("usage", *at), ("submit", "-p", "nlp", *at, "--", "true"), ("cancel", job, *at)),
        *(("logs", job, *at), ("wait", job, *at), ("set", "weight", job, "2", *at)),
        ("explain", f"{job}.0", *at),
    )
    assert codes == [Exit.UNREACHABLE] * 12, lines


def test_a_second_interrupt_ends_the_command_without_a_traceback() -> None:
    program = """
from yardmaster_cli import main
def interrupted(args):
    raise KeyboardInterrupt
main.run = interrupted
main.main()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (Exit.INTERRUPTED, "")


def test_an_option_without_its_value_names_the_help_of_its_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, _, err = said(capsys, "nodes", "drain", "node-1", "--deadline")
    assert (code, err.splitlines()[1]) == (Exit.USAGE, "hint: yard nodes drain --help")
