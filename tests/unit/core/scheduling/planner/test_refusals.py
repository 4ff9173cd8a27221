"""Which claims are refused, and with which code; none of them changes the state."""

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.core.scheduling.reading import running
from yardmaster_core.testing import ONE_RUN, Cell
from yardmaster_schemas.envelope import Actor, ActorKind, Envelope, Event
from yardmaster_schemas.events import admissions as adm
from yardmaster_schemas.events import node_events as nev
from yardmaster_schemas.events.requests import ProjectConfig
from yardmaster_schemas.reasons import RefusalCode
from yardmaster_schemas.sources import agent_source, next_incarnation

SECOND = next_incarnation("0" * 12)


@pytest.fixture
def cell() -> Cell:
    """Return two nodes: `job` runs on n1, attempt 2; `next` is starting on n2."""
    cell = Cell()
    cell.node("n1", gpus=1)
    cell.submit("job")
    cell.cycle()
    cell.never_starts("job")
    cell.cycle()
    cell.cycle(after_s=2)
    cell.starts("job")
    cell.node("n2", gpus=1)
    cell.submit("next")
    cell.cycle()
    assert cell.slots_of("job") == [("n1", (0,))]
    assert cell.slots_of("next") == [("n2", (0,))]
    return cell


def refused(cell: Cell, event: Any, *, source: str | None = None) -> RefusalCode:
    """Return the code with which a claim is refused; check that the state is unchanged."""
    assert cell.cycle() == [], "jobs that ended in the last cycle are removed"
    before = cell.machine.dump(cell.state)
    cell.claim(event, source=source)
    assert cell.cycle() == []
    after = cell.machine.dump(cell.state)
    assert {**after, "cycle": 0} == {**before, "cycle": 0}, "a refused claim left a trace"
    assert len(cell.refused) == 1, "the claim was believed"
    return cell.refused[0][1]


def about(cell: Cell, name: str = "job", **changes: Any) -> dict[str, Any]:
    """Return the fields that each claim about a replica has."""
    return {**cell._about(cell.task(name), 0), **changes}


def exited(cell: Cell, name: str = "job", **changes: Any) -> nev.TaskExitedV1:
    """Return a claim that a task exited."""
    return nev.TaskExitedV1(**about(cell, name, **changes), exit_code=0)


def started(cell: Cell, name: str = "job", **changes: Any) -> nev.TaskStartedV1:
    """Return a claim that a task started."""
    return nev.TaskStartedV1(**about(cell, name, **changes), run=ONE_RUN)


def test_an_event_of_another_topic_is_no_claim(cell: Cell) -> None:
    event = adm.NodeCordonedV1(node="n1")
    envelope: Envelope[Event] = Envelope(
        type=event.TYPE,
        version=event.VERSION,
        source=agent_source("n1", cell.state.nodes["n1"].incarnation),
        epoch=9,
        seq=0,
        subject="n1",
        time_ms=cell.now_ms,
        actor=Actor(kind=ActorKind.NODE, id="n1"),
        data=event,
    )
    assert cell.machine.refusal(cell.state, envelope) == "wrong_topic"


def test_a_node_makes_claims_about_itself_only(cell: Cell) -> None:
    assert refused(cell, exited(cell), source=agent_source("n2", "0" * 12)) == "not_its_author"
    assert refused(cell, exited(cell), source="scheduler/n1") == "not_its_author"


def test_a_node_makes_claims_about_replicas_placed_on_it_only(cell: Cell) -> None:
    assert refused(cell, exited(cell, node="n2")) == "not_its_author"


def test_a_record_that_was_applied_before_is_a_repeat(cell: Cell) -> None:
    event = nev.TaskProgressedV1(**about(cell), permille=1)
    cell.claim(event)
    again = cell._inputs[-1]
    cell.cycle()
    assert cell.refused == []
    cell._inputs.append(again)
    cell.cycle()
    assert [code for _, code in cell.refused] == ["repeated"]


def test_a_node_that_never_joined_is_unknown(cell: Cell) -> None:
    assert refused(cell, exited(cell, node="n9")) == "unknown_node"
    cell.cordon("n8")
    cell.cycle()
    assert refused(cell, exited(cell, node="n8")) == "unknown_node", "named, but never joined"


def test_another_incarnation_of_the_node_is_stale(cell: Cell) -> None:
    assert refused(cell, exited(cell, incarnation=SECOND)) == "stale_incarnation"
    drained = nev.NodeDrainedV1(node="n1", incarnation=SECOND)
    assert refused(cell, drained) == "stale_incarnation"


def test_claims_of_a_lost_node_are_refused(cell: Cell) -> None:
    claim = exited(cell)
    cell.cycle(silent={"n1": cell.now_ms - 60_000})
    assert refused(cell, claim) == "stale_incarnation"


