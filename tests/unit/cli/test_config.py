"""Settings: flag, then environment, then file, then default; secrets stay secret."""

import json
import os
from pathlib import Path

import pytest

from yardmaster_cli.config import Flags, load_file, read_dev, resolve, save_current
from yardmaster_cli.errors import BadUsage, CliError, Exit

CONTENT = """\
current: prod
contexts:
  prod: {server: "https://yard.example.org", project: nlp, token_command: [echo, s3cret]}
  lab: {server: "http://lab:7450"}
output: wide
"""


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CONFIG_HOME": str(tmp_path / "config"), "XDG_DATA_HOME": str(tmp_path / "data")}


def write(env: dict[str, str], content: str) -> Path:
    path = Path(env["XDG_CONFIG_HOME"]) / "yardmaster" / "config.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(content)
    return path


def write_dev(folder: Path, pid: int) -> None:
    folder.mkdir(parents=True)
    (folder / "dev.json").write_text(json.dumps({"port": 7450, "token": "t0ken", "pid": pid}))


def test_without_anything_the_context_is_dev_and_no_server_is_known(env: dict[str, str]) -> None:
    config = resolve(Flags(), env)
    assert config.context.value == "dev"
    assert config.server.value is None
    assert config.output.value == "table"
    assert config.data_dir == Path(env["XDG_DATA_HOME"]) / "yardmaster" / "dev"


def test_a_flag_wins_over_the_environment_over_the_file(env: dict[str, str]) -> None:
    path = write(env, CONTENT)
    config = resolve(Flags(), env)
    assert (config.server.value, config.server.source) == (
        "https://yard.example.org",
        f"context prod in {path}",
    )
    env["YARD_SERVER"] = "http://other"
    assert resolve(Flags(), env).server.source == "environment YARD_SERVER"
    assert resolve(Flags(server="http://third"), env).server.source == "flag --server"
    assert resolve(Flags(output="json"), env).output.value == "json"
    assert resolve(Flags(), env).output.value == "wide"


def test_a_context_is_chosen_by_flag_environment_or_file(env: dict[str, str]) -> None:
    write(env, CONTENT)
    assert resolve(Flags(), env).project.value == "nlp"
    assert resolve(Flags(context="lab"), env).server.value == "http://lab:7450"
    env["YARD_CONTEXT"] = "dev"
    assert resolve(Flags(), env).server.value is None


def test_the_dev_context_finds_the_running_server_and_its_token(env: dict[str, str]) -> None:
    write_dev(Path(env["XDG_DATA_HOME"]) / "yardmaster" / "dev", os.getpid())
    config = resolve(Flags(), env)
    assert config.server.value == "http://127.0.0.1:7450"
    assert config.bearer() == "t0ken"


def test_a_dev_file_of_a_process_that_is_gone_is_no_server(env: dict[str, str]) -> None:
    write_dev(Path(env["XDG_DATA_HOME"]) / "yardmaster" / "dev", 2**22 + 1)
    assert resolve(Flags(), env).server.value is None


@pytest.mark.parametrize("content", ["", "{", "[]", '{"port": "x"}'])
def test_a_dev_file_that_is_damaged_is_no_server(tmp_path: Path, content: str) -> None:
    (tmp_path / "dev.json").write_text(content)
    assert read_dev(tmp_path) is None


def test_the_dev_token_goes_to_the_dev_server_only(env: dict[str, str]) -> None:
    write_dev(Path(env["XDG_DATA_HOME"]) / "yardmaster" / "dev", os.getpid())
    assert resolve(Flags(server="http://elsewhere"), env).bearer() is None


def test_a_token_comes_from_the_environment_or_a_command(env: dict[str, str]) -> None:
    write(env, CONTENT)
    assert resolve(Flags(), env).bearer() == "s3cret"
    env["YARD_TOKEN"] = "other"
    assert resolve(Flags(), env).bearer() == "other"


def test_a_token_command_that_fails_is_not_signed_in(env: dict[str, str]) -> None:
    write(env, "contexts: {dev: {server: 'http://x', token_command: ['false']}}\n")
    with pytest.raises(CliError) as caught:
        resolve(Flags(), env).bearer()
    assert caught.value.exit_code == Exit.NOT_ALLOWED


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("curent: prod\n", "curent"),
        ("contexts: {a: {sever: x}}\n", "contexts.a.sever"),
        ("contexts: [a]\n", "contexts"),
        ("- a\n", "mapping"),
        ("a: [\n", "line"),
        ("current: nowhere\n", "nowhere"),
    ],
)
def test_a_wrong_file_is_named(env: dict[str, str], content: str, named: str) -> None:
    write(env, content)
    with pytest.raises(BadUsage, match=named):
        resolve(Flags(), env)


def test_using_a_context_keeps_the_rest_of_the_file(env: dict[str, str]) -> None:
    path = write(env, CONTENT)
    save_current(path, "lab")
    assert load_file(path)["current"] == "lab"
    assert load_file(path)["contexts"]["prod"]["project"] == "nlp"


def test_what_yard_up_runs_is_found_where_no_yard_dev_runs(tmp_path: Path) -> None:
    env = {"XDG_CONFIG_HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path)}
    up = tmp_path / "yardmaster" / "up"
    up.mkdir(parents=True)
    found = {
        "port": 7450,
        "token": "t",
        "pid": os.getpid(),
        "what": "yard up",
        "log": "kafka://h:1",
    }
    (up / "dev.json").write_text(json.dumps(found))
    config = resolve(Flags(), env)
    assert config.server.value == "http://127.0.0.1:7450"
    assert config.server.source.startswith("yard up")
    assert config.bearer() == "t"
    assert config.log == "kafka://h:1"
    assert config.data_dir == tmp_path / "yardmaster" / "dev"
    # Another server's log is not asked of the one that runs here.
    assert resolve(Flags(server="http://else"), env).log is None

    dev = tmp_path / "yardmaster" / "dev"
    dev.mkdir()
    (dev / "dev.json").write_text(json.dumps({"port": 1, "token": "d", "pid": os.getpid()}))
    assert resolve(Flags(), env).server.value == "http://127.0.0.1:1"
    assert resolve(Flags(), env).log is None
