"""Keeps logs of the newest rules: simulated runs with preemptions and failing nodes.

`make kept-log` runs it, after each increase of `RULES`: later versions must read these logs.
"""

import lzma
import sys
from pathlib import Path
from subprocess import run
from tempfile import TemporaryDirectory

from tests.support.kept_logs import FOLDER, POLICIES
from yardmaster_core.rules import RULES

YARD = Path(sys.executable).with_name("yard")
OPTIONS = (
    *("simulate", "plain", "--jobs", "60", "--nodes", "3x4", "--seed", "3"),
    *("--node-fails", "10h", "--workers", "1", "-q"),
)


def keep(folder: Path) -> None:
    """Write the logs to a new `folder`."""
    folder.mkdir()
    for policy in POLICIES:
        with TemporaryDirectory() as out:
            run([YARD, *OPTIONS, "--policy", policy, "--out", out], check=True)
            (log,) = Path(out).glob("*.db")
            (folder / f"{policy}.db.xz").write_bytes(lzma.compress(log.read_bytes(), preset=9))


if __name__ == "__main__":
    target = FOLDER / f"rules-{RULES}"
    if target.exists():
        sys.exit(f"{target} exists and never changes; increase RULES first")
    keep(target)
