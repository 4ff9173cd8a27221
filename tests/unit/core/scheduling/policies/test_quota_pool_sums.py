"""A project is guaranteed what it deserves in a pool, and no more than the sum over its pools."""

from typing import Any

from tests.unit.core.scheduling.policies.test_quota import QuotaCell
from tests.unit.core.scheduling.reading import all_of, only
from yardmaster_core.scheduling.state.phases import Phase
from yardmaster_core.testing import fold
from yardmaster_schemas.events import admissions as adm
from yardmaster_schemas.events import requests as req
from yardmaster_schemas.events.decisions import PreemptionRequestedV1, SlotsAllocatedV1
from yardmaster_schemas.reasons import WaitCode


class TwoPools(QuotaCell):
    """Pools `main` and `side`, each of one node."""

    def __init__(self, main: int, side: int, *, policy: str = "quota", **options: Any) -> None:
        super().__init__({"n1": main}, **options)
        self.pool("side", policy=policy)
        self.node("n2", side, pool="side")

    def deserve(self, name: str, main: int | None, side: int | None) -> None:
        """Give a project GPUs in both pools; None: it has no quota there, -1: unlimited."""
        quotas = {
            pool: req.Quota(
                deserved_milli=max(0, gpus) * 1000, deserved_unlimited=gpus < 0, limit_milli=None
            )
            for pool, gpus in (("main", main), ("side", side))
            if gpus is not None
        }
        project = req.ProjectConfig(department="d", quotas=quotas)
        self.admission(
            adm.EntitlementsChangedV1(
                level=adm.Level.PROJECT, name=name, revision=1, project=project
            )
        )

    def tasks(self, name: str, count: int, pool: str, **changes: Any) -> None:
        """Submit `count` tasks of one GPU in a project of that name."""
        for number in range(count):
            self.submit(f"{name}{pool[0]}{number}x", project=name, pools=(pool,), **changes)

    def holds(self, project: str) -> tuple[int, int]:
        used = self.state.projects[project].used_milli
        return used.get("main", 0) // 1000, used.get("side", 0) // 1000


def over_its_sum() -> TwoPools:
    """`a` deserves 2 GPUs in each pool and holds 4 of `main`; `b` holds the 2 of `side`."""
    cell = TwoPools(4, 2)
    cell.deserve("a", 2, 2)
    cell.deserve("b", 0, 2)
    cell.tasks("a", 4, "main")
    cell.tasks("b", 2, "side")
    cell.run()
    assert (cell.holds("a"), cell.holds("b")) == ((4, 0), (0, 2))
    return cell


def test_what_a_project_holds_over_quota_in_one_pool_is_not_guaranteed_in_another() -> None:
    # The pools' quotas are over-subscribed: both deserve the 2 GPUs of `side`.
    cell = over_its_sum()
    cell.deserve("b", 0, 1)
    cell.tasks("a", 1, "side")
    decisions = cell.run()
    assert all_of(decisions, PreemptionRequestedV1) == []
    assert cell.wait_of("as0x", "side") is WaitCode.INSUFFICIENT_FREE


def test_without_the_other_pool_the_same_project_gets_what_it_deserves() -> None:
    cell = TwoPools(4, 2)
    cell.deserve("a", 2, 2)
    cell.deserve("b", 0, 1)
    cell.tasks("a", 3, "main")
    cell.tasks("b", 2, "side")
    cell.run()
    cell.tasks("a", 1, "side")
    stop = only(cell.run(), PreemptionRequestedV1)
    assert stop.stop.rule == "over_deserved"
    assert cell.holds("a") == (3, 1)


def test_an_end_in_one_pool_lets_a_task_in_another_one_reclaim() -> None:
    cell = over_its_sum()
    cell.deserve("b", 0, 1)
    cell.tasks("a", 1, "side")
    cell.run()
    cell.cancel("am0x")
    stop = only(cell.run(), PreemptionRequestedV1)
    assert stop.stop.rule == "over_deserved"
    assert (cell.holds("a"), cell.holds("b")) == ((3, 1), (0, 1))
    assert fold(cell.steps).digest() == cell.state.digest()


def test_a_project_over_its_sum_loses_tasks_in_a_pool_where_it_holds_what_it_deserves() -> None:
    cell = TwoPools(4, 2)
    cell.deserve("a", 2, 2)
    cell.deserve("b", 0, 2)
    cell.tasks("a", 2, "side")
    cell.run()
    cell.tasks("b", 2, "side")
    assert all_of(cell.run(), PreemptionRequestedV1) == []
    # Here the project becomes over-quota, and that frees its claim on the other pool.
    cell.tasks("a", 3, "main")
    decisions = cell.run()
    stop = only(decisions, PreemptionRequestedV1)
    assert stop.stop.about == "a"
    assert stop.stop.numbers["deserved_milli"] == stop.stop.numbers["used_milli"] == 2000
    assert stop.stop.numbers["deserved_in_all_milli"] == 4000
    assert stop.stop.numbers["used_in_all_milli"] == 5000
    assert (cell.holds("a"), cell.holds("b")) == ((3, 1), (0, 1))
    assert fold(cell.steps).digest() == cell.state.digest()


