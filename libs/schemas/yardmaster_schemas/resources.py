"""The resources of replicas, in integers."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Final

from pydantic import ConfigDict, Field

from yardmaster_schemas.fields import CLOSED, MAX_SLOTS, Count

#: gpu_milli of a fraction that is larger than the GPU.
TOO_LARGE: Final = 1001


def fraction_of(gpu_memory_mib: int, of_mib: int) -> int:
    """Return the gpu_milli that this much memory takes of a GPU that has `of_mib`.

    The result is rounded up to whole hundredths of the GPU, so that fractions that fit on a GPU
    together request no more memory than it has. Returns `TOO_LARGE` if the GPU has less memory, or
    if its memory is unknown (0).
    """
    if gpu_memory_mib > of_mib:
        return TOO_LARGE
    return -(-100 * gpu_memory_mib // of_mib) * 10


def is_fraction(gpu_milli: int) -> bool:
    """Whether these thousandths of each GPU are a fraction of it: neither none nor all of it."""
    return 0 < gpu_milli < 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """The resources that one replica requests.

    `gpus` slots of `gpu_milli` each: 8 whole GPUs are (8, 1000), half a GPU is (1, 500), two halves
    on different GPUs are (2, 500), no GPU is (0, 0). With `gpu_memory_mib` above 0 the request is
    this amount of memory of each slot, and `gpu_milli` is 0: it depends on the GPU.
    """

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    gpus: Annotated[int, Field(ge=0, le=MAX_SLOTS)] = 0
    gpu_milli: Annotated[int, Field(ge=0, le=1000)] = 0
    cpu_milli: Count = 0
    memory_mib: Count = 0
    gpu_memory_mib: Count = 0

    def __post_init__(self) -> None:
        if self.gpu_memory_mib and self.gpu_milli:
            raise ValueError("gpu_milli must be 0 with gpu_memory_mib")
        if (self.gpus == 0) != (self.gpu_milli == self.gpu_memory_mib == 0):
            raise ValueError("gpus and gpu_milli are both zero or both positive")

    @property
    def gpu_total_milli(self) -> int:
        """GPUs of the replica, in gpu_milli; 0 for a request by memory."""
        return self.gpus * self.gpu_milli
