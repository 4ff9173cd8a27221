"""Placement on a real trace reproduces the published allocation.

Weng et al., "Beware of fragmentation" (USENIX ATC 2023): the allocated part of all GPUs when
130 % of them have been requested, in percent, as the mean of ten runs. `python -m bench --only
placement` simulates ten runs of each; a single run is within 0.6 of their mean.
"""

import pytest

from tests.support.openb import PUBLISHED, WITHIN, Openb


@pytest.mark.parametrize("placement", sorted(PUBLISHED))
def test_a_run_of_openb_allocates_the_published_share(placement: str) -> None:
    cell = Openb(placement, seed=1)
    cell.play(seed=1)
    assert abs(cell.allocated - PUBLISHED[placement]) < WITHIN, f"{cell.allocated:.2f} %"
