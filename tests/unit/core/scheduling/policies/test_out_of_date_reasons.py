"""`quota` and `starved_first`: no task waits for a reason that no longer holds.

These histories end with `become_idle`: considering all tasks again must change nothing.
"""

from typing import Any

from tests.histories.contention import FullPlayer
from tests.histories.properties import CheckedPlayer
from yardmaster_core.testing import Cell
from yardmaster_schemas.events.requests import Quota
from yardmaster_schemas.reasons import StartFailure, WaitCode
from yardmaster_schemas.resources import Resources

PROTECTED_S = 600


def submit(
    player: CheckedPlayer, name: str, gpus: int = 1, *, project: str = "p", **spec: Any
) -> None:
    resources = Resources(gpus=gpus, gpu_milli=spec.pop("milli", 1000))
    player.submit(name=name, project=project, spec={"resources": resources, **spec})


def codes(cell: Cell, *names: str) -> list[str | None]:
    return [cell.wait_code(name) for name in names]


def test_a_task_is_not_kept_behind_one_whose_only_victim_left() -> None:
    player = CheckedPlayer()
    cell = player.cell
    cell.pool("main", policy="quota", order="kai", actions=["allocate", "preempt"])
    cell.entitle("p", quotas={"main": Quota(deserved_milli=1000)}, reclaim_min_runtime_s=30)
    player.join(name="n1", gpus=3)
    submit(player, "busy", priority=40)
    submit(player, "victim", 2, project="q", priority=60, min_runtime_s=30)
    submit(player, "gang", project="q", priority=40, replicas=3)
    assert codes(cell, "gang") == [WaitCode.VICTIMS_PROTECTED]
    player.cycle()
    cell.never_starts("victim", failure=StartFailure.OTHER)
    submit(player, "behind", priority=40)
    player.become_idle()
    assert cell.task("behind").run is not None


def test_a_task_passes_the_oldest_one_once_that_waits_behind_another_one() -> None:
    player = FullPlayer()
    cell = player.cell
    cell.pool("main", policy="starved_first", non_preemptible_permille=250, reserve_oldest_s=5)
    for name in ("n1", "n2", "n3"):
        player.join(name=name, gpus=5)
    submit(player, "low", 5, user="ann", priority=60, grace_s=600)
    submit(player, "part", milli=300, user="ann")
    submit(player, "fixed", user="cy", preemptible=False)
    submit(player, "oldest", 2, user="ann", tasks=4, min_runtime_s=PROTECTED_S)
    player.round(after_s=10)
    submit(player, "behind", milli=700, user="ann", tasks=4)
    assert codes(cell, "behind") == [WaitCode.BEHIND_TASK]
    player.round(after_s=60)
    submit(player, "bob", 5, user="bob", grace_s=0)
    player.stick(job="low")
    submit(player, "cy", 5, user="cy")
    assert codes(cell, "cy") == [WaitCode.VICTIMS_PROTECTED]
    player.end()
    assert cell.task("behind").attempt


def test_a_task_that_may_not_preempt_any_more_keeps_none_behind_it() -> None:
    """The cycle of the stop that lowers what the other owner holds considers the task twice."""
    player = FullPlayer()
    cell = player.cell
    cell.pool("main", policy="starved_first")
    for name, gpus, kind in (("n1", 5, "b"), ("n2", 5, "b"), ("n3", 3, "a")):
        player.join(name=name, gpus=gpus, node_type=kind, cpu_milli=64_000, memory_mib=64_000)
    submit(player, "half", milli=500, user="ann", priority=60, tasks=2, min_runtime_s=PROTECTED_S)
    submit(player, "pairs", user="ann", tasks=4, replicas=2)
    submit(player, "other", 2, user="cy", priority=20, min_runtime_s=PROTECTED_S)
    submit(player, "fixed", milli=300, user="ann", preemptible=False, node_types=("b",))
    submit(player, "large", 5, user="bob", tasks=4, node_types=("b",))
    submit(player, "small", user="bob", priority=60, tasks=2)
    player.stick(job="pairs")
    submit(player, "behind", user="ann", tasks=2, min_runtime_s=30, node_types=("b",))
    player.end()
