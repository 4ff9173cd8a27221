"""Scenarios of KAI-Scheduler as inputs of the core: terms, the initial state, and the outcome."""

from typing import Any

import pytest

from yardmaster_core.testing import Cell
from yardmaster_schemas.events.requests import Kind
from yardmaster_simulation.conformance import kai_cluster
from yardmaster_simulation.conformance.formats import FORMATS
from yardmaster_simulation.conformance.kai_form import Job, Node, Queue, Task
from yardmaster_simulation.conformance.kai_outcome import gpus_of
from yardmaster_simulation.conformance.kai_terms import (
    kind_of,
    priorities_of,
    quota_of,
    resources_of,
    units_of,
)
from yardmaster_simulation.conformance.scenarios import Outcome, Skip, Verdict, check, parsed

GIGABYTE = 10**9


def node(name: str, gpus: int = 2, **more: Any) -> dict[str, Any]:
    amounts = {"cpu_millis": 20_000, "mem_bytes": 20 * GIGABYTE, "gpu_memory_mib": 100}
    return {"name": name, "gpus": gpus, "node_type": name, **amounts, **more}


def queue(name: str, parent: str | None = "d", **more: Any) -> dict[str, Any]:
    unlimited = {
        f"{what}_{resource}": -1
        for what in ("deserved", "max_allowed")
        for resource in ("gpus", "cpu_millis", "mem_mb")
    }
    kind = "department" if parent is None else "project"
    own = {"name": name, "kind": kind, "parent": parent, "priority": 100, "created_seq": 0}
    return {**own, "over_quota_weight": 1, **unlimited, **more}


def task(name: str, state: str = "pending", **more: Any) -> dict[str, Any]:
    request = {} if {"gpu_fraction", "gpu_memory_mib"} & more.keys() else {"gpus": 1}
    amounts = {"cpu_millis": 1000, "mem_bytes": GIGABYTE}
    return {"name": name, "state": state, **amounts, **request, **more}


def job(name: str, *tasks: dict[str, Any], **more: Any) -> dict[str, Any]:
    own = {"name": name, "project": "p", "priority": 50, "preemptible": True, "age_minutes": 1}
    return {**own, "tasks": list(tasks) or [task(f"{name}-0")], **more}


def scenario(*jobs: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {
        "id": "one",
        "mode": "single_action",
        "actions": ["allocate"],
        "nodes": [node("n0")],
        "queues": [queue("d", None), queue("p")],
        "jobs": list(jobs),
        "expected": {},
        **fields,
    }


def checked(*jobs: dict[str, Any], **fields: Any) -> Verdict:
    return check(scenario(*jobs, **fields), FORMATS)


def expect(**jobs: str | tuple[str, str]) -> dict[str, Any]:
    """Return expected jobs: a status, or a status and a node."""
    return {
        "jobs": {
            name: {"status": stated}
            if isinstance(stated, str)
            else dict(zip(("status", "node"), stated, strict=True))
            for name, stated in jobs.items()
        }
    }


@pytest.fixture
def cells(monkeypatch: pytest.MonkeyPatch) -> list[Cell]:
    """The cells that ran the scenarios."""
    made: list[Cell] = []

    class RecordedCell(Cell):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            made.append(self)

    monkeypatch.setattr(kai_cluster, "Cell", RecordedCell)
    return made


# Terms


def of(cls: type[Any], fields: dict[str, Any]) -> Any:
    return parsed(cls, {"id": "one", **fields})


def test_a_million_bytes_become_a_mebibyte_unless_an_amount_has_a_smaller_part() -> None:
    nodes = [of(Node, node("n0"))]
    units = units_of(nodes, [of(Task, task("t"))])
    assert resources_of(of(Task, task("t")), units).memory_mib == 1000
    assert quota_of(of(Queue, queue("p", deserved_mem_mb=1500)), units).deserved_memory_mib == 1500
    small = of(Task, task("t", mem_bytes=1500))
    units = units_of(nodes, [small])
    assert resources_of(small, units).memory_mib == 1500
    assert (
        quota_of(of(Queue, queue("p", deserved_mem_mb=2)), units).deserved_memory_mib == 2_000_000
    )


@pytest.mark.parametrize(
    ("request_", "gpus", "gpu_milli"),
    [
        ({"gpus": 2}, 2, 1000),
        ({"gpus": 0}, 0, 0),
        ({"gpu_fraction": 0.7}, 1, 700),
        ({"gpu_fraction": 0.5, "gpu_devices": 2}, 2, 500),
        ({"gpu_memory_mib": 41}, 1, 0),
    ],
)
def test_requests_become_slots_and_parts_of_slots(
    request_: dict[str, Any], gpus: int, gpu_milli: int
) -> None:
    units = units_of([of(Node, node("n0")), of(Node, node("cpus", 0, gpu_memory_mib=0))], [])
    found = resources_of(of(Task, task("t", **request_)), units)
    assert (found.gpus, found.gpu_milli) == (gpus, gpu_milli)


def test_gpu_memory_is_requested_as_such() -> None:
    units = units_of([of(Node, node("n0")), of(Node, node("n1", gpu_memory_mib=300))], [])
    found = resources_of(of(Task, task("t", gpu_memory_mib=100, gpu_devices=2)), units)
    assert (found.gpus, found.gpu_milli, found.gpu_memory_mib) == (2, 0, 100)


def test_gpu_memory_needs_nodes_that_say_how_much_their_gpus_have() -> None:
    nodes = [node("n0"), node("n1", gpu_memory_mib=0)]
    asks = job("j", task("j-0", gpu_memory_mib=50))
    assert checked(asks, nodes=nodes).outcome is Outcome.SKIPPED


def test_higher_priorities_become_smaller_numbers() -> None:
    jobs = [of(Job, job(str(priority), priority=priority)) for priority in (50, 125, 0, 50)]
    assert priorities_of(jobs) == {125: 1, 50: 2, 0: 3}
    with pytest.raises(Skip):
        priorities_of(of(Job, job(str(priority), priority=priority)) for priority in range(100))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("train", Kind.TRAINING),
        (None, Kind.TRAINING),
        ("build", Kind.INTERACTIVE),
        ("build-preemptible", Kind.INTERACTIVE),
        ("inference", Kind.INFERENCE),
    ],
)
def test_priority_classes_become_kinds(name: str | None, kind: Kind) -> None:
    assert kind_of(of(Job, job("j", priority_class=name))) is kind


