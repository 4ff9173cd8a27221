"""The pauses of a reflector whose server is down."""

import asyncio
import ssl

from yardmaster_kubernetes.api_client import KubernetesClient
from yardmaster_kubernetes.configuration import ApiConnection
from yardmaster_kubernetes.objects import Pod
from yardmaster_kubernetes.reflector import ObjectChange, Reflector, ReflectorLimits, Selection
from yardmaster_localcluster.ports import HOST, free_ports
from yardmaster_runtime.chance import SeededChance
from yardmaster_runtime.clock import ManualClock


async def ignore(change: ObjectChange[Pod]) -> None:
    pass


class NotedClock(ManualClock):
    """Notes each pause, and ends it at once."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses: list[float] = []
        self.enough = asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        if len(self.pauses) == 8:
            self.enough.set()
            await super().sleep(3600)


async def pauses(seed: int) -> list[float]:
    down = ApiConnection(
        f"https://{HOST}:{free_ports(1)[0]}", ssl.create_default_context(), lambda: ""
    )
    clock = NotedClock()
    limits = ReflectorLimits(first_pause_s=1.0, longest_pause_s=10.0)
    async with KubernetesClient(down) as client, asyncio.TaskGroup() as group:
        selection = Selection("/api/v1/pods", Pod)
        reflector = Reflector(client, selection, ignore, clock, SeededChance(seed), limits)
        running = group.create_task(reflector.run())
        await clock.enough.wait()
        assert reflector.failure is not None
        assert reflector.failure.code == "api_unavailable"
        assert reflector.counts.pauses == 8
        running.cancel()
    return clock.pauses


async def test_pauses_grow_up_to_their_limit_and_differ_between_processes() -> None:
    found = await pauses(seed=1)
    for pause_s, most_s in zip(found, (1, 2, 4, 8, 10, 10, 10, 10), strict=True):
        assert most_s / 2 <= pause_s <= most_s
    assert found != await pauses(seed=2)
