"""`yardmaster-node-agent`: the agent of one node as a process, configured by its environment.

`YARD_LOG` is the address of the log; `YARD_AGENT_NODE`, `YARD_AGENT_DATA_DIR` and the rest of
`Settings` describe the node. Any signal may end the process: tasks continue, and the next process
adopts them. The agent is ready while its join is in the log and not refused, and its heartbeats
reach the log. `yard nodes ls` shows which nodes have joined.
"""

import sys
from typing import Final

from yardmaster_node_agent.agent import host_ports, run
from yardmaster_node_agent.deferred_log import DeferredLog
from yardmaster_node_agent.settings import Settings
from yardmaster_runtime.service import Process, run_process
from yardmaster_runtime.waiting import happens_within, together

#: Seconds that the agent waits for the log before it starts without the log.
HEAD_START_S: Final = 2.0


async def serve(process: Process, settings: Settings) -> None:
    """Run the agent until cancelled; raise the errors of `agent.run` and `open_log`.

    If the log is unavailable, the agent supervises its replicas while the log is being opened.
    """
    log = DeferredLog()
    ports = host_ports(
        settings,
        log=log,
        clock=process.clock,
        chance=process.chance,
        telemetry=process.telemetry,
        health=process.health,
    )

    async def open_log() -> None:
        log.attach(await process.open_log(settings))

    async def work() -> None:
        await happens_within(process.clock, HEAD_START_S, log.opened)
        await run(ports, settings)

    try:
        await together(open_log(), work())
    finally:
        await log.close()


def main() -> int:
    """Run the agent; return the exit code of `run_process`."""
    return run_process(Settings, "node_agent", serve)


if __name__ == "__main__":
    sys.exit(main())
