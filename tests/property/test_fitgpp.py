"""FitGpp preempts the tasks that the paper's formulas select (`support/fitgpp_by_paper.py`)."""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.fitgpp_by_paper import Amounts, Running, eligible, scores
from yardmaster_core.scheduling.state.tasks import Task
from yardmaster_core.testing import Cell
from yardmaster_schemas.events.decisions import PreemptionRequestedV1, SlotsAllocatedV1
from yardmaster_schemas.resources import Resources

#: Scores are integers in millionths; closer than this, two scores may be ordered differently.
NEAR = 1e-4


def _resources(chance: Random, most: int) -> Resources:
    gpus = chance.choice([0, 1, 1, 2, 3, most])
    return Resources(
        gpus=gpus,
        gpu_milli=1000 if gpus else 0,
        cpu_milli=chance.randint(1, 20) * 1000,
        memory_mib=chance.randint(1, 100) * 1024,
    )


def _amounts(asked: Resources) -> Amounts:
    return asked.cpu_milli, asked.memory_mib, asked.gpus


def _running(tasks: list[Task]) -> list[Running]:
    return [
        Running(
            name=task.id,
            node=task.run.placements[0].node,
            demand=_amounts(task.job.spec.resources),
            grace=task.job.spec.grace_s,
            stopped=task.preemptions,
        )
        for task in tasks
        if task.run is not None
    ]


@settings(max_examples=150)
@given(
    seed=st.integers(0, 2**32),
    s_milli=st.sampled_from([0, 500, 4000]),
    p=st.sampled_from([1, 2, None]),
)
def test_the_victims_are_those_of_the_paper(seed: int, s_milli: int, p: int | None) -> None:
    chance = Random(seed)
    cell = Cell(policy="fitgpp", s_milli=s_milli, p=p, placement=chance.choice(PLACEMENTS))
    offers = {}
    for number in range(chance.randint(1, 4)):
        cpu, memory, gpus = chance.choice([(32, 256, 8), (32, 256, 8), (16, 128, 4)])
        offers[f"n{number}"] = cpu * 1000, memory * 1024, gpus
        cell.node(f"n{number}", gpus=gpus, cpu_milli=cpu * 1000, memory_mib=memory * 1024)
    for number in range(chance.randint(3, 25)):
        asked = _resources(chance, 8)
        cell.submit(f"b{number:02}x", resources=asked, grace_s=chance.randint(0, 600))
    cell.run_until_idle()
    for task in cell.state.tasks.values():
        task.preemptions = chance.choice([0, 0, 1, 2])
    asked = _resources(chance, 8)
    before = [task for task in cell.state.tasks.values() if task.run is not None]
    free = {
        name: _left(offer, [t for t in before if t.run and t.run.placements[0].node == name])
        for name, offer in offers.items()
    }
    running = _running(before)
    cell.submit("tex", resources=asked, preemptible=False)
    decided = cell.cycle()
    demand = _amounts(asked)
    stopped = [e.task_id for e in decided if isinstance(e, PreemptionRequestedV1)]
    if any(all(d <= f for d, f in zip(demand, left, strict=True)) for left in free.values()):
        assert not stopped
        assert any(isinstance(e, SlotsAllocatedV1) for e in decided)
        return
    able = eligible(demand, running, free, float("inf") if p is None else p)
    if able:
        most = [max(offer[i] for offer in offers.values()) for i in range(3)]
        by_name = scores(running, (most[0], most[1], most[2]), s_milli / 1000)
        assert len(stopped) == 1
        assert stopped[0] in able
        assert by_name[stopped[0]] <= min(by_name[name] for name in able) + NEAR
        return
    # No single victim suffices: random victims on one node that suffice together, or no victims.
    for name in offers:
        together = [t for t in before if t.run and t.run.placements[0].node == name]
        could = all(
            d <= f + sum(_amounts(t.job.spec.resources)[i] for t in together)
            for i, (d, f) in enumerate(zip(demand, free[name], strict=True))
        )
        if could:
            assert stopped
            break
    else:
        assert not stopped


#: The policy does not decide which nodes are allocated.
PLACEMENTS = ("best_fit", "worst_fit")


def _left(offer: Amounts, tasks: list[Task]) -> Amounts:
    held = [_amounts(task.job.spec.resources) for task in tasks]
    cpu, memory, gpus = (left - sum(amounts[i] for amounts in held) for i, left in enumerate(offer))
    return cpu, memory, gpus
