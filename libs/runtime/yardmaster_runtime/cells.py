"""The cells of one process: each has a candidate of its own, which leads or stands by.

Cells fail independently. A machine that stops withdraws from its election, so that another replica
takes over its cell. If the cause is in this process, the other replica continues; if the cause is
in the log, the other replica stops too, and only this cell has no leader. Meanwhile the process is
not ready, with the cell's name in the reason; it logs `machine_stopped` and sets the metric
`stopped`. The process ends when all of its cells have stopped.

All cells of a process share its event loop: a cycle, a restore or a snapshot of one cell delays the
others. Run more replicas when one process is not fast enough.
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
    """Run a machine's service for each cell of the settings until all have stopped.

    Raises: the error of the first cell that stopped.
    """
    stopped: list[Exception] = []

    async def serve(cell: R) -> None:
        try:
            await run(ports.for_cell(cell.cell), cell)
        except Exception as error:  # noqa: BLE001 the candidate has reported it; raised when all have stopped
            stopped.append(error)

    await together(*(serve(cell) for cell in settings.served()))
    raise stopped[0]
