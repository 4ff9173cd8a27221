"""The host of a program that is not ours, the broker: a wrong wall clock, and a slow disk."""

import subprocess
from pathlib import Path
from typing import Final

_SOURCE: Final = Path(__file__).with_suffix(".c")


def preloaded(folder: Path, clock: Path) -> dict[str, str]:
    """The environment of a program whose host has the faults in the file `clock`.

    The file has two 64-bit integers: the seconds by which the clock is ahead, and the microseconds
    by which each fsync and fdatasync takes longer. Without the second one, the disk is not slow.
    Compiles the preloaded library into `folder`, which needs a C compiler.
    """
    library = folder / "faulty_host.so"
    if not library.exists():
        folder.mkdir(parents=True, exist_ok=True)
        command = ["cc", "-shared", "-fPIC", "-O2", "-o", str(library), str(_SOURCE), "-ldl"]
        subprocess.run(command, check=True)
    return {"LD_PRELOAD": str(library), "TEST_CLOCK": str(clock)}
