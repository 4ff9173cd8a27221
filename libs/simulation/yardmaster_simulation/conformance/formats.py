"""The formats of scenarios that are known."""

from typing import Final

from yardmaster_simulation.conformance.determined import DETERMINED
from yardmaster_simulation.conformance.scenarios import LATER, Format

FORMATS: Final[tuple[Format, ...]] = (*DETERMINED, *LATER)
