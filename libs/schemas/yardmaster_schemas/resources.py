"""The resources of replicas, in integers."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field

from yardmaster_schemas.fields import CLOSED, MAX_SLOTS, Count


def is_share(gpu_milli: int) -> bool:
    """Whether these thousandths of each GPU are a share of it: neither none nor the whole GPU."""
    return 0 < gpu_milli < 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """The resources that one replica requests.

    `gpus` slots of `gpu_milli` each: 8 whole GPUs are (8, 1000), half a GPU is (1, 500), two halves
    on different GPUs are (2, 500), no GPU is (0, 0).
    """

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    gpus: Annotated[int, Field(ge=0, le=MAX_SLOTS)] = 0
    gpu_milli: Annotated[int, Field(ge=0, le=1000)] = 0
    cpu_milli: Count = 0
    memory_mib: Count = 0

    def __post_init__(self) -> None:
        if (self.gpus == 0) != (self.gpu_milli == 0):
            raise ValueError("gpus and gpu_milli are both zero or both positive")

    @property
    def gpu_total_milli(self) -> int:
        """GPUs of the replica, in gpu_milli."""
        return self.gpus * self.gpu_milli
