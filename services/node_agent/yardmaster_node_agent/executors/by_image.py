"""Processes and containers on one node: a job with an image runs in a container.

An earlier agent process may have started containers that this one would not start: its engine does
not answer, or its settings say that it runs processes only. So the executor of containers is always
there, and each replica is found by the executor that started it.
"""

from dataclasses import replace

from yardmaster_node_agent.agent_state import ReplicaKey
from yardmaster_node_agent.executors.port import (
    Capabilities,
    Execution,
    Executor,
    Launch,
    OnProgress,
    Paths,
    Phase,
    ReplicaFound,
)
from yardmaster_schemas.events.details import Run
from yardmaster_schemas.events.node_events import RunIdentity, RunKind


class ExecutorByImage:
    """Gives jobs with an image to one executor, and all others to another one."""

    def __init__(
        self, processes: Executor, containers: Executor, *, new_containers: bool = True
    ) -> None:
        """Each of the two fences its replicas as its own docstring says.

        Without `new_containers`, the executor of processes gets all jobs, and refuses those with an
        image.
        """
        self._processes = processes
        self._containers = containers
        self._new_containers = new_containers

    async def capabilities(self) -> Capabilities:
        """Return what the two can now; the isolation of processes is the weaker one."""
        processes = await self._processes.capabilities()
        if not self._new_containers:
            return processes
        containers = await self._containers.capabilities()
        return replace(
            processes,
            kinds=processes.kinds + containers.kinds,
            no_containers=containers.no_containers,
        )

    def paths(self, key: ReplicaKey, run: Run) -> Paths:
        """Return the paths in the process or the container."""
        return self._of(run).paths(key, run)

    async def fetch(self, launch: Launch, on_progress: OnProgress) -> Launch:
        """Fetch the image of a container."""
        return await self._of(launch.run).fetch(launch, on_progress)

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

    async def forget(self, key: ReplicaKey) -> bool:
        """Remove what either has of the replica."""
        of_process = await self._processes.forget(key)
        return await self._containers.forget(key) and of_process

    def _of(self, run: Run) -> Executor:
        in_container = run.image is not None and self._new_containers
        return self._containers if in_container else self._processes
