"""The quota service: admits or refuses every request of a cell with the admission machine.

It only chooses the machine and its check of policies; the runtime provides cycles, terms, snapshots
and their limits.
"""

import sys
from collections.abc import Sequence
from typing import NoReturn

from pydantic_settings import SettingsConfigDict

from yardmaster_core.admission.machine import QuotaMachine
from yardmaster_core.admission.state import AdmissionState
from yardmaster_core.scheduling.policies import check
from yardmaster_quota.topic_check import check_topics
from yardmaster_quota.work_metrics import WorkMetrics
from yardmaster_runtime.cells import run_cells
from yardmaster_runtime.machine.leader import Leader
from yardmaster_runtime.service import Ports, candidate, on_kafka, run_machine_process
from yardmaster_runtime.settings import RuntimeSettings
from yardmaster_runtime.waiting import Work, first_of

__all__ = ["Ports", "Settings", "main", "run"]


class Settings(RuntimeSettings):
    """The settings `YARD_QUOTA_...`, with the defaults `YARD_...`."""

    model_config = SettingsConfigDict(env_prefix="YARD_QUOTA_")


async def run(ports: Ports, settings: RuntimeSettings) -> NoReturn:
    """Admit or refuse the requests of every cell until cancelled or all machines have stopped.

    Raises: the error that stopped the first machine (see `Candidate.run`).
    """
    cells = run_cells(ports, settings, admit)
    if on_kafka(settings):
        await first_of(cells, check_topics(ports.telemetry, ports.clock, settings))
    await cells


async def admit(ports: Ports, settings: RuntimeSettings) -> NoReturn:
    """Admit or refuse one cell's requests until cancelled.

    Raises: the errors of `Candidate.run`.
    """

    def leader_tasks(leader: Leader[AdmissionState]) -> Sequence[Work]:
        fold = leader.fold
        work = WorkMetrics(ports.telemetry, lambda: fold.state)
        fold.listeners.append(work.on_cycle)
        return (work.run(),)

    await candidate(QuotaMachine(check), ports, settings).run(leader_tasks)


def main() -> int:
    """Run the service in a process of its own; return its exit code."""
    return run_machine_process(Settings, "quota", QuotaMachine.output, run)


if __name__ == "__main__":
    sys.exit(main())
