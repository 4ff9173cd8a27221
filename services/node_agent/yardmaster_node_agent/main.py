"""`yardmaster-node-agent`: one node's agent as a process of its own, set up by its environment.

`YARD_LOG` says where the log is, `YARD_AGENT_NODE`, `YARD_AGENT_DATA_DIR` and the rest of
`Settings` what the node is. Any signal that ends it is fine: tasks run on and are found again at
the next start. It is ready once its join is in the log and was not refused, while its heartbeats
arrive. `yard nodes ls` shows which nodes have joined.
"""

import sys
from typing import Final

from yardmaster_node_agent.agent import host_ports, run
from yardmaster_node_agent.log_to_come import LogToCome
from yardmaster_node_agent.settings import Settings
from yardmaster_runtime.service import Process, run_process
from yardmaster_runtime.waiting import happens_within, together

#: How long the agent lets the log open before it starts without.
HEAD_START_S: Final = 2.0


async def serve(process: Process, settings: Settings) -> None:
    """Be the agent until cancelled; raises what `agent.run` and `open_log` raise.

    A log that is away is waited for beside the agent, which looks after what runs here meanwhile.
    """
    log = LogToCome()
    ports = host_ports(
        settings,
        log=log,
        clock=process.clock,
        chance=process.chance,
        telemetry=process.telemetry,
        health=process.health,
    )

    async def come() -> None:
        log.is_there(await process.open_log(settings))

    async def work() -> None:
        await happens_within(process.clock, HEAD_START_S, log.opened)
        await run(ports, settings)

    try:
        await together(come(), work())
    finally:
        await log.close()


def main() -> int:
    """Run the agent; its exit code is `run_process`'s."""
    return run_process(Settings, "node_agent", serve)


if __name__ == "__main__":
    sys.exit(main())
