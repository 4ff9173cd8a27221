"""A gateway serves the wheel of its own version, made of the files that it runs from."""

import hashlib
import io
import subprocess
import sys
import tomllib
import zipfile
from email import message_from_bytes
from importlib.metadata import Distribution, version
from pathlib import Path

import pytest

from tests.support.gateway import GatewayCell
from yardmaster_gateway.routes.client_wheel import PACKAGES
from yardmaster_runtime import distribution
from yardmaster_runtime.distribution import CLIENT_PATH, NAME, install_command, wheel_file

ROOT = Path(__file__).parents[3]
WHEEL = f"{CLIENT_PATH}/{wheel_file()}"


def files(wheel: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name) for name in archive.namelist()}


def headers(metadata: bytes) -> list[tuple[str, str]]:
    """The fields of METADATA, without the description."""
    return message_from_bytes(metadata).items()


async def test_the_wheel_has_the_files_of_the_one_that_the_build_backend_makes(
    cell: GatewayCell, tmp_path: Path
) -> None:
    served = files((await cell.call("GET", WHEEL, token=None)).content)
    built = subprocess.run(  # noqa: ASYNC221 nothing else runs in this loop
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert (tmp_path / wheel_file()).is_file(), built.stdout
    expected = files((tmp_path / wheel_file()).read_bytes())
    assert served.keys() == expected.keys()
    # The description in METADATA is README.md as it was when this distribution was installed.
    (metadata,) = (name for name in served if name.endswith("/METADATA"))
    installed = Distribution.from_name(NAME).read_text("METADATA")
    assert installed is not None
    assert served[metadata] == installed.encode()
    assert headers(served.pop(metadata)) == headers(expected.pop(metadata))
    # The backend has another order of lines in RECORD.
    (record,) = (name for name in served if name.endswith("/RECORD"))
    lines, expected_lines = (
        sorted(line for line in wheel.pop(record).decode().splitlines() if metadata not in line)
        for wheel in (served, expected)
    )
    assert lines == expected_lines
    assert served == expected


async def test_an_installation_from_the_wheel_serves_the_same_wheel(
    cell: GatewayCell, tmp_path: Path
) -> None:
    wheel = (await cell.call("GET", WHEEL, token=None)).content
    for name, content in files(wheel).items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    code = (
        "import hashlib, importlib.metadata, yardmaster_gateway.routes.client_wheel as served\n"
        f"distribution = importlib.metadata.Distribution.from_name({NAME!r})\n"
        "wheel = served.wheel_of(distribution)\n"
        "print(served.__file__, hashlib.sha256(wheel).hexdigest())"
    )
    done = subprocess.run(  # noqa: ASYNC221 nothing else runs in this loop
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    module = tmp_path / "yardmaster_gateway" / "routes" / "client_wheel.py"
    assert done.stdout.split() == [str(module), hashlib.sha256(wheel).hexdigest()]


async def test_requests_do_not_read_the_metadata_of_the_distribution_again(
    cell: GatewayCell, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cell.call("GET", WHEEL, token=None)
    reads: list[str] = []

    def counted(name: str) -> str:
        reads.append(name)
        return version(name)

    monkeypatch.setattr(distribution, "version", counted)
    await cell.call("GET", WHEEL, token=None)
    await cell.call("GET", f"{CLIENT_PATH}/x", token=None, status=404)
    assert reads == []


async def test_head_answers_with_the_length_and_two_answers_are_equal(cell: GatewayCell) -> None:
    first = await cell.call("GET", WHEEL, token=None)
    again = await cell.call("GET", WHEEL, token=None)
    head = await cell.call("HEAD", WHEEL, token=None)
    assert first.headers["Content-Type"] == head.headers["Content-Type"] == "application/zip"
    assert first.headers["Content-Length"] == head.headers["Content-Length"]
    assert hashlib.sha256(first.content).digest() == hashlib.sha256(again.content).digest()


async def test_another_file_name_is_not_found_and_the_problem_names_the_right_one(
    cell: GatewayCell,
) -> None:
    for name in (wheel_file().replace("-py3", ".1-py3"), "x", "..%2f..%2fpyproject.toml"):
        problem = await cell.call("GET", f"{CLIENT_PATH}/{name}", token=None, status=404)
        assert problem["code"] == "not_found"
    problem = await cell.call("GET", f"{CLIENT_PATH}/x", token=None, status=404)
    assert problem["detail"] == f"There is no x; this gateway serves {WHEEL}."


def test_the_packages_of_the_wheel_are_those_of_the_distribution() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    built = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert sorted(PACKAGES) == sorted(path.rpartition("/")[2] for path in built)
    assert project["project"]["name"] == NAME


def test_the_install_command_names_the_gateway_and_the_wheel() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert install_command("https://yard.example.org/") == (
        "pip install 'https://yard.example.org/client/"
        f"yardmaster_scheduler-{version}-py3-none-any.whl'"
    )