def test_a_task_that_was_not_admitted_is_unknown(cell: Cell) -> None:
    assert refused(cell, exited(cell, task_id="nobody000000.0")) == "unknown_task"
    assert refused(cell, exited(cell, task_id=cell.task("job").job.id + ".7")) == "unknown_task"


def test_a_future_attempt_is_unknown_and_a_finished_one_stale(cell: Cell) -> None:
    assert refused(cell, exited(cell, attempt=3)) == "unknown_attempt"
    assert refused(cell, exited(cell, attempt=1)) == "stale_attempt"
    assert refused(cell, exited(cell, replica=1)) == "unknown_attempt"


def test_a_task_that_has_ended_is_unknown(cell: Cell) -> None:
    claim = exited(cell)
    cell.ends("job")
    cell.cycle()
    assert refused(cell, claim) == "unknown_task"


def test_a_released_replica_is_stale_while_its_gang_continues() -> None:
    cell = Cell()
    cell.node("n1")
    cell.submit("gang", replicas=2)
    running(cell, "gang")
    claim = nev.SlotsReleasedV1(**cell._about(cell.task("gang"), 0))
    cell.ends("gang", replica=0)
    cell.cycle()
    assert refused(cell, claim) == "stale_attempt"


def test_a_replica_starts_once(cell: Cell) -> None:
    assert refused(cell, started(cell)) == "repeated"


def test_a_replica_that_did_not_start_neither_exits_nor_checkpoints_nor_progresses(
    cell: Cell,
) -> None:
    assert refused(cell, exited(cell, "next")) == "contradiction"
    checkpoint = nev.CheckpointDoneV1(**about(cell, "next"), uri="s3://c", step=1)
    assert refused(cell, checkpoint) == "contradiction"
    progress = nev.TaskProgressedV1(**about(cell, "next"), permille=1)
    assert refused(cell, progress) == "contradiction"


def test_a_replica_exits_once(cell: Cell) -> None:
    cell.exits("job")
    cell.cycle()
    assert refused(cell, exited(cell)) == "contradiction"


def test_slots_are_released_after_the_exit_or_without_any_start(cell: Cell) -> None:
    early = nev.SlotsReleasedV1(**about(cell))
    assert refused(cell, early) == "contradiction"
    never = nev.SlotsReleasedV1(**about(cell), never_started=True)
    assert refused(cell, never) == "contradiction", "it did start"
    ran = nev.SlotsReleasedV1(**about(cell, "next"))
    assert refused(cell, ran) == "contradiction", "it never started"


def test_a_node_with_tasks_has_not_left(cell: Cell) -> None:
    left = nev.NodeDrainedV1(node="n1", incarnation="0" * 12)
    assert refused(cell, left) == "contradiction"


def joined(cell: Cell, name: str, **changes: Any) -> nev.NodeJoinedV1:
    """Return a claim that a node joined."""
    cell.node(name, **{"gpus": 1, **changes})
    event = cell._inputs.pop()[0]
    assert isinstance(event, nev.NodeJoinedV1)
    return event


def test_a_join_must_be_consistent(cell: Cell) -> None:
    ref = nev.ReplicaRef(task_id=cell.task("job").id, attempt=2, replica=0)
    assert refused(cell, joined(cell, "n9", running=(ref,))) == "contradiction"
    new = {"incarnation": SECOND, "running": (ref,)}
    assert refused(cell, joined(cell, "n1", **new)) == "contradiction"
    ports = {"incarnation": SECOND, "port_first": 9, "port_last": 8}
    assert refused(cell, joined(cell, "n1", **ports)) == "contradiction"


@pytest.mark.parametrize(
    "other",
    [{"gpus": 2}, {"pool": "side"}, {"node_type": "sxm"}, {"cpu_milli": 1}, {"memory_mib": 1}],
)
def test_the_same_incarnation_offers_the_same_resources(cell: Cell, other: dict[str, Any]) -> None:
    assert refused(cell, joined(cell, "n1", **other)) == "contradiction"


def test_an_old_incarnation_does_not_return(cell: Cell) -> None:
    cell.cycle(silent={"n1": cell.now_ms - 60_000})
    assert refused(cell, joined(cell, "n1")) == "stale_incarnation"
    cell.node("n1", gpus=1, incarnation=SECOND)
    cell.cycle()
    cell.claim(joined(cell, "n1"))
    cell.cycle()
    assert [code for _, code in cell.refused] == ["stale_incarnation"]


def test_a_second_agent_does_not_take_the_name_of_a_node_that_is_up() -> None:
    cell = Cell()
    cell.node("n1", gpus=1)
    cell.cycle()
    cell.node("n1", gpus=1, incarnation="5" * 12)
    cell.cycle()
    assert [code for _, code in cell.refused] == ["node_taken"]


