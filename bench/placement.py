"""Fill the nodes of a real trace with each placement: measure allocation and speed.

The figures are in docs/reference/policies.md, section fgd.
"""

from functools import partial
from statistics import fmean

from bench.timing import Row, collector_off, timed
from tests.support.openb import PUBLISHED, Openb


def openb(placement: str, *, seeds: int) -> list[Row]:
    """The allocated share after requests of 130 %, and the whole time per pod."""
    found: list[float] = []
    walls, cpus, pods = 0.0, 0.0, 0
    for seed in range(seeds):
        cell = Openb(placement, seed)
        with collector_off():
            took = timed(partial(cell.play, seed))
        found.append(cell.allocated)
        walls += took.wall_s
        cpus += took.cpu_s
        pods += cell.jobs
    label = f"openb, {placement}"
    runs = f"{label}: {fmean(found):.2f}, {min(found):.2f} to {max(found):.2f}"
    return [
        Row(runs, fmean(found), "% of GPUs", peer=PUBLISHED.get(placement)),
        Row(f"{label}, a pod", walls / pods * 1e6, "us", cpu=cpus / pods * 1e6),
    ]
