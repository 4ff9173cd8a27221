"""One rank of a test of `StopGuard`: calls the guard in each step until it must stop.

Prints a line `begun` after its first step, then as JSON the step at which the guard stopped it.
"""

import argparse
import json
import os
import time
from pathlib import Path

import torch.distributed as dist

from yardmaster.torch import StepsDiffer, StopGuard


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--alone", action="store_true", help="do not create a process group")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--first", type=int, default=1, help="first step")
    parser.add_argument("--stop-at", type=int, help="step before which the stop file appears")
    parser.add_argument("--given-group", action="store_true", help="pass the default group")
    parser.add_argument("--pause", type=float, default=0.0)
    args = parser.parse_args()
    if not args.alone:
        dist.init_process_group("gloo")
    guard = StopGuard(every=args.every, group=dist.group.WORLD if args.given_group else None)
    step = args.first
    try:
        while True:
            if step == args.stop_at:
                Path(os.environ["YARD_STOP_FILE"]).touch()
            stop = guard.should_stop(step)
            if step == args.first:
                print("begun", flush=True)
            if stop:
                break
            time.sleep(args.pause)
            step += 1
        found: dict[str, object] = {"step": step, "stopping": guard.stopping}
        found["later"] = guard.should_stop(step + 1)
    except StepsDiffer as error:
        found = {"error": str(error)}
    print(json.dumps(found), flush=True)
    # To close its connections, gloo in PyTorch 2.6 sometimes waits for a rank that has closed them.
    os._exit(0)


if __name__ == "__main__":
    main()
