"""Commands in hints, written so that they work when a user copies them."""

import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from yardmaster.local_cluster import default_data_dir, default_up_dir, read_dev


def yard(env: Mapping[str, str]) -> str:
    """The command of this program: `yard` if PATH finds this program, else its path."""
    called = Path(sys.argv[0])
    found = shutil.which("yard", path=env.get("PATH"))
    if called.name != "yard":
        # Tests start this program as a module; the script `yard` is then in the folder of Python.
        called = Path(sys.executable).with_name("yard")
    if not called.exists() or (found is not None and Path(found).samefile(called)):
        return "yard"
    return shlex.quote(str(called))


def yard_for(data: Path, env: Mapping[str, str]) -> str:
    """The command of this program with the settings to find the cluster in the folder `data`.

    Without YARD_DATA a command uses the cluster of `yard dev` in the default folder, else the
    cluster of `yard up` in the default folder.
    """
    dev, up = default_data_dir(env).absolute(), default_up_dir(env).absolute()
    found = data == dev or (data == up and read_dev(dev) is None)
    return yard(env) if found else f"YARD_DATA={shlex.quote(str(data))} {yard(env)}"


def down_for(data: Path, env: Mapping[str, str]) -> str:
    """The command that stops the cluster of `yard up` in the folder `data`."""
    usual = data == default_up_dir(env).absolute()
    if usual and env.get("MAKELEVEL"):
        return "make down"
    return f"{yard(env)} down" if usual else f"{yard_for(data, env)} down"


def up_with(flags: str, env: Mapping[str, str]) -> str:
    """The command that starts a cluster with `flags`: `make` if make started this command."""
    return f'make up UP_ARGS="{flags}"' if env.get("MAKELEVEL") else f"{yard(env)} up {flags}"


def empty_log(other: str) -> str:
    """How to start with an empty log instead of `other`, a file or the URL of a log."""
    path = Path(other)
    if path.is_file():
        return f"yard dev --data OTHER starts an empty log; {path.parent} stays until you delete it"
    return (
        "of yard up: yard down --purge, then yard up; on other brokers: delete the topics of the "
        "log and its snapshots, empty Redis, then yard setup"
    )
