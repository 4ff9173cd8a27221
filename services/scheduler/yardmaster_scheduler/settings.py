"""Settings of the scheduler service: those of every machine, and limits of relay and watch."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from pydantic_settings import SettingsConfigDict

from yardmaster_runtime.settings import RuntimeSettings


class ShellLimits(BaseModel):
    """Limits of the relay and of the silence watch."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    #: Concurrent appends to nodes' topics.
    max_appends: Annotated[int, Field(ge=1, le=1_000)] = 32
    #: Pause before a failed append to a node's topic is retried.
    relay_pause_s: Annotated[float, Field(gt=0)] = 0.5
    #: Attempts after which a node counts as behind and the others continue without it.
    relay_tries: Annotated[int, Field(ge=1, le=1_000)] = 2
    #: Interval of the checks for silent nodes.
    silence_check_s: Annotated[float, Field(gt=0)] = 1.0
    #: Longest interval between reads of all heartbeats; a longer one is not counted as silence.
    deaf_s: Annotated[float, Field(gt=0)] = 5.0
    #: Records per read.
    max_read: Annotated[int, Field(ge=1, le=100_000)] = 1_000
    #: Longest wait without an event.
    idle_wait_s: Annotated[float, Field(gt=0)] = 5.0


class Settings(RuntimeSettings):
    """All settings of the service (`YARD_SCHEDULER_SHELL__MAX_APPENDS`, ...)."""

    model_config = SettingsConfigDict(env_prefix="YARD_SCHEDULER_")

    shell: ShellLimits = ShellLimits()
