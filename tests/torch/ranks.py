"""The ranks of a test of `StopGuard`: each calls the guard in each step until it must stop.

The argument is a JSON list with the options of each rank. All ranks are forked from one process
that has imported PyTorch. A rank prints a line of JSON with its process id after its first step,
and one with the step at which the guard stopped it.
"""

import argparse
import json
import os
import sys
import time
from functools import partial
from pathlib import Path

import torch.distributed as dist
from torch.utils.data import DataLoader

from yardmaster.torch import StepsDiffer, StopGuard, run_and_exit


def options(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--alone", action="store_true", help="do not create a process group")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--first", type=int, default=1, help="first step")
    parser.add_argument("--stop-at", type=int, help="step before which the stop file appears")
    parser.add_argument("--given-group", action="store_true", help="pass the default group")
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--worker", action="store_true", help="load data in a process of its own")
    return parser.parse_args(words)


def report(**values: object) -> None:
    # One write, so that the lines of two ranks do not mix.
    os.write(1, (json.dumps({"rank": int(os.environ["RANK"]), **values}) + "\n").encode())


def run(args: argparse.Namespace) -> None:
    if not args.alone:
        dist.init_process_group("gloo")
    guard = StopGuard(every=args.every, group=dist.group.WORLD if args.given_group else None)
    batches = iter(DataLoader(range(10**6), num_workers=1)) if args.worker else None
    step = args.first
    try:
        while True:
            if step == args.stop_at:
                Path(os.environ["YARD_STOP_FILE"]).touch()
            if batches is not None:
                next(batches)
            stop = guard.should_stop(step)
            if step == args.first:
                report(pid=os.getpid())
            if stop:
                break
            time.sleep(args.pause)
            step += 1
        later = guard.should_stop(step + 1)
        report(step=step, stopping=guard.stopping, later=later)
    except StepsDiffer as error:
        report(error=str(error))


def main() -> int:
    children = []
    folder = os.environ["YARD_STOP_FILE"]
    for rank, words in enumerate(json.loads(sys.argv[1])):
        child = os.fork()
        if not child:
            os.setpgid(0, 0)
            os.environ.update(RANK=str(rank), YARD_STOP_FILE=f"{folder}-{rank}")
            args = options(words)
            run_and_exit(partial(run, args))
        children.append(child)
    return max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)


if __name__ == "__main__":
    sys.exit(main())
