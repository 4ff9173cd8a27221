"""The cells of one process: each with a candidate of its own, which leads or stands by.

Cells share a process, not a fate. A machine that stops is taken out of the election, so that
another replica tries its cell: if what stopped it is in this process, that one goes on; if it is in
the log, that one stops too, and of all cells only this one is without a leader. Meanwhile the
process is not ready, by name, and says `machine_stopped` in its log and `stopped` in its metrics.
When no cell is left, the process ends.

All cells of a process share its event loop: a cycle of one delays the others, and so does a restore
or a snapshot. What does not fit one process together belongs on more replicas.
"""

from collections.abc import Awaitable, Callable
from typing import NoReturn, TypeVar

from yardmaster_runtime.service import Ports
from yardmaster_runtime.settings import RuntimeSettings
from yardmaster_runtime.waiting import together

R = TypeVar("R", bound=RuntimeSettings)


async def run_cells(
    ports: Ports, settings: R, run: Callable[[Ports, R], Awaitable[object]]
) -> NoReturn:
    """Run a machine's service for each cell of the settings, until cancelled or none is left.

    Raises: what stopped the first of them.
    """
    stopped: list[Exception] = []

    async def serve(cell: R) -> None:
        try:
            await run(ports.for_cell(cell.cell), cell)
        except Exception as error:  # noqa: BLE001 one cell's, and named: raised when none is left
            stopped.append(error)

    await together(*(serve(cell) for cell in settings.served()))
    raise stopped[0]