def test_quotas_of_minus_one_are_unlimited() -> None:
    units = units_of([], [])
    unlimited = quota_of(of(Queue, queue("p", over_quota_weight=-1)), units)
    assert (unlimited.deserved_unlimited, unlimited.deserved_milli) == (True, None)
    assert (unlimited.limit_milli, unlimited.deserved_cpu_milli) == (None, None)
    assert unlimited.over_quota_weight == 0
    bounds = {"deserved_gpus": 0.5, "max_allowed_gpus": 2, "max_allowed_cpu_millis": 0}
    limited = quota_of(of(Queue, {**queue("p"), **bounds}), units)
    assert (limited.deserved_unlimited, limited.deserved_milli) == (False, 500)
    assert (limited.limit_milli, limited.limit_cpu_milli) == (2000, 0)


# The initial state


def test_queues_are_known_in_the_order_of_their_creation(cells: list[Cell]) -> None:
    queues = [
        queue("p", "below", created_seq=2),
        queue("a", "below", created_seq=1),
        queue("below", "top", kind="group", priority=7),
        queue("top", None, created_seq=3),
    ]
    assert checked(job("j", project="a"), queues=queues).why == ""
    state = cells[0].state
    assert list(state.departments) == ["department-0", "department-3"]
    below = state.departments["department-0"].config
    assert below is not None
    assert (below.parent, below.rank) == ("department-3", 0)
    assert list(state.projects) == ["project-1", "project-2"]
    assert [task.job.project.name for task in state.tasks.values()] == ["project-1"]


def test_priorities_of_queues_become_ranks_in_the_same_order(cells: list[Cell]) -> None:
    queues = [
        queue("d", None, priority=5000),
        queue("low", priority=-3),
        queue("p", priority=100),
    ]
    assert checked(job("j"), queues=queues).why == ""
    ranks = [project.config.rank for project in cells[0].state.projects.values() if project.config]
    assert ranks == [0, 1]


def test_a_project_at_the_top_is_alone_in_a_department_with_its_settings() -> None:
    # The projects share the node as two departments would.
    queues = [queue(name, None, kind="project", deserved_gpus=1) for name in ("p", "q")]
    jobs = [
        *(job(f"p{n}", task(f"p{n}-0", "running", node="n0"), age_minutes=9 - n) for n in (1, 2)),
        job("q1", project="q"),
    ]
    lost = expect(p1="running", p2="evicted", q1="nominated")
    assert checked(*jobs, queues=queues, actions=["reclaim"], expected=lost).why == ""


