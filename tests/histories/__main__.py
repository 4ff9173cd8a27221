"""Play random histories: `python -m tests.histories --seeds 0:10000 --jobs 2`.

Plays the histories of these seeds that draw any policy (`any`), those of each policy with histories
of its own, then those of a full cluster for each policy (`full-quota`); `--policy` selects one.
Prints each seed whose history breaks a property, with the shortest history found. Exits with 1 if
there is one.
"""

import argparse
import sys
import time
from collections import Counter
from functools import partial
from multiprocessing import Pool
from typing import Final

from tests.histories.contention import FULL, FullPlayer, full_cluster
from tests.histories.inputs import OF_THEIR_OWN, Input, history
from tests.histories.properties import CheckedPlayer
from tests.histories.shortest import Broken, broken_in, shortest

#: Histories that draw any policy but those with histories of their own.
ANY: Final = "any"
#: Begins the name of the histories of a full cluster; the name of their policy follows.
ON_A_FULL_CLUSTER: Final = "full-"
KINDS: Final = (ANY, *OF_THEIR_OWN, *(ON_A_FULL_CLUSTER + policy for policy in FULL))


def main() -> int:
    """Play the histories, and print those that break a property."""
    args = _arguments()
    failed = 0
    for policy in [args.policy] if args.policy else KINDS:
        failed += _play_all(policy, args.seeds, args.jobs)
    return 1 if failed else 0


def _play_all(policy: str, seeds: range, jobs: int) -> int:
    """Play the histories of a policy; return how many break a property."""
    print(f"{policy}: seeds {seeds.start} to {seeds.stop - 1}, {jobs} processes", flush=True)
    begun_s = time.monotonic()
    properties: Counter[str] = Counter()
    with Pool(jobs) as pool:
        for seed, broken in pool.imap_unordered(partial(_play, policy), seeds, chunksize=8):
            if broken is None:
                continue
            properties[broken.where] += 1
            print(f"{policy}: seed {seed}: {broken.where}: {broken.text}", flush=True)
            if properties[broken.where] == 1:
                player = _player(policy)
                _print(shortest(_inputs(policy, seed), broken.where, player), player)
    took_s = time.monotonic() - begun_s
    failed = sum(properties.values())
    print(f"{policy}: {len(seeds)} histories in {took_s:.0f} s, {failed} break a property")
    for where, number in properties.most_common():
        print(f"{number:6} {where}", flush=True)
    return failed


def _play(policy: str, seed: int) -> tuple[int, Broken | None]:
    return seed, broken_in(_inputs(policy, seed), _player(policy))


def _player(policy: str) -> type[CheckedPlayer]:
    return FullPlayer if policy.startswith(ON_A_FULL_CLUSTER) else CheckedPlayer


def _inputs(policy: str, seed: int) -> list[Input]:
    if policy.startswith(ON_A_FULL_CLUSTER):
        return full_cluster(seed, policy.removeprefix(ON_A_FULL_CLUSTER))
    return history(seed, None if policy == ANY else policy)


def _print(inputs: list[Input], player: type[CheckedPlayer]) -> None:
    found = broken_in(inputs, player)
    print(f"  shortest history, {len(inputs)} inputs: {found.text if found else 'breaks nothing'}")
    for each in inputs:
        print(f"    {each}", flush=True)


def _seeds(text: str) -> range:
    """Parse `17` or `0:10000`."""
    first, colon, last = text.partition(":")
    return range(int(first), int(last) if colon else int(first) + 1)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.histories", description=__doc__)
    parser.add_argument(
        "--seeds", type=_seeds, default=range(10_000), help="one seed, or FIRST:END (0:10000)"
    )
    parser.add_argument(
        "--policy",
        choices=KINDS,
        help="only these histories",
    )
    parser.add_argument("--jobs", type=int, default=2, help="number of processes (2)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
