"""The user that a job names for its replicas."""

from dataclasses import dataclass
from typing import ClassVar

from pydantic import ConfigDict

from yardmaster_schemas.construct import writes_slots
from yardmaster_schemas.fields import CLOSED, RunAsId


@writes_slots
@dataclass(frozen=True, slots=True, kw_only=True)
class RunAs:
    """A user and its group, by number: a name may be another account on another node."""

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    uid: RunAsId
    gid: RunAsId

    def __str__(self) -> str:
        return f"{self.uid}:{self.gid}"
