"""A policy that no schema knows: `@patch.dict(POLICIES, TOYS)` registers it for one test."""

from dataclasses import replace
from typing import Final

from yardmaster_core.scheduling.policies.priority import PRIORITY

#: Decides like `priority`.
TOY: Final = replace(PRIORITY, name="toy")
TOYS: Final = {(TOY.name, TOY.version): TOY}
