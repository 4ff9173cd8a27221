"""All known formats of scenarios."""

from typing import Final

from yardmaster_simulation.conformance.determined import DETERMINED
from yardmaster_simulation.conformance.kai_fairshare import FAIRSHARE
from yardmaster_simulation.conformance.scenarios import LATER, Format

FORMATS: Final[tuple[Format, ...]] = (*DETERMINED, FAIRSHARE, *LATER)