def test_the_older_job_and_the_node_with_the_first_name_come_first() -> None:
    nodes = [node("n1", 1), node("n0", 1)]
    young, old = job("young", age_minutes=1), job("old", age_minutes=9)
    expected = expect(old=("allocated", "n0"), young=("allocated", "n1"))
    assert checked(young, old, nodes=nodes, expected=expected).why == ""


def test_running_tasks_have_run_for_a_minute(cells: list[Cell]) -> None:
    holds = job("j", task("j-0", "running", node="n0"))
    assert checked(holds, expected=expect(j=("running", "n0"))).why == ""
    run = cells[0].task(f"{1:012d}").run
    assert run is not None
    assert cells[0].now_ms - run.running_ms == 60_000


def test_parts_of_a_gpu_are_on_the_slot_of_their_group(cells: list[Cell]) -> None:
    jobs = [
        job("whole", task("whole-0", "running", node="n0")),
        *(
            job(name, task(f"{name}-0", "running", node="n0", gpu_fraction=0.4, gpu_groups=[group]))
            for name, group in (("a", "0"), ("b", "2"), ("c", "0"), ("d", "other"))
        ),
    ]
    assert checked(*jobs, nodes=[node("n0", 4)]).why == ""
    held = [task.run.placements[0].slots for task in cells[0].state.tasks.values() if task.run]
    # By age, then name: a, b, c, d, whole.
    assert held == [(0,), (2,), (0,), (1,), (3,)]


def test_a_node_cannot_run_more_than_its_gpus() -> None:
    jobs = [job(name, task(f"{name}-0", "running", node="n0", gpus=2)) for name in "ab"]
    verdict = checked(*jobs)
    assert (verdict.outcome, verdict.why) == (
        Outcome.SKIPPED,
        "more GPUs are in use than n0 has",
    )


def test_tasks_that_have_ended_hold_nothing() -> None:
    jobs = [
        job("bad", task("bad-0", "failed", node="n0", gpus=2)),
        job("good", task("good-0", "succeeded", node="n0", gpus=2)),
        job("next", task("next-0", gpus=2)),
    ]
    expected = expect(bad="failed", good="succeeded", next=("allocated", "n0"))
    assert checked(*jobs, expected=expected).why == ""


def test_a_task_is_nominated_for_the_slots_of_a_terminating_one() -> None:
    jobs = [job("leaves", task("leaves-0", "terminating", node="n0", gpus=2)), job("waits")]
    expected = expect(leaves=("terminating", "n0"), waits=("nominated", "n0"))
    assert checked(*jobs, expected=expected).why == ""


def test_reserved_slots_of_an_earlier_cycle_are_recorded(cells: list[Cell]) -> None:
    jobs = [
        job("leaves", task("leaves-0", "terminating", node="n0", gpus=2)),
        job("waits", task("waits-0", "pipelined", node="n0")),
    ]
    assert checked(*jobs, expected=expect(waits=("nominated", "n0"))).why == ""
    reserved = cells[0].task(f"{2:012d}").reserved
    assert reserved is not None


def test_gpus_whose_holders_all_leave_are_releasing(cells: list[Cell]) -> None:
    half = {"node": "n0", "gpu_fraction": 0.5}
    jobs = [
        job("a", task("a-0", "terminating", gpu_groups=["0"], **half)),
        job("b", task("b-0", "running", gpu_groups=["0"], **half)),
        job("c", task("c-0", "terminating", gpu_groups=["1"], **half)),
    ]
    expected = {"nodes": {"n0": {"idle_gpus": 1, "releasing_gpus": 1}}}
    assert checked(*jobs, nodes=[node("n0", 3)], expected=expected).why == ""
    assert gpus_of(cells[0].state.nodes["node-0"]) == (1, 1)


# The outcome


def test_one_action_preempts_and_nominates() -> None:
    jobs = [
        job("low", task("low-0", "running", node="n0", gpus=2)),
        job("high", priority=100, preemptible=False),
    ]
    verdict = checked(*jobs, actions=["preempt"], expected=expect(low="running", high="pending"))
    assert verdict.why == (
        "low: evicted on n0 instead of running; high: nominated on n0 instead of pending"
    )


def test_without_allocate_nothing_starts() -> None:
    assert checked(job("j"), actions=["preempt"], expected=expect(j="pending")).why == ""


