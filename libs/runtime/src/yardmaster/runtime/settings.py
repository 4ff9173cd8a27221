"""Settings that the services on a log share, and the limits of a machine's cycles.

Every limit has a name, a default and a metric (`metrics.py`). Environment variables set them:
`YARD_LOG`, `YARD_DATA`, `YARD_CELL`, `YARD_CYCLE__MAX_INPUTS`, ...
"""

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from yardmaster.schemas.fields import Name

_FROZEN = ConfigDict(frozen=True, extra="forbid")


class CycleLimits(BaseModel):
    """How large a cycle may be and how often one comes.

    A cycle starts at once when the last one started `min_interval_ms` ago or earlier; under load
    what arrives in between is taken together.
    """

    model_config = _FROZEN

    min_interval_ms: Annotated[int, Field(ge=0, le=60_000)] = 20
    #: Records taken from one input in a cycle; a machine's own cycles are taken whole.
    max_inputs: Annotated[int, Field(ge=1, le=20_000)] = 2_000
    max_decisions: Annotated[int, Field(ge=1, le=20_000)] = 5_000
    #: Ranges of refused records in a cycle; more of them go to the next.
    max_refused: Annotated[int, Field(ge=1, le=4_096)] = 512
    #: Refused records of a cycle that are copied into quarantine; the commit names all.
    max_quarantined: Annotated[int, Field(ge=0, le=10_000)] = 100
    #: A cycle's records are cut into batches of at most this (and of what the topic takes).
    max_batch_bytes: Annotated[int, Field(ge=1_024)] = 900_000
    #: Observations of the shell that wait for a cycle; more are dropped, to be made again.
    max_observations: Annotated[int, Field(ge=1, le=100_000)] = 1_000
    #: Without an event, how long until a look is taken anyway.
    idle_wait_s: Annotated[float, Field(gt=0, le=600)] = 5.0
    #: Records read ahead of what is applied.
    read_ahead: Annotated[int, Field(ge=1, le=100_000)] = 1_000
    #: Terms that may be lost to others in a row before a candidate steps back.
    max_lost_terms: Annotated[int, Field(ge=1, le=100)] = 5
    #: A clock this far behind the log's time is worth an alarm.
    clock_alarm_ms: Annotated[int, Field(ge=0)] = 60_000


class SnapshotLimits(BaseModel):
    """When a snapshot is taken: after so many cycles or seconds, whichever comes first."""

    model_config = _FROZEN

    every_cycles: Annotated[int, Field(ge=1)] = 5_000
    every_s: Annotated[int, Field(ge=1)] = 300
    keep: Annotated[int, Field(ge=1, le=1_000)] = 3


class RetryLimits(BaseModel):
    """How often and how fast a call is tried again while the log is unavailable."""

    model_config = _FROZEN

    attempts: Annotated[int, Field(ge=1, le=1_000)] = 8
    first_pause_s: Annotated[float, Field(gt=0)] = 0.05
    longest_pause_s: Annotated[float, Field(gt=0)] = 5.0


class RuntimeSettings(BaseSettings):
    """Where the log is, which cell is served, and the limits of a machine.

    `log`: `sqlite:///path/to/file`, `kafka://host:port[,host:port]` or `memory:`; by default a file
    in `data`. `snapshots`: an fsspec URL; by default a folder in `data`.
    """

    model_config = SettingsConfigDict(
        env_prefix="YARD_", env_nested_delimiter="__", frozen=True, extra="forbid"
    )

    log: str = ""
    data: Path = Path("yardmaster-data")
    cell: Name = "main"
    #: Number of the partition, in every topic, that holds the cell's records.
    partition: Annotated[int, Field(ge=0)] = 0
    snapshots: str = ""
    cycle: CycleLimits = CycleLimits()
    snapshot: SnapshotLimits = SnapshotLimits()
    retry: RetryLimits = RetryLimits()

    @property
    def log_url(self) -> str:
        """Where the log is, the default filled in."""
        return self.log or f"sqlite:///{self.data / 'log.db'}"

    @property
    def snapshots_url(self) -> str:
        """Where snapshots are, the default filled in."""
        return self.snapshots or str(self.data / "snapshots")


class ServiceSettings(RuntimeSettings):
    """Settings of one service: a subclass names its `env_prefix`, such as `YARD_SCHEDULER_`.

    What is not set under that prefix is what `YARD_...` says for all services.
    """

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """What the caller gives, then the service's environment, then everybody's."""
        shared = EnvSettingsSource(settings_cls, env_prefix="YARD_")
        return init_settings, env_settings, shared
