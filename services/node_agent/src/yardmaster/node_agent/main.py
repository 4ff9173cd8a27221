"""`yardmaster-node-agent`: one node's agent as a process of its own, set up by its environment.

`YARD_LOG` says where the log is, `YARD_AGENT_NODE`, `YARD_AGENT_DATA_DIR` and the rest of
`Settings` what the node is. Any signal that ends it is fine: tasks run on and are found again at
the next start.
"""

import asyncio
import sys

from pydantic import ValidationError

from yardmaster.node_agent.agent import host_ports, run
from yardmaster.node_agent.settings import Settings
from yardmaster.runtime.chance import SystemChance
from yardmaster.runtime.clock import SystemClock
from yardmaster.runtime.service import open_log
from yardmaster.runtime.settings import RuntimeSettings
from yardmaster.runtime.telemetry import Telemetry
from yardmaster.schemas.errors import YardmasterError


async def serve(settings: Settings, where: RuntimeSettings) -> None:
    """Be the agent until cancelled; raises what `agent.run` and `open_log` raise."""
    clock = SystemClock()
    log = await open_log(where, clock)
    ports = host_ports(
        settings,
        log=log,
        clock=clock,
        chance=SystemChance(),
        telemetry=Telemetry("node_agent", now_ms=clock.now_ms),
    )
    try:
        await run(ports, settings)
    finally:
        await log.close()


def main() -> int:
    """Run the agent; 0 after Ctrl-C, 2 for bad settings, 100 when it cannot go on."""
    try:
        settings = Settings()  # the environment gives node and data_dir
    except ValidationError as error:
        for found in error.errors(include_url=False, include_input=False):
            name = "YARD_AGENT_" + "_".join(str(part) for part in found["loc"]).upper()
            print(f"error: {name}: {found['msg']}", file=sys.stderr)
        return 2
    try:
        asyncio.run(serve(settings, RuntimeSettings()))
    except KeyboardInterrupt:
        return 0
    except YardmasterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 100
    return 0


if __name__ == "__main__":
    sys.exit(main())
