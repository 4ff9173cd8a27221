"""A new environment gets Yardmaster from a gateway, and notices another project's `yardmaster`."""

import json
import shlex
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.yard_cli import Dev, running_dev

pytestmark = [pytest.mark.xdist_group("cli"), pytest.mark.timeout(300)]

UV = Path(sys.executable).with_name("uv")
VERSION = "9.8.7"
#: As the project on PyPI: `yardmaster/__init__.py` is the only file that both distributions have.
OTHER_FILES = {
    "yardmaster/__init__.py": "from yardmaster.core.release import ReleaseManager\n",
    "yardmaster/core/__init__.py": "",
    "yardmaster/core/release.py": "class ReleaseManager: ...\n",
    f"yardmaster-{VERSION}.dist-info/METADATA": (
        f"Metadata-Version: 2.1\nName: yardmaster\nVersion: {VERSION}\n"
    ),
    f"yardmaster-{VERSION}.dist-info/WHEEL": (
        "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    ),
}


class Environment:
    """A virtual environment of its own, with nothing installed."""

    def __init__(self, folder: Path, home: Path) -> None:
        self.folder = folder
        self.env = {"PATH": "/usr/bin:/bin", "HOME": str(home), "COLUMNS": "400"}
        self.uv("venv", "--python", sys.executable, str(folder))

    def uv(self, *words: str) -> None:
        """Run uv with the settings of this machine, which name its package index."""
        done = subprocess.run(
            [UV, *words], capture_output=True, text=True, timeout=240, check=False
        )
        assert done.returncode == 0, done.stderr

    def types(self, line: str) -> None:
        """Run lines of `pip`, as a user types them; uv takes its place."""
        for command in line.split(" && "):
            pip, action, *words = shlex.split(command)
            assert pip == "pip"
            given = [word for word in words if word != "-y"]
            given = ["--reinstall" if word == "--force-reinstall" else word for word in given]
            self.uv("pip", action, "--quiet", "--python", str(self.folder / "bin/python"), *given)

    def python(self, code: str) -> "subprocess.CompletedProcess[str]":
        """Run code in it."""
        return self.run("python", "-c", code)

    def run(self, program: str, *words: str) -> "subprocess.CompletedProcess[str]":
        """Run one of its programs."""
        return subprocess.run(
            [self.folder / "bin" / program, *words],
            env=self.env,
            cwd=self.env["HOME"],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    with running_dev(tmp_path_factory.mktemp("dev")) as dev:
        yield dev


def address(dev: Dev) -> dict[str, str]:
    """The settings by which another environment reaches the gateway."""
    found = json.loads((dev.data / "dev.json").read_text())
    return {"YARD_SERVER": f"http://127.0.0.1:{found['port']}", "YARD_TOKEN": found["token"]}


@pytest.fixture(scope="module")
def command(dev: Dev) -> str:
    """The command that `yard doctor` prints."""
    (line,) = (line for line in dev.yard("doctor").err.splitlines() if "pip install" in line)
    label, _, command = line.partition(": ")
    assert label == "to install this version in another environment"
    assert f"'{address(dev)['YARD_SERVER']}/client/yardmaster_scheduler-" in command
    return command


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The command that installs the other project's distribution."""
    wheel = tmp_path_factory.mktemp("other") / f"yardmaster-{VERSION}-py3-none-any.whl"
    record = f"yardmaster-{VERSION}.dist-info/RECORD"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in OTHER_FILES.items():
            archive.writestr(name, text)
        archive.writestr(record, "".join(f"{name},,\n" for name in (*OTHER_FILES, record)))
    return f"pip install {shlex.quote(str(wheel))}"


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    return Environment(tmp_path / "venv", tmp_path)


def test_the_command_of_doctor_installs_the_sdk_and_yard_in_a_new_environment(
    dev: Dev, command: str, environment: Environment
) -> None:
    environment.types(command)
    done = environment.python("import yardmaster; print(yardmaster.should_stop())")
    assert (done.stdout, done.stderr) == ("False\n", "")
    environment.env |= address(dev)
    assert environment.run("yard", "--version").stdout == dev.yard("--version").out
    listed = environment.run("yard", "nodes", "-o", "name")
    assert listed.stdout.split() == dev.yard("nodes", "-o", "name").out.split(), listed.stderr


def test_doctor_reports_another_yardmaster_in_the_way_and_its_commands_repair_it(
    dev: Dev, command: str, other: str, environment: Environment
) -> None:
    environment.types(command)
    environment.types(other)
    assert "AttributeError" in environment.python("import yardmaster; yardmaster.done").stderr
    environment.env |= address(dev)
    said = environment.run("yard", "doctor", "-o", "json")
    assert said.returncode == 1, said.stderr
    assert "missing: Python package" in said.stderr
    assert f"yardmaster {VERSION} is installed, another project whose files replace" in said.stdout
    repair = f"pip uninstall -y yardmaster && {command}".replace(
        "pip install", "pip install --force-reinstall --no-deps"
    )
    assert repair in said.stdout
    environment.types(repair)
    assert environment.run("yard", "doctor").returncode == 0
    assert environment.python("import yardmaster; yardmaster.done").stderr == ""


def test_the_sdk_works_and_warns_where_the_other_yardmaster_was_installed_first(
    command: str, other: str, environment: Environment
) -> None:
    environment.types(other)
    environment.types(command)
    done = environment.python("import yardmaster; print(yardmaster.should_stop())")
    assert done.stdout == "False\n"
    assert f"RuntimeWarning: yardmaster-{VERSION} is another project that installs" in done.stderr
    said = environment.run("yard", "doctor")
    assert said.returncode == 1
    assert "removing it also removes files of yardmaster-scheduler" in said.stdout


def test_yard_names_the_other_yardmaster_where_it_hides_the_own_one(
    tmp_path: Path, other: str
) -> None:
    # In a checkout, the folder of installed packages precedes those of the sources.
    folder = tmp_path / "first"
    with zipfile.ZipFile(shlex.split(other)[-1]) as archive:
        archive.extractall(folder)
    done = subprocess.run(
        [sys.executable, "-m", "yardmaster_cli.main", "doctor"],
        env={"PYTHONPATH": str(folder), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert f"that of another project, yardmaster {VERSION}" in done.stderr
    assert "hint: pip uninstall -y yardmaster && pip install" in done.stderr
