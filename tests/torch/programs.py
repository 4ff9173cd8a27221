"""The environment of the programs of these tests."""

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
#: Of every program with PyTorch.
PROGRAM_ENV: Final = {
    "PYTHONPATH": str(ROOT / "libs/client"),
    "OMP_NUM_THREADS": "1",
    # PyTorch of Debian is built without libuv.
    "USE_LIBUV": "0",
}
