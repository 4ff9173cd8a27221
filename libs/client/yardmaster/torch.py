"""Stop a PyTorch gang at one step: `StopGuard`. PyTorch comes with `yardmaster[torch]`.

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

from typing import Any, Final

from yardmaster.task import should_stop

try:
    import torch
    import torch.distributed as dist
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError(
        "yardmaster.torch needs PyTorch: pip install 'yardmaster[torch]'", name="torch"
    ) from None

__all__ = ["StepsDiffer", "StopGuard"]

#: Backends that reduce tensors in the memory of the machine.
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
        group: the process group to use instead of an own one; with the backend nccl, each check
            waits for the queued kernels.

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
