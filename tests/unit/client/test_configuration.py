"""Settings: flag, then environment, then file, then default; secrets stay secret."""

import json
import os
from pathlib import Path

import httpx
import pytest

from yardmaster.client import Client
from yardmaster.configuration import Flags, load_file, resolve, save_current
from yardmaster.errors import InputError, NoServer, TokenCommandFailed
from yardmaster.local_cluster import read_dev

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
    with pytest.raises(TokenCommandFailed, match="correct token_command in"):
        resolve(Flags(), env).bearer()


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
    with pytest.raises(InputError, match=named):
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
    assert config.dev is not None
    assert config.dev.log == "kafka://h:1"
    assert config.data_dir == tmp_path / "yardmaster" / "dev"
    # Another server's log is not asked of the one that runs here.
    assert resolve(Flags(server="http://else"), env).here is None

    dev = tmp_path / "yardmaster" / "dev"
    dev.mkdir()
    (dev / "dev.json").write_text(json.dumps({"port": 1, "token": "d", "pid": os.getpid()}))
    assert resolve(Flags(), env).server.value == "http://127.0.0.1:1"
    assert resolve(Flags(), env).here == read_dev(dev)


def test_a_context_with_the_address_of_a_cluster_here_finds_its_files_but_not_its_token(
    tmp_path: Path,
) -> None:
    env = {"XDG_CONFIG_HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path)}
    write(env, "current: olga\ncontexts: {olga: {server: 'http://localhost:7450/'}}\n")
    up, dev = (tmp_path / "yardmaster" / name for name in ("up", "dev"))
    for folder, port in ((up, 7450), (dev, 1)):
        folder.mkdir(parents=True)
        found = {"port": port, "token": "operator", "pid": os.getpid()}
        (folder / "dev.json").write_text(json.dumps(found))
    config = resolve(Flags(), env)
    assert config.cluster_dir == up
    assert dict(config.settings())["data"].value == str(up)
    assert config.server_named
    assert config.bearer() is None
    assert not resolve(Flags(context="dev"), env).server_named
    assert resolve(Flags(server="http://other:7450"), env).cluster_dir == dev


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch) -> list[httpx.Request]:
    """The requests of clients that a test creates; each is answered with 200."""
    requests: list[httpx.Request] = []

    def answer(_: httpx.HTTPTransport, request: httpx.Request) -> httpx.Response:
        requests.append(request)
        return httpx.Response(
            200, json={"user": "ann", "method": "token", "issuer": "x", "roles": []}
        )

    monkeypatch.setattr(httpx.HTTPTransport, "handle_request", answer)
    return requests


def test_a_client_finds_its_server_and_token_as_the_command_does(
    env: dict[str, str], connected: list[httpx.Request]
) -> None:
    write(env, CONTENT)
    for more, url, token in (
        ({}, "https://yard.example.org", "s3cret"),
        ({"YARD_CONTEXT": "lab"}, "http://lab:7450", None),
        ({"YARD_SERVER": "http://other:1", "YARD_TOKEN": "t"}, "http://other:1", "t"),
    ):
        with Client.from_env({**env, **more}) as client:
            assert client.ready()
        assert str(connected[-1].url) == f"{url}/readyz"
        assert connected[-1].headers.get("Authorization") == (token and f"Bearer {token}")


def test_a_client_finds_the_cluster_on_this_machine(
    env: dict[str, str], connected: list[httpx.Request], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_dev(Path(env["XDG_DATA_HOME"]) / "yardmaster" / "dev", os.getpid())
    for variable in [name for name in os.environ if name.startswith("YARD_")]:
        monkeypatch.delenv(variable)
    for variable, value in env.items():
        monkeypatch.setenv(variable, value)
    with Client.from_env() as client:
        assert client.ready()
    assert str(connected[-1].url) == "http://127.0.0.1:7450/readyz"
    assert connected[-1].headers["Authorization"] == "Bearer t0ken"


def test_a_client_without_a_server_says_how_to_name_one(env: dict[str, str]) -> None:
    with pytest.raises(NoServer, match=r"no server is running here \(start one with yard dev"):
        Client.from_env(env)
    write(env, "contexts: {empty: {project: nlp}}\n")
    with pytest.raises(NoServer, match="in the context empty"):
        Client.from_env({**env, "YARD_CONTEXT": "empty"})


@pytest.mark.parametrize(
    ("server", "token", "said"),
    [
        ("gateway:7450", None, "'gateway:7450': not a valid server URL"),
        ("ftp://gateway", None, "not a valid server URL"),
        ("http://gateway", "a\nb", "token: a token may only contain printable ASCII"),
    ],
)
def test_a_client_refuses_a_wrong_url_or_token(server: str, token: str | None, said: str) -> None:
    with pytest.raises(InputError, match=said):
        Client(server, token)


def test_a_token_command_that_fails_says_how(env: dict[str, str]) -> None:
    write(env, "contexts: {dev: {server: 'http://x', token_command: ['sh', '-c', 'exit 3']}}\n")
    with pytest.raises(TokenCommandFailed, match=r": exit 3 \(correct"):
        resolve(Flags(), env).bearer()