def test_consolidation_moves_a_task_to_another_node() -> None:
    jobs = [
        job("a", task("a-0", "running", node="n0"), age_minutes=3),
        job("b", task("b-0", "running", node="n1"), age_minutes=2),
        job("c", task("c-0", gpus=2)),
    ]
    expected = expect(a=("running", "n0"), b=("moved", "n0"), c=("nominated", "n1"))
    found = checked(
        *jobs, nodes=[node("n0"), node("n1")], actions=["consolidation"], expected=expected
    )
    assert found.why == ""


def test_in_whole_cycles_victims_leave_and_the_next_cycle_starts_the_task() -> None:
    jobs = [
        job("low", task("low-0", "running", node="n0", gpus=2)),
        job("high", task("high-0", gpus=2), priority=100, preemptible=False),
    ]
    rounds = {"until_match": 2, "after_match": 2}
    expected = expect(low="pending", high=("running", "n0"))
    fields = {"mode": "full_cycle", "actions": ["allocate", "preempt", "stalegangeviction"]}
    assert checked(*jobs, rounds=rounds, expected=expected, **fields).why == ""
    early = checked(*jobs, rounds={**rounds, "until_match": 1}, expected=expected, **fields)
    assert early.why == "after cycle 1: high: pending instead of running on n0"


@pytest.mark.parametrize(
    ("state", "keeps", "status"),
    [
        ("terminating", True, "terminating"),
        ("terminating", False, "running"),
        ("stuck_terminating", False, "stuck_terminating"),
    ],
)
def test_in_whole_cycles_terminating_tasks_are_requeued_unless_they_stay(
    state: str, keeps: bool, status: str
) -> None:
    leaves = job("j", task("j-0", state, node="n0"), keeps_terminating=keeps)
    rounds = {"until_match": 2, "after_match": 2}
    found = checked(leaves, mode="full_cycle", rounds=rounds, expected=expect(j=(status, "n0")))
    assert found.why == ""


def test_allocated_gpus_are_compared_where_they_are_stated() -> None:
    starts = {"status": "allocated", "gpus_allocated": 0.5}
    half = job("j", task("j-0", gpu_fraction=0.5))
    assert checked(half, expected={"jobs": {"j": starts}}).why == ""
    wrong = {**starts, "gpus_allocated": 1}
    verdict = checked(half, expected={"jobs": {"j": wrong}})
    assert verdict.why == "j: 0.5 GPUs allocated instead of 1"


def test_a_reason_must_be_known_where_the_scenario_asks_for_one() -> None:
    waits = {"jobs": {"j": {"status": "pending", "must_report_reason": True}}}
    too_large = job("j", task("j-0", gpus=9))
    assert checked(too_large, expected=waits).why == ""
    starts = {"jobs": {"j": {"status": "allocated", "must_report_reason": True}}}
    assert checked(job("j"), expected=starts).why == "j: no reason why it is pending"


def test_equal_tasks_of_a_gang_may_exchange_their_nodes() -> None:
    gang = job("j", task("j-0", gpus=2), task("j-1", gpus=2))
    nodes = [node("n0"), node("n1")]
    for first, second in (("n0", "n1"), ("n1", "n0")):
        tasks = {
            "j-0": {"status": "allocated", "node": first},
            "j-1": {"status": "allocated", "node": second},
        }
        assert checked(gang, nodes=nodes, expected={"tasks": tasks}).why == ""
    both = {"status": "allocated", "node": "n0"}
    verdict = checked(gang, nodes=nodes, expected={"tasks": {"j-0": both, "j-1": both}})
    assert verdict.why == (
        "j: allocated on n0, n1 instead of j-0 allocated on n0, j-1 allocated on n0"
    )


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"subgroups": {}}, "j has subgroups, which is not supported"),
        ({"min_available": 1}, "j may run with fewer tasks than it has, which is not supported"),
        ({"min_available": 3}, "j needs more tasks than it has, which is not supported"),
        ({"stale_for_s": 61}, "j is an incomplete gang, which is not supported"),
        ({"project": "q"}, "q is no queue of the scenario"),
    ],
)
def test_what_the_core_cannot_express_is_skipped(fields: dict[str, Any], why: str) -> None:
    verdict = checked(job("j", task("j-0"), task("j-1"), **fields))
    assert (verdict.outcome, verdict.why) == (Outcome.SKIPPED, why)


def test_gangs_of_unequal_tasks_are_skipped() -> None:
    for other in (task("j-1", gpus=2), task("j-1", "running", node="n0")):
        assert checked(job("j", task("j-0"), other)).outcome is Outcome.SKIPPED


