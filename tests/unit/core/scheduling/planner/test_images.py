"""Images: all replicas and attempts of a task run one digest."""

import pytest

from tests.unit.core.scheduling.reading import only, running
from tests.unit.core.scheduling.soundness import assert_sound
from yardmaster_core.scheduling.state.phases import Phase
from yardmaster_core.testing import Cell, fold
from yardmaster_schemas.events import decisions as dec
from yardmaster_schemas.reasons import StartFailure

ONE, TWO = f"sha256:{1:064x}", f"sha256:{2:064x}"


def gang() -> Cell:
    """A cell in which a gang of two replicas, each on its node, is starting."""
    cell = Cell()
    cell.node("n1", gpus=1)
    cell.node("n2", gpus=1)
    cell.submit("train", gpus=1, replicas=2, max_restarts=0)
    assert only(cell.cycle(), dec.SlotsAllocatedV1).image is None
    return cell


def starts(cell: Cell, *images: str | None) -> None:
    for replica, image in enumerate(images):
        cell.starts("train", replica=replica, image=image)


def test_later_attempts_are_given_the_digest_that_the_first_replica_ran() -> None:
    cell = gang()
    starts(cell, ONE, ONE)
    cell.cycle()
    cell.pause("train")
    cell.cycle()
    cell.restart()
    cell.ends("train", signal=15)
    cell.cycle()
    cell.resume("train")
    assert only(cell.cycle(), dec.SlotsAllocatedV1).image == ONE
    starts(cell, ONE, ONE)
    cell.cycle()
    assert cell.phase("train") == "running"
    cell.restart()
    assert cell.task("train").run.image == ONE  # type: ignore[union-attr]
    assert_sound(cell.state)


@pytest.mark.parametrize("images", [(ONE, TWO), (None, ONE), (ONE, None)])
def test_a_gang_that_runs_two_images_is_requeued_once_without_a_restart(
    images: tuple[str | None, str | None],
) -> None:
    cell = gang()
    starts(cell, *images)
    stop = only(cell.cycle(), dec.StopRequestedV1)
    assert (stop.stop.code, stop.stop.about) == ("image_changed", "n2")
    assert stop.grace_s == 10
    cell.restart()
    cell.ends("train", signal=15)
    decided = cell.cycle()
    requeued = only(decided, dec.TaskRequeuedV1)
    assert (requeued.code, requeued.restarts) == ("image_changed", 0)
    pinned = only([*decided, *cell.cycle()], dec.SlotsAllocatedV1)
    assert pinned.image == ONE
    starts(cell, ONE, ONE)
    cell.cycle()
    assert cell.phase("train") == "running"
    assert_sound(cell.state)


def test_the_first_image_counts_also_if_its_attempt_never_ran_whole() -> None:
    cell = gang()
    cell.starts("train", replica=0, image=ONE)
    cell.never_starts("train", replica=1, failure=StartFailure.OTHER)
    cell.cycle()
    cell.ends("train", replica=0, signal=15)
    cell.cycle()
    assert only(cell.cycle(after_s=10), dec.SlotsAllocatedV1).image == ONE


def test_a_gang_of_two_images_that_ended_at_once_did_not_succeed() -> None:
    cell = gang()
    starts(cell, ONE, TWO)
    cell.ends("train")
    assert only(cell.cycle(), dec.TaskRequeuedV1).code == "image_changed"


def test_a_node_that_runs_another_image_than_it_was_given_ends_the_task() -> None:
    cell = gang()
    starts(cell, ONE, TWO)
    cell.cycle()
    cell.ends("train", signal=15)
    cell.cycle()
    cell.run_until_idle()
    starts(cell, ONE, TWO)
    assert only(cell.cycle(), dec.StopRequestedV1).stop.code == "image_changed"
    cell.ends("train", signal=15)
    ended = only(cell.cycle(), dec.TaskEndedV1)
    assert (ended.outcome, ended.code) == ("failed", "image_changed")


def test_a_cancelled_gang_of_two_images_is_cancelled() -> None:
    cell = gang()
    starts(cell, ONE, TWO)
    cell.cancel("train")
    assert only(cell.cycle(), dec.StopRequestedV1).stop.code == "cancelled"
    cell.ends("train", signal=15)
    assert only(cell.cycle(), dec.TaskEndedV1).code == "cancelled"


def test_images_from_no_registry_are_not_compared() -> None:
    cell = gang()
    running(cell, "train")
    assert cell.task("train").phase is Phase.RUNNING
    assert cell.task("train").image is None


def test_a_replay_folds_to_the_same_images() -> None:
    cell = gang()
    starts(cell, ONE, TWO)
    cell.cycle()
    assert fold(cell.steps).digest() == cell.state.digest()
