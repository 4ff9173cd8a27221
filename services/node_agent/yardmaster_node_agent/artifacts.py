"""Keeps the artifacts of replicas that have ended: files of their working folders, in a store.

The slots of the replica are free by then, so nothing waits for the store. The ledger says which
replicas are not finished, and the agent keeps their folders; a later agent process begins the copy
again. If the node is lost before that, its artifacts are lost with it.
"""

import asyncio
from pathlib import Path
from typing import Final, Protocol

from yardmaster_node_agent.agent_state import Replica
from yardmaster_node_agent.metrics import ArtifactMetrics
from yardmaster_packages.artifact_files import FoundFiles, find_artifacts
from yardmaster_packages.artifact_store import ArtifactIndex, ArtifactPlace, ArtifactStore
from yardmaster_packages.errors import ArtifactDamaged, ArtifactsUnavailable
from yardmaster_packages.limits import ArtifactLimits
from yardmaster_runtime.clock import Clock
from yardmaster_runtime.telemetry.port import Telemetry
from yardmaster_schemas.backoff import Backoff
from yardmaster_schemas.counts import count_of

#: Replicas whose files are copied at once; the others wait for their turn.
AT_ONCE: Final = 2
#: The first and the longest pause while the store does not answer.
PAUSE_S: Final = 5.0
LONGEST_PAUSE_S: Final = 300.0


class Artifacts(Protocol):
    """Keeps the artifacts of replicas that have ended."""

    async def keep(self, replica: Replica, folder: Path | None, metrics: ArtifactMetrics) -> str:
        """Store the artifacts of a replica; return a line for its output that says what is kept.

        Args:
            folder: its working folder; None: it has none.
        """


class NoArtifacts:
    """For a node without a store, and for simulated replicas, which write no files."""

    async def keep(self, replica: Replica, folder: Path | None, metrics: ArtifactMetrics) -> str:
        metrics.failed.labels("no_store").inc()
        return "no artifacts are kept: YARD_ARTIFACTS of this node's agent is empty"


class KeptArtifacts:
    """Copies artifacts to a store.

    Args:
        wait_s: how long after the end of a replica the agent tries again while the store does not
            answer.
    """

    def __init__(
        self,
        store: ArtifactStore,
        *,
        limits: ArtifactLimits,
        wait_s: float,
        clock: Clock,
        telemetry: Telemetry,
    ) -> None:
        self._store = store
        self._limits = limits
        self._wait_s = wait_s
        self._clock = clock
        self._telemetry = telemetry
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def keep(self, replica: Replica, folder: Path | None, metrics: ArtifactMetrics) -> str:
        if folder is None:
            return _failed(metrics, "no_folder", "the job has no working folder of its own")
        metrics.waiting.inc()
        try:
            index = await self._kept(replica, folder)
        except ArtifactsUnavailable as error:
            # The URL of the store and the cause are for the operator, not for the job's user.
            self._telemetry.warn("artifacts_unavailable", code=error.code, found=str(error)[:500])
            found = f"the store of artifacts did not answer within {self._wait_s:g} s"
            return _failed(metrics, "unavailable", found)
        except (ArtifactDamaged, ValueError) as error:
            return _failed(metrics, "refused", str(error))
        except OSError as error:
            return _failed(metrics, "unreadable", f"its working folder: {error.strerror}")
        finally:
            metrics.waiting.dec()
        metrics.files.inc(len(index.files))
        metrics.size.inc(index.size_bytes)
        metrics.left_out.inc(index.left_out_count)
        return _line(index)

    async def _kept(self, replica: Replica, folder: Path) -> ArtifactIndex:
        """Find and store the files; try again while the store does not answer.

        Raises:
            ArtifactsUnavailable, ArtifactDamaged, ValueError, OSError.
        """
        key = replica.key
        place = ArtifactPlace(
            project=replica.assignment.project,
            task_id=key.task_id,
            attempt=key.attempt,
            replica=key.replica,
        )
        until_ms = replica.ended_ms + int(self._wait_s * 1000)
        pauses = Backoff(PAUSE_S, LONGEST_PAUSE_S)
        while True:
            try:
                async with self._turns:
                    loop = asyncio.get_running_loop()
                    found = await loop.run_in_executor(None, self._find, replica, folder)
                    return await self._store.keep(place, folder, found)
            except ArtifactsUnavailable:
                if self._clock.now_ms() >= until_ms:
                    raise
                await self._clock.sleep(pauses.next_s())

    def _find(self, replica: Replica, folder: Path) -> FoundFiles:
        owner = None if replica.user is None else replica.user.uid
        return find_artifacts(folder, replica.artifacts, limits=self._limits, owner=owner)


def _failed(metrics: ArtifactMetrics, why: str, found: str) -> str:
    metrics.failed.labels(why).inc()
    return f"no artifacts are kept: {found}"[:1000]


def _line(index: ArtifactIndex) -> str:
    kept = f"{count_of(len(index.files), 'artifact')} kept ({index.size_bytes} bytes)"
    if not index.left_out_count:
        return kept
    first = index.left_out[0]
    return f"{kept}, {index.left_out_count} left out, such as {first.path[:200]}: {first.reason}"
