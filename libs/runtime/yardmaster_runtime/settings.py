"""Settings that all services on a log share, and the limits of a machine's cycles.

Every limit has a name, a default and a metric (`telemetry/machine_metrics.py`). Environment
variables set them: `YARD_LOG`, `YARD_DATA`, `YARD_CELL`, `YARD_CYCLE__MAX_INPUTS`, ... A variable
with the service's own prefix, such as `YARD_SCHEDULER_`, overrides the one with `YARD_`.
"""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    SecretStr,
    field_validator,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from yardmaster_eventlog.kafka.settings import KafkaSettings
from yardmaster_runtime.telemetry.tracing import TraceSettings
from yardmaster_schemas.backoff import Backoff
from yardmaster_schemas.fields import Name
from yardmaster_schemas.secret import read_secret

_FROZEN = ConfigDict(frozen=True, extra="forbid")


class CycleLimits(BaseModel):
    """The size and the frequency of cycles.

    A cycle starts at once when the last one started at least `min_interval_ms` ago; under load, one
    cycle takes all inputs that arrived in between.
    """

    model_config = _FROZEN

    min_interval_ms: Annotated[int, Field(ge=0, le=60_000)] = 20
    #: Records taken from one input in a cycle; cycles of another machine are taken whole.
    max_inputs: Annotated[int, Field(ge=1, le=20_000)] = 2_000
    max_decisions: Annotated[int, Field(ge=1, le=20_000)] = 5_000
    #: Ranges of refused records in a cycle; the next cycle takes the rest.
    max_refused: Annotated[int, Field(ge=1, le=4_096)] = 512
    #: Refused records of a cycle that are copied into quarantine; the commit names all of them.
    max_quarantined: Annotated[int, Field(ge=0, le=10_000)] = 100
    #: Largest batch of a cycle's records; the topic's own limit applies too.
    max_batch_bytes: Annotated[int, Field(ge=1_024)] = 900_000
    #: Observations that wait for a cycle; more are dropped and observed again later.
    max_observations: Annotated[int, Field(ge=1, le=100_000)] = 1_000
    #: Longest wait without an event.
    idle_wait_s: Annotated[float, Field(gt=0, le=600)] = 5.0
    #: Records read ahead of the applied ones.
    read_ahead: Annotated[int, Field(ge=1, le=100_000)] = 1_000
    #: Terms lost to other candidates in a row until this candidate counts as fenced.
    max_lost_terms: Annotated[int, Field(ge=1, le=100)] = 5
    #: A clock that is further behind the log's time causes a warning.
    clock_alarm_ms: Annotated[int, Field(ge=0)] = 60_000


class SnapshotLimits(BaseModel):
    """When a snapshot is taken: after so many cycles or seconds, whichever comes first."""

    model_config = _FROZEN

    every_cycles: Annotated[int, Field(ge=1)] = 5_000
    every_s: Annotated[int, Field(ge=1)] = 300
    keep: Annotated[int, Field(ge=1, le=1_000)] = 3


class RetryLimits(BaseModel):
    """Retries of a call while the log is unavailable.

    `attempts` 0: no limit.
    """

    model_config = _FROZEN

    attempts: Annotated[int, Field(ge=0, le=1_000)] = 8
    first_pause_s: Annotated[float, Field(gt=0)] = 0.05
    longest_pause_s: Annotated[float, Field(gt=0)] = 5.0

    def backoff(self) -> Backoff:
        """Return the pauses between the attempts of one call."""
        return Backoff(self.first_pause_s, self.longest_pause_s)


