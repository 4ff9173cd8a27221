"""All known formats of scenarios."""

from typing import Final

from yardmaster_simulation.conformance.determined import DETERMINED
from yardmaster_simulation.conformance.kai import KAI
from yardmaster_simulation.conformance.kai_fairshare import FAIRSHARE
from yardmaster_simulation.conformance.runai_doc import RUNAI_DOC
from yardmaster_simulation.conformance.scenarios import Format

FORMATS: Final[tuple[Format, ...]] = (*DETERMINED, FAIRSHARE, KAI, RUNAI_DOC)