def test_limits_of_pods_and_topologies_are_skipped() -> None:
    nodes = [node("n0", max_pods=1)]
    assert checked(job("j"), job("k"), nodes=nodes).outcome is Outcome.SKIPPED
    assert checked(job("j", task("j", gpu_fraction=0.5)), nodes=nodes).outcome is Outcome.SKIPPED
    # The node never has more than two pods that run, and two that terminate.
    nodes = [node("n0", max_pods=4)]
    assert checked(*(job(f"j{n}") for n in range(9)), nodes=nodes).outcome is Outcome.PASSED
    assert checked(job("j"), topologies=[{"name": "t"}]).outcome is Outcome.SKIPPED


def test_the_preemption_delay_of_waiting_jobs_becomes_that_of_the_pool() -> None:
    jobs = [
        job("low", task("low-0", "running", node="n0", gpus=2), preemption_delay_s=60),
        job("high", priority=100, age_minutes=1, preemption_delay_s=600),
    ]
    waits = expect(low="running", high="pending")
    assert checked(*jobs, actions=["preempt"], expected=waits).why == ""
    other = job("other", priority=100)
    assert checked(*jobs, other, actions=["preempt"]).outcome is Outcome.SKIPPED


def test_a_shorter_preemption_delay_is_kept_where_it_changes_no_order() -> None:
    low = job("low", task("low-0", "running", node="n0"))
    later = job("later", priority=100, age_minutes=2, preemption_delay_s=600)
    first = job("first", priority=100, age_minutes=3, preemption_delay_s=60)
    nodes = [node("n0", 1)]
    waits = expect(low="running", later="pending")
    assert checked(low, later, nodes=nodes, actions=["preempt"], expected=waits).why == ""
    stops = expect(low="evicted", first="nominated", later="pending")
    assert checked(low, later, first, nodes=nodes, actions=["preempt"], expected=stops).why == ""


# Steps of the documentation


def test_steps_submit_and_delete_jobs() -> None:
    submits = [job("a", task("a-0")), job("b", task("b-0")), job("c", task("c-0"))]
    steps: list[dict[str, Any]] = [
        {"submit": submits, "expect": {"running": ["a", "b"], "pending": ["c"], "gpus": {"p": 2}}},
        {"delete": ["a"], "expect": {"running": ["b", "c"], "pending_count": 0}},
        {
            "delete_one_of_two_on_the_full_node": True,
            "expect": {"running": ["c"], "running_count": 1, "free_gpus": 1},
        },
        {"delete_running_of": "p", "expect": {"department_gpus": {"d": 0}, "free_gpus": 2}},
    ]
    document = {
        **{"id": "one", "nodes": [node("n0")], "settle_cycles": 4, "steps": steps},
        "queues": [queue("d", None), queue("p")],
    }
    assert check(document, FORMATS).why == ""
    steps[1]["expect"] = {"running": ["a"], "running_count": 1, "gpus": {"p": 1}, "free_gpus": 1}
    assert check(document, FORMATS).why == (
        "after step 2: not running: a; 2 jobs running instead of 1; "
        "p holds 2 GPUs instead of 1; 0 GPUs free instead of 1"
    )


def test_steps_compare_pools_nodes_waits_and_stops() -> None:
    low, high = job("low"), job("high", priority=90, pools=["b", "main"], min_runtime_s=60)
    first = {"submit": [low], "expect": {}}
    second: dict[str, Any] = {"submit": [high, job("last", copies=2)], "cycles": 2, "expect": {}}
    document = {
        **{"id": "one", "settle_cycles": 3, "pools": {"main": {}, "b": {}}},
        "nodes": [node("n0", 1), node("n1", 1, pool="b")],
        "queues": [queue("d", None), queue("p", quotas={"main": {"deserved_gpus": 1}})],
        "steps": [first, second],
    }

    def differs(**stated: Any) -> str:
        second["expect"] = stated
        return check(document, FORMATS).why

    assert not differs(pools={"high": "b"}, nodes={"high": "n1"}, stops={})
    assert not differs(waits={"last-1": "insufficient_free", "high": ""}, pending_count=2)
    assert "high runs in b instead of main" in differs(pools={"high": "main"})
    assert "high runs on ['n1'], not on n0" in differs(nodes={"high": "n0"})
    assert "last-2 waits with insufficient_free" in differs(waits={"last-2": "at_limit"})
    assert "stops by {}" in differs(stops={"low": "better_priority"})
