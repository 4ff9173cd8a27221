# ruff: noqa: TID251  (a user's program may use the machine directly)
"""Trains a small language model with the Trainer of Hugging Face, and survives preemption.

It runs on one or more replicas. The model is made here, so nothing is downloaded.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import torch
from torch.utils.data import Dataset
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
    set_seed,
)

import yardmaster
from yardmaster.torch import StopGuard, run_and_exit


class YardCheckpoints(TrainerCallback):
    """Saves and ends the training when all ranks must stop, and reports what the trainer saves."""

    def __init__(self, pause: float) -> None:
        self.pause = pause
        self.guard = StopGuard()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Save and stop at the step at which all ranks do."""
        if self.guard.should_stop(state.global_step):
            control.should_save = control.should_training_stop = True
        time.sleep(self.pause)

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Report the folder that the trainer has written."""
        if state.is_world_process_zero:
            path = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            yardmaster.report_checkpoint(path, state.global_step)


class Counting(Dataset[dict[str, torch.Tensor]]):
    """Sequences in which each token is its predecessor plus one."""

    def __len__(self) -> int:
        return 1024

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = (torch.arange(16) + index) % 32
        return {"input_ids": tokens, "labels": tokens}


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
    cuda = torch.cuda.is_available()
    set_seed(1)  # before the model is made
    config = GPT2Config(
        vocab_size=32,
        n_positions=16,
        n_embd=32,
        n_layer=1,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
    )
    callback = YardCheckpoints(args.pause)
    trainer = Trainer(
        model=GPT2LMHeadModel(config),
        args=TrainingArguments(
            output_dir=str(folder),
            max_steps=args.steps,
            save_steps=args.every,
            per_device_train_batch_size=8,
            logging_steps=args.every,
            report_to="none",
            disable_tqdm=True,
            # Without these two, replicas without a GPU train alone, or look for MPI.
            use_cpu=not cuda,
            ddp_backend="nccl" if cuda else "gloo",
        ),
        train_dataset=Counting(),
        callbacks=[callback],
    )
    last = yardmaster.last_checkpoint()
    if last is not None:
        print(f"resumed from step {last.step}", flush=True)
    trainer.train(resume_from_checkpoint=None if last is None else unquote(urlparse(last.uri).path))
    step = trainer.state.global_step
    if callback.guard.stopping:
        print(f"stopped at step {step}, state saved", flush=True)
    else:
        yardmaster.done()
        loss = trainer.state.log_history[-2]["loss"]
        print(f"finished after {step} steps: loss {loss:.6f}", flush=True)


if __name__ == "__main__":
    run_and_exit(main)
