"""The garbage collector leaves a restored state alone, and still takes what is garbage."""

import gc
from collections.abc import Iterator

import pytest

from yardmaster_runtime.garbage_collection import GC_THRESHOLDS, tune_gc, tuned_gc


@pytest.fixture
def collector() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)


@pytest.mark.usefixtures("collector")
def test_current_objects_are_frozen_and_collections_are_rare() -> None:
    tune_gc()
    assert gc.get_freeze_count() > 1000
    assert gc.get_threshold() == GC_THRESHOLDS


@pytest.mark.usefixtures("collector")
def test_the_state_of_an_old_term_is_freed_at_the_next_restore() -> None:
    class Node:
        alive = 0

        def __init__(self) -> None:
            self.me = self
            Node.alive += 1

        def __del__(self) -> None:
            Node.alive -= 1

    state = Node()
    tune_gc()
    assert state.me is state
    del state
    gc.collect()
    assert Node.alive == 1, "set aside: not looked at"
    tune_gc()
    assert Node.alive == 0


def test_collections_are_rare_during_a_block() -> None:
    before = gc.get_threshold()
    with tuned_gc():
        assert gc.get_threshold() == GC_THRESHOLDS
        assert gc.get_freeze_count() > 1000
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0
