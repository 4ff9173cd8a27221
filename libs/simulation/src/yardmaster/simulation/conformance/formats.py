"""The formats of scenarios that are known."""

from typing import Final

from yardmaster.simulation.conformance.determined import DETERMINED
from yardmaster.simulation.conformance.scenarios import LATER, Format

FORMATS: Final[tuple[Format, ...]] = (*DETERMINED, *LATER)
