"""The quota service: judges every request of a cell, with the admission machine on a log.

All it does of its own is to choose the machine and its policy check; cycles, terms, snapshots and
their limits are the runtime's.
"""

import sys
from typing import NoReturn

from pydantic_settings import SettingsConfigDict

from yardmaster_core.admission.machine import QuotaMachine
from yardmaster_core.scheduling.policies import check
from yardmaster_runtime.cells import run_cells
from yardmaster_runtime.service import Ports, candidate, run_machine_process
from yardmaster_runtime.settings import RuntimeSettings

__all__ = ["Ports", "Settings", "main", "run"]


class Settings(RuntimeSettings):
    """`YARD_QUOTA_CYCLE__MAX_INPUTS` and its like; what is not set so is that of all services."""

    model_config = SettingsConfigDict(env_prefix="YARD_QUOTA_")


async def run(ports: Ports, settings: RuntimeSettings) -> NoReturn:
    """Judge the requests of every cell of the settings until cancelled.

    Raises: what stopped the first machine (`Candidate.run`), once all have stopped.
    """
    await run_cells(ports, settings, judge)


async def judge(ports: Ports, settings: RuntimeSettings) -> NoReturn:
    """Judge one cell's requests until cancelled; raises what stops the machine."""
    await candidate(QuotaMachine(check), ports, settings).run()


def main() -> int:
    """Be the service in a process of its own; `YARD_QUOTA_*` and `YARD_*` are its settings."""
    return run_machine_process(Settings, "quota", QuotaMachine.output, run)


if __name__ == "__main__":
    sys.exit(main())
