"""Settings of the scheduler service: those of every machine, and limits of relay and watch."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from pydantic_settings import SettingsConfigDict

from yardmaster_runtime.settings import RuntimeSettings


class ShellLimits(BaseModel):
    """Limits of the relay and of the silence watch."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    #: Appends to nodes' topics that run at the same time.
    max_appends: Annotated[int, Field(ge=1, le=1_000)] = 32
    #: Pause after a failed append to a node's topic, before the retry.
    relay_pause_s: Annotated[float, Field(gt=0)] = 0.5
    #: Failed appends after which a node counts as behind, and the relay continues without it.
    relay_tries: Annotated[int, Field(ge=1, le=1_000)] = 2
    #: Interval of the check whether nodes' topics still have all copies.
    relay_check_s: Annotated[float, Field(gt=0)] = 30.0
    #: The most records of `decisions`, from the newest copy back, that are copied again to a node's
    #: topic that lost copies. Older records need no second copy: an attempt whose start was lost
    #: ends at the pool's start timeout.
    relay_look_back: Annotated[int, Field(ge=0, le=1_000_000)] = 10_000
    #: Interval of the check for silent nodes.
    silence_check_s: Annotated[float, Field(gt=0)] = 1.0
    #: If the heartbeats were not read up to their end for longer than this, the time beyond it does
    #: not count as silence of the nodes.
    deaf_s: Annotated[float, Field(gt=0)] = 5.0
    #: Records per read.
    max_read: Annotated[int, Field(ge=1, le=100_000)] = 1_000
    #: The longest time without a new record until the relay checks the log again.
    idle_wait_s: Annotated[float, Field(gt=0)] = 5.0


class Settings(RuntimeSettings):
    """All settings of the service (`YARD_SCHEDULER_SHELL__MAX_APPENDS`, ...)."""

    model_config = SettingsConfigDict(env_prefix="YARD_SCHEDULER_")

    shell: ShellLimits = ShellLimits()
