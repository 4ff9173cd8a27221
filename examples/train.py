# ruff: noqa: TID251  (a user's program may use the machine directly)
"""Trains a tiny network and survives preemption: an example of a training job.

It writes checkpoints by rename, reports each, calls `should_stop()` in every step, and starts from
the last checkpoint of any earlier attempt. Rate and seed come from the job's search point.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import tiny

import yardmaster


def main() -> int:
    """Train until all steps are done or a stop is requested."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rate", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--every", type=int, default=10, help="steps between checkpoints")
    parser.add_argument(
        "--pause", type=float, default=0.1, help="minimum duration of a step in seconds"
    )
    parser.add_argument(
        "--out", type=Path, default=Path(tempfile.gettempdir()) / "yard-checkpoints"
    )
    args = parser.parse_args()
    point = json.loads(os.environ.get("YARD_PARAMS") or "{}")
    rate, seed = float(point.get("rate", args.rate)), int(point.get("seed", args.seed))

    # Each attempt writes into its own folder, so that an old attempt cannot overwrite a new one's.
    attempt = os.environ.get("YARD_ATTEMPT", "1")
    folder = args.out.resolve() / os.environ.get("YARD_TASK_ID", "local") / f"attempt-{attempt}"
    points = tiny.moons(60, seed)

    last = yardmaster.last_checkpoint()
    if last is None:
        net, step = tiny.Net.fresh(8, seed), 0
        print(f"started: rate {rate}, seed {seed}, {args.steps} steps", flush=True)
    else:
        net, step = tiny.load(last.uri)
        print(f"resumed from step {step} (attempt {attempt})", flush=True)

    while step < args.steps:
        loss, slopes = net.gradient(points)
        net.step(slopes, rate)
        step += 1
        if step % 5 == 0:
            print(f"step {step} loss {loss:.4f}", flush=True)
        stop = yardmaster.should_stop()
        if stop or step % args.every == 0 or step == args.steps:
            yardmaster.report_checkpoint(tiny.save(net, step, folder), step)
        if stop:
            print(f"stopped at step {step}, state saved", flush=True)
            return 0
        time.sleep(args.pause)
    yardmaster.done()
    print(f"finished after {step} steps: loss {net.gradient(points)[0]:.4f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
