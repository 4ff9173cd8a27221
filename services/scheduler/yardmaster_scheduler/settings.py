"""Settings of the scheduling service: those of every machine, and its shell's limits."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from pydantic_settings import SettingsConfigDict

from yardmaster_runtime.settings import RuntimeSettings


class ShellLimits(BaseModel):
    """How the shell relays decisions and listens for silence."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    #: Appends to nodes' topics under way at once.
    max_appends: Annotated[int, Field(ge=1, le=1_000)] = 32
    #: After an append to a node's topic failed, until it is tried again.
    relay_pause_s: Annotated[float, Field(gt=0)] = 0.5
    #: So many tries, then the node is behind and the others go on without it.
    relay_tries: Annotated[int, Field(ge=1, le=1_000)] = 2
    #: How often nodes are looked at for silence.
    silence_check_s: Annotated[float, Field(gt=0)] = 1.0
    #: Heartbeats should have been read to their end so lately; what goes beyond is no silence.
    deaf_s: Annotated[float, Field(gt=0)] = 5.0
    #: Records read at a time.
    max_read: Annotated[int, Field(ge=1, le=100_000)] = 1_000
    #: Without an event, how long until a look is taken anyway.
    idle_wait_s: Annotated[float, Field(gt=0)] = 5.0


class Settings(RuntimeSettings):
    """All of the service's settings: `YARD_SCHEDULER_SHELL__MAX_APPENDS` and the like."""

    model_config = SettingsConfigDict(env_prefix="YARD_SCHEDULER_")

    shell: ShellLimits = ShellLimits()
