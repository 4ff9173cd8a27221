"""PyTorch gangs: `StopGuard` stops all ranks at one step, and `run_and_exit` ends each process.

PyTorch comes with `yardmaster-scheduler[torch]`.

Each replica of a gang is asked to stop at its own moment, so each sees `yardmaster.should_stop()`
become true in another step. A replica that stops alone leaves the others in a collective call that
never returns, and ranks that save at different steps do not save one state. The ranks must agree.

```python
guard = StopGuard()
for step in range(first, steps + 1):
    train(step)
    if guard.should_stop(step):  # the same answer on every rank
        save(step)
        break
```
"""

import contextlib
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any, Final, NoReturn

from yardmaster.task import should_stop

try:
    import torch
    import torch.distributed as dist
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError(
        "yardmaster.torch needs PyTorch: pip install 'yardmaster-scheduler[torch]'", name="torch"
    ) from None

__all__ = ["StepsDiffer", "StopGuard", "run_and_exit"]

#: The backends that reduce tensors in the memory of the CPU.
_ON_CPU: Final = ("gloo", "mpi")


class StepsDiffer(RuntimeError):
    """The ranks called `should_stop` with different steps."""


class StopGuard:
    """Lets all ranks of a process group stop at the same step.

    Every `every` steps, one all-reduce (MAX) over three integers combines the requests to stop of
    all ranks: if one rank is asked to stop, all ranks stop at this step. Without an initialized
    process group, the guard asks `yardmaster.should_stop()` alone, at the same steps.

    All ranks must make the same calls. The first call after `init_process_group` creates a group
    with the backend gloo, so that the flag does not wait for the kernels that are queued on a GPU.

    Args:
        every: the number of steps between two checks. A stop is seen up to `every` - 1 steps later:
            these steps and the time to save must fit into the grace period.
        group: the process group to use; by default the guard creates its own. With a group whose
            backend is nccl, each check waits for the queued kernels.

    If a `DataLoader` has workers, create the guard before they start and give the job the stop
    signal USR1. The agent signals all processes of a task. The workers inherit the guard's handler
    of USR1, but SIGTERM ends them, because PyTorch replaces its handler, and their loader fails.

    Raises:
        ValueError: `every` is less than 1.
    """

    def __init__(self, *, every: int = 1, group: Any = None) -> None:
        if every < 1:
            raise ValueError(f"every: {every} is less than 1; give a number of steps")
        self._every = every
        self._group = group
        #: Whether the ranks have agreed to stop.
        self.stopping = False
        should_stop()

    def should_stop(self, step: int) -> bool:
        """Whether all ranks must save and exit at `step`. Once true, it stays true.

        Call it once in each step on every rank. `step` is the number of finished steps, which a
        resumed attempt continues.

        Raises:
            StepsDiffer: the ranks are at different steps.
        """
        if not self.stopping and step % self._every == 0:
            self.stopping = self._agreed(step, should_stop())
        return self.stopping

    def _agreed(self, step: int, stop: bool) -> bool:
        if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
            return stop
        if self._group is None:
            self._group = dist.new_group(backend="gloo")
        flags = torch.tensor([int(stop), step, -step], device=self._device())
        dist.all_reduce(flags, op=dist.ReduceOp.MAX, group=self._group)
        any_stop, last, first = flags.tolist()
        if last != -first:
            raise StepsDiffer(
                f"the ranks are at the steps {-first} to {last}; call should_stop once in each "
                "step on every rank"
            )
        return bool(any_stop)

    def _device(self) -> torch.device:
        if any(name in dist.get_backend(self._group) for name in _ON_CPU):
            return torch.device("cpu")
        return torch.device("cuda", torch.cuda.current_device())


def run_and_exit(main: Callable[[], int | None]) -> NoReturn:
    """Call `main` and end the process at once with its exit code.

    The interpreter is not finalized and process groups are not destroyed. Both can hang or abort:
    in PyTorch 2.6, the destructor of a gloo group waits for its threads while it holds the lock
    of the interpreter (GIL), and a thread that releases the last reference to a tensor waits for
    that lock. A gang that hangs keeps its GPUs until it is killed. The operating system closes the
    connections of a process that ends.

    Output is flushed. Handlers of `atexit` and the ends of other threads do not run: finish loggers
    and uploads in `main`. An uncaught exception is printed, and the exit code is 1.

    ```python
    if __name__ == "__main__":
        run_and_exit(main)
    ```
    """
    code: object = 1
    try:
        code = main()
    except SystemExit as exited:
        code = exited.code
    except BaseException:  # noqa: BLE001 printed, as at the end of any program
        traceback.print_exc()
    if isinstance(code, str):
        print(code, file=sys.stderr)
    for stream in (sys.stdout, sys.stderr):
        # If the reader of the output has ended, flushing fails; this must not change the exit code.
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code if isinstance(code, int) else 1 if code else 0)
