"""Processes and containers on one node: a job with an image runs in a container."""

from yardmaster_node_agent.agent_state import ReplicaKey
from yardmaster_node_agent.executors.port import (
    Capabilities,
    Execution,
    Executor,
    Launch,
    Paths,
    Phase,
    ReplicaFound,
)
from yardmaster_schemas.events.details import Run
from yardmaster_schemas.events.node_events import RunIdentity, RunKind


class ExecutorByImage:
    """Gives jobs with an image to one executor, and all others to another one."""

    def __init__(self, processes: Executor, containers: Executor) -> None:
        """Each of the two fences its replicas as its own docstring says."""
        self._processes = processes
        self._containers = containers
        kinds = processes.capabilities.kinds + containers.capabilities.kinds
        #: The isolation of processes is the weaker one.
        self.capabilities = Capabilities(kinds, processes.capabilities.isolation)

    def paths(self, key: ReplicaKey, run: Run) -> Paths:
        """Return the paths in the process or the container."""
        return self._of(run).paths(key, run)

    async def prepare(self, launch: Launch) -> None:
        """Prepare the process or the container."""
        await self._of(launch.run).prepare(launch)

    async def start(self, launch: Launch) -> Execution:
        """Start the process or the container."""
        return await self._of(launch.run).start(launch)

    async def find(self, key: ReplicaKey, known: RunIdentity | None = None) -> ReplicaFound:
        """Find the process; if there is none, the container."""
        if known is not None:
            of_container = known.kind is RunKind.CONTAINER
            return await (self._containers if of_container else self._processes).find(key, known)
        found = await self._processes.find(key)
        return await self._containers.find(key) if found.phase is Phase.ABSENT else found

    async def withdraw(self, key: ReplicaKey) -> Execution | None:
        """Withdraw both; only one of them can have prepared the replica."""
        process = await self._processes.withdraw(key)
        return await self._containers.withdraw(key) if process is None else process

    async def sweep(self) -> int:
        """Sweep both."""
        return await self._processes.sweep() + await self._containers.sweep()

    async def forget(self, key: ReplicaKey) -> None:
        """Remove what either has of the replica."""
        await self._processes.forget(key)
        await self._containers.forget(key)

    def _of(self, run: Run) -> Executor:
        return self._processes if run.image is None else self._containers
