# ruff: noqa: TID251  (a user's program may use the machine directly)
"""Trains a small network with Lightning on one or more replicas, and survives preemption.

Submit it with `--signal USR1`: Lightning handles SIGTERM itself, in each rank at another batch.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import lightning
import torch
from lightning.pytorch.callbacks import Callback
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

import yardmaster
from yardmaster.torch import StopGuard, run_and_exit


class YardCheckpoints(Callback):
    """Saves every `every` steps and at a stop, at which it ends the program on all ranks."""

    def __init__(self, folder: Path, every: int, pause: float) -> None:
        self.folder, self.every, self.pause = folder, every, pause
        self.guard = StopGuard()

    def on_train_batch_end(self, trainer: lightning.Trainer, *_: Any) -> None:
        """Save if it is time to, and leave if all ranks must stop."""
        step = trainer.global_step
        stop = self.guard.should_stop(step)
        if stop or step % self.every == 0 or step == trainer.max_steps:
            path = self.folder / f"step-{step:06d}.ckpt"
            trainer.save_checkpoint(path)  # on all ranks; rank 0 writes
            if trainer.is_global_zero:
                yardmaster.report_checkpoint(path, step)
        if stop:
            print(f"stopped at step {step}, state saved", flush=True)
            # Not trainer.should_stop: it runs the validation first, and waits for min_steps.
            raise SystemExit(0)
        time.sleep(self.pause)


class Points(IterableDataset[tuple[torch.Tensor, torch.Tensor]]):
    """The points of each step from `first` on, and whether each is inside the unit circle."""

    def __init__(self, first: int, rank: int, size: int) -> None:
        self.first, self.rank, self.size = first, rank, size

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        step = self.first
        while True:
            numbers = torch.Generator().manual_seed(step * self.size + self.rank)
            points = 3 * torch.rand(64, 2, generator=numbers) - 1.5
            yield points, (points.norm(dim=1) < 1).float()
            step += 1


class Circle(lightning.LightningModule):
    """The network and its data."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1))
        self.loss = 0.0

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], _: int) -> torch.Tensor:
        """The loss of one batch."""
        points, inside = batch
        guess = self.net(points).squeeze(1)
        loss = nn.functional.binary_cross_entropy_with_logits(guess, inside)
        self.loss = loss.item()
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam, as in the other examples."""
        return torch.optim.Adam(self.parameters(), lr=0.01)

    def train_dataloader(self) -> Any:
        """The data from the step of the checkpoint on, which Lightning has loaded before."""
        trainer = self.trainer
        points = Points(trainer.global_step, trainer.global_rank, trainer.world_size)
        return DataLoader(points, batch_size=None)


def main() -> None:
    """Train until all steps are done or a stop is requested."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--every", type=int, default=50, help="steps between checkpoints")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds to wait in each step")
    parser.add_argument(
        "--out", type=Path, default=Path(tempfile.gettempdir()) / "yard-checkpoints"
    )
    args = parser.parse_args()
    # Each attempt writes into its own folder, so that an old attempt cannot overwrite a new one's.
    attempt = os.environ.get("YARD_ATTEMPT", "1")
    folder = args.out.resolve() / os.environ.get("YARD_TASK_ID", "local") / f"attempt-{attempt}"
    # A replica is a node of Lightning; RANK is its number.
    os.environ.setdefault("NODE_RANK", os.environ.get("RANK", "0"))
    size = int(os.environ.get("WORLD_SIZE", "1"))
    lightning.seed_everything(1)
    module = Circle()
    trainer = lightning.Trainer(
        max_steps=args.steps,
        max_epochs=-1,
        num_nodes=size,
        devices=1,
        strategy="ddp" if size > 1 else "auto",
        callbacks=[YardCheckpoints(folder, args.every, args.pause)],
        enable_checkpointing=False,
        enable_progress_bar=False,
        logger=False,
    )
    last = yardmaster.last_checkpoint()
    if last is not None:
        print(f"resumed from step {last.step}", flush=True)
    trainer.fit(module, ckpt_path=None if last is None else unquote(urlparse(last.uri).path))
    yardmaster.done()
    print(f"finished after {trainer.global_step} steps: loss {module.loss:.6f}", flush=True)


if __name__ == "__main__":
    run_and_exit(main)
