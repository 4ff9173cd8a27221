# ruff: noqa: TID251  (a task is its user's program: it may ask the machine for what it likes)
"""Trains a tiny network and survives being stopped: what a training job of Yardmaster looks like.

It saves checkpoints by rename, reports each, asks `should_stop()` every step, and starts from the
last checkpoint that any earlier attempt reported. Rate and seed come from the job's search point.
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
    """Train until done or asked to stop."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rate", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--every", type=int, default=10, help="steps between two checkpoints")
    parser.add_argument("--pause", type=float, default=0.1, help="seconds a step takes at least")
    parser.add_argument(
        "--out", type=Path, default=Path(tempfile.gettempdir()) / "yard-checkpoints"
    )
    args = parser.parse_args()
    point = json.loads(os.environ.get("YARD_PARAMS") or "{}")
    rate, seed = float(point.get("rate", args.rate)), int(point.get("seed", args.seed))

    # Each attempt writes into a folder of its own, so that a late one can spoil nothing.
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
