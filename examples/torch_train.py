# ruff: noqa: TID251  (a user's program may use the machine directly)
"""Trains a small network with PyTorch on one or more replicas, and survives preemption.

All replicas agree on the step at which they stop (`StopGuard`). Rank 0 saves the network, the
optimizer and the random state; the next attempt continues at the step after it.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path
from urllib.parse import unquote, urlparse

import torch
import torch.distributed as dist
from torch import nn

import yardmaster
from yardmaster.torch import StopGuard, run_and_exit


def batch(step: int, rank: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The points of one step and rank, and whether each is inside the unit circle."""
    numbers = torch.Generator().manual_seed(step * size + rank)
    points = 3 * torch.rand(64, 2, generator=numbers) - 1.5
    return points, (points.norm(dim=1) < 1).float()


def save(path: Path, state: dict[str, object]) -> None:
    """Write a checkpoint. Because of the rename, the file is always complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    torch.save(state, part)
    part.rename(path)


def main() -> int:
    """Train until all steps are done or a stop is requested."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--every", type=int, default=50, help="steps between checkpoints")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds to wait in each step")
    parser.add_argument(
        "--out", type=Path, default=Path(tempfile.gettempdir()) / "yard-checkpoints"
    )
    args = parser.parse_args()
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    cuda = torch.cuda.is_available()
    device = torch.device("cuda" if cuda else "cpu")
    if size > 1:
        dist.init_process_group("nccl" if cuda else "gloo")

    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1)).to(device)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    step = 0
    last = yardmaster.last_checkpoint()
    if last is not None:
        state = torch.load(unquote(urlparse(last.uri).path), map_location=device)
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
        print(f"resumed from step {step}", flush=True)
    model = nn.parallel.DistributedDataParallel(net) if size > 1 else net

    # Each attempt writes into its own folder, so that an old attempt cannot overwrite a new one's.
    attempt = os.environ.get("YARD_ATTEMPT", "1")
    folder = args.out.resolve() / os.environ.get("YARD_TASK_ID", "local") / f"attempt-{attempt}"
    guard = StopGuard()
    loss = torch.tensor(0.0)
    while step < args.steps and not guard.stopping:
        points, inside = batch(step, rank, size)
        guess = model(points.to(device)).squeeze(1)
        loss = nn.functional.binary_cross_entropy_with_logits(guess, inside.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        stop = guard.should_stop(step)
        if rank == 0 and (stop or step % args.every == 0 or step == args.steps):
            path = folder / f"step-{step:06d}.pt"
            save(path, {"step": step, "net": net.state_dict(), "optimizer": optimizer.state_dict()})
            yardmaster.report_checkpoint(path, step)
        time.sleep(args.pause)
    if guard.stopping:
        print(f"stopped at step {step}, state saved", flush=True)
    else:
        yardmaster.done()
        print(f"finished after {step} steps: loss {loss.item():.6f}", flush=True)
    return 0


if __name__ == "__main__":
    # dist.destroy_process_group() can hang.
    run_and_exit(main)