def test_a_second_agent_takes_the_name_when_the_node_is_lost_or_has_left() -> None:
    for end in ("lost", "left"):
        cell = Cell()
        cell.node("n3", gpus=1)
        cell.cycle()
        if end == "lost":
            cell.cycle(silent={"n3": cell.now_ms - 60_000})
        else:
            cell.claim(nev.NodeDrainedV1(node="n3", incarnation=cell.state.nodes["n3"].incarnation))
            cell.cycle()
        cell.node("n3", gpus=1, incarnation="5" * 12)
        cell.cycle()
        assert cell.refused == []
        assert cell.state.nodes["n3"].incarnation == "5" * 12


def test_the_next_incarnations_of_a_ledger_replace_it_also_when_some_never_joined() -> None:
    cell = Cell()
    cell.node("n1", gpus=1)
    cell.cycle()
    third = next_incarnation(next_incarnation(SECOND))
    cell.node("n1", gpus=1, incarnation=third)
    cell.cycle()
    assert cell.state.nodes["n1"].incarnation == third
    cell.node("n1", gpus=1, incarnation=SECOND)
    cell.cycle()
    assert [code for _, code in cell.refused] == ["node_taken"], "it is older"


def test_an_agent_that_started_again_counts_from_the_beginning(cell: Cell) -> None:
    first = cell._inputs
    cell.claim(nev.TaskProgressedV1(**about(cell), permille=5))
    event, _ = first.pop()
    source = agent_source("n1", about(cell)["incarnation"])
    first.append((event, f"{source}/2/0"))
    first.append((event, f"{source}/1/999999"))
    cell.cycle()
    assert [code for _, code in cell.refused] == ["repeated"], "the old start is over"
    assert cell.state.sources[source] == (2, 0)


def test_a_new_incarnation_is_not_compared_with_the_numbers_of_the_one_before(cell: Cell) -> None:
    """The clock of the new incarnation may be behind."""
    lives = [SECOND]
    for _ in range(80):
        lives.append(next_incarnation(lives[-1]))
    for number, life in enumerate(lives):
        join = joined(cell, "n3", incarnation=life)
        cell._inputs.append((join, f"{agent_source('n3', life)}/{1000 - number}/0"))
        cell.cycle()
        assert cell.refused == []
    assert cell.state.nodes["n3"].incarnation == lives[-1]
    kept = [source for source in cell.state.sources if source.startswith("node/n3.")]
    assert len(kept) <= 2, "marks do not grow with a node's incarnations"


def test_within_an_incarnation_a_number_that_does_not_rise_is_a_repeat(cell: Cell) -> None:
    source = agent_source("n3", SECOND)
    join = joined(cell, "n3", incarnation=SECOND)
    for epoch, codes in ((7, []), (6, ["repeated"]), (8, [])):
        cell._inputs.append((join, f"{source}/{epoch}/0"))
        cell.cycle()
        assert [code for _, code in cell.refused] == codes
    assert cell.state.sources[source] == (8, 0)


def test_an_incarnation_makes_claims_about_itself_only(cell: Cell) -> None:
    assert refused(cell, exited(cell), source=agent_source("n1", SECOND)) == "not_its_author"


def saved_at(cell: Cell, uri: str) -> nev.CheckpointDoneV1:
    return nev.CheckpointDoneV1(**about(cell), uri=uri, step=1)


@pytest.mark.parametrize(
    "uri",
    [
        "s3://attacker/poison.pt",
        "s3://runs/nlp2/x",
        "s3://runs/nlp/../vision/x",
        "s3://runs/nlp/%2e%2E/vision/x",
        "s3://runs/NLP/x",
        "https://runs/nlp/x",
    ],
)
def test_a_checkpoint_outside_the_prefixes_of_its_project_is_refused(cell: Cell, uri: str) -> None:
    project = cell.task("job").job.project
    config = project.config or ProjectConfig(department=project.department.name)
    change = adm.EntitlementsChangedV1(
        level=adm.Level.PROJECT,
        name=project.name,
        revision=project.revision + 1,
        project=replace(config, checkpoint_prefixes=("s3://runs/nlp/",)),
    )
    cell.admission(change)
    assert refused(cell, saved_at(cell, uri)) is RefusalCode.CHECKPOINT_NOT_ALLOWED
    cell.claim(saved_at(cell, "s3://runs/nlp/job/1"))
    cell.cycle()
    checkpoint = cell.task("job").checkpoint
    assert checkpoint is not None
    assert checkpoint.uri == "s3://runs/nlp/job/1"


def test_without_prefixes_a_checkpoint_may_be_anywhere(cell: Cell) -> None:
    cell.claim(saved_at(cell, "s3://anywhere/x"))
    cell.cycle()
    assert cell.refused == []
