"""Keeps a log of the newest rules: a simulated run with preemptions and failing nodes.

`make kept-log` runs it, after each increase of `RULES`: later versions must read these logs. Until
0.1 is tagged, it replaces the log of rules 1 after each change of decisions, events or digests.
"""

import lzma
import sys
from pathlib import Path
from subprocess import run
from tempfile import TemporaryDirectory

from tests.support.kept_logs import FOLDER
from yardmaster_core.rules import RULES
from yardmaster_schemas.generate import FOLDER as SCHEMAS
from yardmaster_schemas.generate import published_in

YARD = Path(sys.executable).with_name("yard")
POLICY = "priority"
OPTIONS = (
    *("simulate", "plain", "--jobs", "60", "--nodes", "3x4", "--seed", "3"),
    *("--node-fails", "10h", "--workers", "1", "-q"),
)


def keep(folder: Path) -> None:
    """Write the log to `folder`."""
    folder.mkdir(exist_ok=True)
    with TemporaryDirectory() as out:
        run([YARD, *OPTIONS, "--policy", POLICY, "--out", out], check=True)
        (log,) = Path(out).glob("*.db")
        (folder / f"{POLICY}.db.xz").write_bytes(lzma.compress(log.read_bytes(), preset=9))


if __name__ == "__main__":
    target = FOLDER / f"rules-{RULES}"
    if target.exists() and published_in(SCHEMAS):
        sys.exit(f"{target} exists and never changes after a release; increase RULES first")
    keep(target)
