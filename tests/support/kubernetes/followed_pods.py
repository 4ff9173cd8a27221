"""A reflector of the pods of a namespace, with the changes that it reported."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.support.half_open import collect_half_open
from tests.support.kubernetes.control_plane import ControlPlane, created, pod_body
from yardmaster_kubernetes.api_client import KubernetesClient
from yardmaster_kubernetes.configuration import ApiConnection, from_kubeconfig
from yardmaster_kubernetes.objects import Metadata, Pod
from yardmaster_kubernetes.reflector import ObjectChange, Reflector, ReflectorLimits, Selection
from yardmaster_runtime.chance import SeededChance
from yardmaster_runtime.clock import SystemClock

LIMIT_S = 60.0
#: Watches end often, and pauses are short.
QUICK = ReflectorLimits(watch_s=4.0, silence_margin_s=1.0, first_pause_s=0.02, longest_pause_s=0.1)


class FollowedPods:
    """The copy, and each change as `+NAME UID` or `-NAME UID`."""

    def __init__(self, client: KubernetesClient, namespace: str, limits: ReflectorLimits) -> None:
        path = f"/api/v1/namespaces/{namespace}/pods"
        selection = Selection(path, Pod)
        self.reflector = Reflector(
            client, selection, self._changed, SystemClock(), SeededChance(1), limits
        )
        self.changes: list[str] = []

    async def _changed(self, change: ObjectChange[Pod]) -> None:
        metadata = change.object.metadata
        if metadata.deletion_timestamp is not None and not change.deleted:
            return  # the deletion begins, as a change of its own
        self.changes.append(f"{'-' if change.deleted else '+'}{metadata.name} {metadata.uid}")

    async def until(self, reached: Callable[[], bool]) -> None:
        """Wait until a condition holds."""
        async with asyncio.timeout(LIMIT_S):
            while not reached():  # noqa: ASYNC110 also counts end waits, not only changes
                await asyncio.sleep(0.01)

    async def until_changes(self, count: int) -> None:
        """Wait until `count` changes were reported."""
        await self.until(lambda: len(self.changes) >= count)


def connection(plane: ControlPlane, folder: Path, server: str | None = None) -> ApiConnection:
    """The administrator's connection, at the server's own address or at a proxy's."""
    path = folder / "kubeconfig.json"
    path.write_text(json.dumps(plane.configuration(server=server)))
    return from_kubeconfig(path)


class Pods:
    """Writes pods of a namespace."""

    def __init__(self, admin: httpx.Client, namespace: str) -> None:
        self.admin = admin
        self.path = f"/api/v1/namespaces/{namespace}/pods"

    def add(self, name: str, **spec: object) -> str:
        """Create a pod; return that as a change."""
        return f"+{name} {self.create(name, **spec).uid}"

    def create(self, name: str, **spec: object) -> Metadata:
        """Create a pod."""
        found = created(self.admin.post(self.path, json=pod_body(name, **spec)))["metadata"]
        return Metadata(name=name, namespace=found["namespace"], uid=found["uid"])

    def delete(self, name: str) -> str:
        """Delete a pod; return that as a change."""
        found = created(self.admin.delete(f"{self.path}/{name}"))
        return f"-{name} {found['metadata']['uid']}"

    def label(self, name: str) -> None:
        """ObjectChange a label of a pod."""
        body = {"metadata": {"labels": {"changed": "yes"}}}
        kind = {"Content-Type": "application/merge-patch+json"}
        created(self.admin.patch(f"{self.path}/{name}", json=body, headers=kind))

    def read(self, name: str) -> dict[str, Any]:
        """The pod as the server has it."""
        return created(self.admin.get(f"{self.path}/{name}"))


@asynccontextmanager
async def followed_pods(
    where: ApiConnection, namespace: str, limits: ReflectorLimits = QUICK
) -> AsyncIterator[FollowedPods]:
    """Follow pods until the context ends."""
    async with KubernetesClient(where) as client, asyncio.TaskGroup() as group:
        pods = FollowedPods(client, namespace, limits)
        running = group.create_task(pods.reflector.run())
        yield pods
        running.cancel()
    # httpx leaves a connection open whose TLS handshake is cancelled.
    collect_half_open()
