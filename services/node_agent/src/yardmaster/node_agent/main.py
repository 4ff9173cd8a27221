"""`yardmaster-node-agent`: one node's agent as a process of its own, set up by its environment.

`YARD_LOG` says where the log is, `YARD_AGENT_NODE`, `YARD_AGENT_DATA_DIR` and the rest of
`Settings` what the node is. Any signal that ends it is fine: tasks run on and are found again at
the next start. It is ready once it has joined, while its heartbeats arrive.
"""

import sys

from yardmaster.node_agent.agent import host_ports, run
from yardmaster.node_agent.settings import Settings
from yardmaster.runtime.service import Process, run_process


async def serve(process: Process, settings: Settings) -> None:
    """Be the agent until cancelled; raises what `agent.run` and `open_log` raise."""
    log = await process.open_log(settings)
    ports = host_ports(
        settings,
        log=log,
        clock=process.clock,
        chance=process.chance,
        telemetry=process.telemetry,
        health=process.health,
    )
    try:
        await run(ports, settings)
    finally:
        await log.close()


def main() -> int:
    """Run the agent; its exit code is `run_process`'s."""
    return run_process(Settings, "node_agent", serve)


if __name__ == "__main__":
    sys.exit(main())