def test_what_is_unlimited_in_one_pool_is_unlimited_in_the_sum() -> None:
    cell = TwoPools(4, 2)
    cell.deserve("a", -1, 2)
    cell.deserve("b", 0, 2)
    cell.tasks("a", 2, "side")
    cell.tasks("a", 4, "main")
    cell.run()
    cell.tasks("b", 2, "side")
    assert all_of(cell.run(), PreemptionRequestedV1) == []
    assert cell.holds("a") == (4, 2)


def test_a_pool_without_a_quota_is_only_used_over_quota() -> None:
    cell = TwoPools(2, 2)
    cell.deserve("a", 1, None)
    cell.tasks("a", 1, "side", preemptible=False)
    cell.tasks("a", 1, "main", preemptible=False)
    cell.submit("t", project="a", pools=("side",))
    decisions = cell.run()
    assert cell.wait_of("as0x", "side") is WaitCode.EXCEEDS_DESERVED
    starts = {
        each.task_id[:4]: each.start.rule
        for each in decisions
        if isinstance(each, SlotsAllocatedV1)
    }
    assert starts == {"am0x": "within_deserved", "t000": "over_quota"}


def test_pools_with_other_policies_do_not_count() -> None:
    cell = TwoPools(4, 2, policy="priority")
    cell.deserve("a", 2, 0)
    cell.deserve("b", 2, 0)
    cell.tasks("a", 2, "side")
    cell.tasks("b", 4, "main")
    cell.run()
    cell.tasks("a", 2, "main")
    assert len(all_of(cell.run(), PreemptionRequestedV1)) == 2
    assert cell.holds("a") == (2, 2)
    # From now on they count, and `b` takes back what its sum guarantees.
    cell.pool("side", policy="quota")
    cell.run()
    assert (cell.holds("a"), cell.holds("b")) == ((2, 2), (2, 0))


def test_tasks_that_cannot_be_preempted_stay_within_the_sum() -> None:
    cell = TwoPools(4, 2)
    cell.deserve("a", 2, 2)
    cell.tasks("a", 2, "main", preemptible=False)
    cell.run()
    # Of what runs, one GPU is more than the project deserves by now.
    cell.deserve("a", 1, 2)
    cell.tasks("a", 2, "side", preemptible=False)
    cell.run()
    assert cell.holds("a") == (2, 1)
    group = cell.task("as1x").group
    assert group is not None
    wait = group.waits["side"][0]
    assert (wait.code, wait.about) == (WaitCode.AT_DESERVED, "a")
    assert wait.numbers == {
        **{"deserved_milli": 2000, "used_milli": 1000, "asked_milli": 1000},
        **{"deserved_in_all_milli": 3000, "used_in_all_milli": 3000},
    }
    cell.ends("am0x")
    cell.run()
    assert cell.holds("a") == (1, 2)


def test_of_two_starved_projects_the_one_within_its_sum_starts_first() -> None:
    cell = TwoPools(4, 1)
    cell.deserve("a", 2, 2)
    cell.deserve("b", 0, 2)
    cell.tasks("a", 4, "main")
    cell.run()
    cell.tasks("a", 1, "side")
    cell.tasks("b", 1, "side")
    assert all_of(cell.run(), PreemptionRequestedV1) == []
    assert (cell.holds("a"), cell.holds("b")) == ((4, 0), (0, 1))
    assert cell.task("as0x").phase is Phase.PENDING


def test_a_restart_between_the_starts_and_the_claim_changes_nothing() -> None:
    cell = TwoPools(2, 4)
    cell.deserve("a", 2, 2)
    cell.deserve("b", 2, 0)
    cell.tasks("a", 2, "main")
    cell.run()
    cell.tasks("b", 2, "main")
    cell.run()
    # A cycle plans `side` after `main`, so the claim follows in the next one.
    cell.tasks("a", 3, "side")
    assert all_of(cell.cycle(), PreemptionRequestedV1) == []
    cell.restart()
    stop = only(cell.run(), PreemptionRequestedV1)
    assert stop.stop.rule == "over_deserved"
    assert fold(cell.steps).digest() == cell.state.digest()