class KafkaOptions(BaseModel):
    """Connections to Kafka and new topics; a secret is a value or a file."""

    model_config = _FROZEN

    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    #: PEM files: the trusted authorities, and this client's certificate and key.
    ssl_cafile: Path | None = None
    ssl_certfile: Path | None = None
    ssl_keyfile: Path | None = None
    ssl_key_password: SecretStr | None = None
    ssl_key_password_file: Path | None = None
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "SCRAM-SHA-512"
    sasl_username: str | None = None
    sasl_password: SecretStr | None = None
    sasl_password_file: Path | None = None
    replication_factor: Annotated[int, Field(ge=1, le=32)] = 1
    min_insync_replicas: Annotated[int, Field(ge=1, le=32)] = 1
    #: Afterwards an append's outcome is unknown.
    append_timeout_s: Annotated[float, Field(gt=0, le=600)] = 10.0
    #: Afterwards any other call has failed.
    call_timeout_s: Annotated[float, Field(gt=0, le=600)] = 10.0

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        """Refuse settings that would be ignored, or would fail only when used."""
        tls = self.security_protocol in ("SSL", "SASL_SSL")
        sasl = self.security_protocol in ("SASL_PLAINTEXT", "SASL_SSL")
        passwords = (self.sasl_password, self.sasl_password_file)
        if sasl and (self.sasl_username is None or passwords == (None, None)):
            raise ValueError("SASL needs sasl_username and sasl_password(_file)")
        if not sasl and (self.sasl_username is not None or passwords != (None, None)):
            raise ValueError("sasl_* is set, but security_protocol is not a SASL one")
        files = (self.ssl_cafile, self.ssl_certfile, self.ssl_keyfile)
        if not tls and files != (None, None, None):
            raise ValueError("ssl_* is set, but security_protocol is not an SSL one")
        if self.ssl_keyfile is not None and self.ssl_certfile is None:
            raise ValueError("ssl_keyfile is set without ssl_certfile")
        return self

    def settings(self, bootstrap: str, client_id: str) -> KafkaSettings:
        """Return the adapter's settings, with the secrets read.

        Raises: SecretUnreadable.
        """
        return KafkaSettings(
            bootstrap=bootstrap,
            client_id=client_id,
            security_protocol=self.security_protocol,
            ssl_cafile=_text(self.ssl_cafile),
            ssl_certfile=_text(self.ssl_certfile),
            ssl_keyfile=_text(self.ssl_keyfile),
            ssl_key_password=read_secret(
                "kafka.ssl_key_password", self.ssl_key_password, self.ssl_key_password_file
            ),
            sasl_mechanism=self.sasl_mechanism,
            sasl_username=self.sasl_username,
            sasl_password=read_secret(
                "kafka.sasl_password", self.sasl_password, self.sasl_password_file
            ),
            replication_factor=self.replication_factor,
            min_insync_replicas=self.min_insync_replicas,
            append_timeout_s=self.append_timeout_s,
            call_timeout_s=self.call_timeout_s,
        )


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


class LogSettings(BaseSettings):
    """The log, the cell, the health endpoint and the traces of a service.

    `log`: `sqlite:///path/to/file`, `kafka://host:port[,host:port]` or `memory:`; by default a file
    in `data`. A subclass sets its `env_prefix`, such as `YARD_SCHEDULER_`; a setting without a
    variable of that prefix is read from `YARD_...`, which applies to all services.
    """

    model_config = SettingsConfigDict(
        env_prefix="YARD_",
        env_nested_delimiter="__",
        frozen=True,
        extra="forbid",
        # Errors never quote values: a value may be a secret under a wrong name.
        hide_input_in_errors=True,
    )

    log: str = ""
    data: Path = Path("yardmaster-data")
    cell: Name = "main"
    #: The partition of every topic that contains the cell's records.
    partition: Annotated[int, Field(ge=0)] = 0
    kafka: KafkaOptions = KafkaOptions()
    retry: RetryLimits = RetryLimits()
    #: Address of `/livez`, `/readyz`, `/metrics`; without a port they are not served, with port 0
    #: the system chooses a port.
    health_host: str = "127.0.0.1"
    health_port: Annotated[int, Field(ge=0, le=65_535)] | None = None
    traces: TraceSettings = TraceSettings()

    @property
    def log_url(self) -> str:
        """The log's URL, or the default."""
        return self.log or f"sqlite:///{self.data / 'log.db'}"

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments first, then the service's own variables, then `YARD_...`."""
        shared = EnvSettingsSource(settings_cls, env_prefix="YARD_")
        return init_settings, env_settings, shared


class SharedSettings(LogSettings):
    """Settings of a service whose replicas divide the cells among them.

    `cells`: all cells of the log in the order of their partitions (`main,east`); empty: only
    `cell`, at `partition`.
    """

    cells: Annotated[tuple[Name, ...], NoDecode] = ()
    #: The consumer group that assigns the cells; by default one per service.
    group: Name | None = None
    #: A member of the group that is silent for longer is removed.
    session_timeout_s: Annotated[float, Field(ge=1, le=300)] = 6.0

    @field_validator("cells", mode="before")
    @classmethod
    def _split(cls, cells: object) -> object:
        if isinstance(cells, str):
            return tuple(name.strip() for name in cells.split(",") if name.strip())
        return cells


class RuntimeSettings(SharedSettings):
    """Settings of a service that runs machines.

    `snapshots`: an fsspec URL; by default a folder in `data`.
    """

    snapshots: str = ""
    cycle: CycleLimits = CycleLimits()
    snapshot: SnapshotLimits = SnapshotLimits()

    @property
    def snapshots_url(self) -> str:
        """The snapshots' URL, or the default."""
        return self.snapshots or str(self.data / "snapshots")

    #: In a result of `served`: the number of cells.
    _cells: int = PrivateAttr(default=0)

    @property
    def partitions(self) -> int:
        """Partitions of every topic: the number of cells in the log, as far as it is known."""
        return max(self._cells, len(self.cells), self.partition + 1)

    def served(self) -> tuple[Self, ...]:
        """Return these settings once for each cell."""
        if not self.cells:
            return (self,)
        served = []
        for number, cell in enumerate(self.cells):
            one = self.model_copy(update={"cell": cell, "partition": number, "cells": ()})
            one._cells = len(self.cells)
            served.append(one)
        return tuple(served)
