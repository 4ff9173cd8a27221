"""Our fit and the real kube-scheduler decide random pairs of a node and a pod alike."""

import httpx
import pytest

from tests.support.kubernetes.control_plane import ControlPlane
from tests.support.kubernetes.fit_pairs import compare

PAIRS = 300
pytestmark = pytest.mark.xdist_group("kubernetes")


def test_our_fit_and_the_schedulers_agree(control_plane: ControlPlane, admin: httpx.Client) -> None:
    control_plane.scheduler.start()
    tally = compare(admin, PAIRS, seed=20)
    assert tally.differing == []
    # The pairs show something only if both answers occur often.
    assert min(tally.fit, tally.misfitting) > PAIRS / 4
    assert min(tally.misfits[each] for each in ("insufficient", "taint", "node_affinity")) > 10
