"""The wall clock of a program that is not ours, wrong by the seconds in a file: the broker's."""

import subprocess
from pathlib import Path
from typing import Final

_SOURCE: Final = Path(__file__).with_suffix(".c")


def preloaded(folder: Path, clock: Path) -> dict[str, str]:
    """The environment of a program whose clock is ahead by the seconds in the file `clock`.

    Compiles the preloaded library into `folder`, which needs a C compiler.
    """
    library = folder / "shifted_clock.so"
    if not library.exists():
        folder.mkdir(parents=True, exist_ok=True)
        command = ["cc", "-shared", "-fPIC", "-O2", "-o", str(library), str(_SOURCE), "-ldl"]
        subprocess.run(command, check=True)
    return {"LD_PRELOAD": str(library), "TEST_CLOCK": str(clock)}
