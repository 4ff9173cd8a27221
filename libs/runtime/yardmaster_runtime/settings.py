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
from yardmaster_eventlog.snapshots import DEADLINE_S
from yardmaster_packages.limits import PackageLimits
from yardmaster_runtime.telemetry.level import LogLevel
from yardmaster_runtime.telemetry.tracing import TraceSettings
from yardmaster_schemas.access import AGENT_BYTE_RATE
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

    #: The shortest time between the starts of two cycles.
    min_interval_ms: Annotated[int, Field(ge=0, le=60_000)] = 20
    #: Records that a cycle reads from one input; whole cycles of another state machine count as
    #: they are.
    max_inputs: Annotated[int, Field(ge=1, le=20_000)] = 2_000
    #: Decisions of one cycle; a cycle with more is cut and continues in the next.
    max_decisions: Annotated[int, Field(ge=1, le=20_000)] = 5_000
    #: Ranges of refused records in a cycle; further ones are left to the next cycle.
    max_refused: Annotated[int, Field(ge=1, le=4_096)] = 512
    #: Refused records of a cycle that are copied into quarantine; the commit names all of them.
    max_quarantined: Annotated[int, Field(ge=0, le=10_000)] = 100
    #: The largest batch of a cycle's records, within the limit of the topic; larger cycles are cut.
    max_batch_bytes: Annotated[int, Field(ge=1_024)] = 900_000
    #: Observations of the shell that wait for a cycle; further ones are dropped and observed again
    #: later.
    max_observations: Annotated[int, Field(ge=1, le=100_000)] = 1_000
    #: The longest time without a new record until the state machine checks its inputs again.
    idle_wait_s: Annotated[float, Field(gt=0, le=600)] = 5.0
    #: Records that are read before they are applied.
    read_ahead: Annotated[int, Field(ge=1, le=100_000)] = 1_000
    #: Terms lost to other candidates in a row until this candidate counts as fenced.
    max_lost_terms: Annotated[int, Field(ge=1, le=100)] = 5
    #: A clock that is this far behind the time of the log is reported.
    clock_alarm_ms: Annotated[int, Field(ge=0)] = 60_000


class SnapshotLimits(BaseModel):
    """When a snapshot is taken: after a number of cycles or seconds, whichever comes first."""

    model_config = _FROZEN

    #: Cycles after which a snapshot is written, if that comes before `every_s`.
    every_cycles: Annotated[int, Field(ge=1)] = 5_000
    #: Seconds after which a snapshot is written, if that comes before `every_cycles`.
    every_s: Annotated[int, Field(ge=1)] = 300
    #: Seconds after which a call of the snapshot store counts as unanswered, and the store as
    #: unavailable.
    deadline_s: Annotated[float, Field(gt=0)] = DEADLINE_S
    #: Snapshots that are kept.
    keep: Annotated[int, Field(ge=1, le=1_000)] = 3


class RetryLimits(BaseModel):
    """Retries of a call while the log is unavailable.

    `attempts` 0: no limit.
    """

    model_config = _FROZEN

    #: Attempts of a call while the log is unavailable; 0: no limit.
    attempts: Annotated[int, Field(ge=0, le=1_000)] = 8
    #: Pause before the first retry; each further pause is twice as long.
    first_pause_s: Annotated[float, Field(gt=0)] = 0.05
    #: The longest pause between two attempts.
    longest_pause_s: Annotated[float, Field(gt=0)] = 5.0

    def backoff(self) -> Backoff:
        """Return the pauses between the attempts of one call."""
        return Backoff(self.first_pause_s, self.longest_pause_s)


class KafkaOptions(BaseModel):
    """Connections to Kafka and new topics; a secret is a value or a file."""

    model_config = _FROZEN

    #: How to connect to the brokers.
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    #: PEM file of the certificate authorities to trust.
    ssl_cafile: Path | None = None
    #: PEM file of the certificate of this client.
    ssl_certfile: Path | None = None
    #: PEM file of the private key of this client.
    ssl_keyfile: Path | None = None
    #: Password of the private key.
    ssl_key_password: SecretStr | None = None
    #: File that contains the password of the private key.
    ssl_key_password_file: Path | None = None
    #: How this client proves its password.
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "SCRAM-SHA-512"
    #: User name of this client.
    sasl_username: str | None = None
    #: Password of this client.
    sasl_password: SecretStr | None = None
    #: File that contains the password of this client.
    sasl_password_file: Path | None = None
    #: Replicas of topics that are created.
    replication_factor: Annotated[int, Field(ge=1, le=32)] = 1
    #: In-sync replicas that a write to a created topic needs.
    min_insync_replicas: Annotated[int, Field(ge=1, le=32)] = 1
    #: Bytes per second that each agent may write to a broker; `yard setup` sets it for the users
    #: `agent-NODE` that it creates.
    agent_byte_rate: Annotated[int, Field(ge=65_536, le=2**40)] = AGENT_BYTE_RATE
    #: After this time without an acknowledgement, the outcome of an append is unknown.
    append_timeout_s: Annotated[float, Field(gt=0, le=600)] = 10.0
    #: After this time, any other call has failed.
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
    """The log, the cell, the health endpoint, the log lines and the traces of a service.

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

    #: Where the log is: `sqlite:///path/to/file`, `kafka://host:port[,host:port]` or `memory:`.
    #: Default: a file in the data directory.
    log: str = ""
    #: The data directory.
    data: Path = Path("yardmaster-data")
    #: The cell that the process serves.
    cell: Name = "main"
    #: Number of the partition of each topic that contains the cell's records.
    partition: Annotated[int, Field(ge=0)] = 0
    kafka: KafkaOptions = KafkaOptions()
    retry: RetryLimits = RetryLimits()
    #: Address at which `/livez`, `/readyz` and `/metrics` are served.
    health_host: str = "127.0.0.1"
    #: Port at which they are served. 0: the system chooses one. Without it they are not served.
    health_port: Annotated[int, Field(ge=0, le=65_535)] | None = None
    #: The lowest level of the log lines that are written.
    log_level: LogLevel = "info"
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


class SnapshotSettings(LogSettings):
    """Settings of a service that uses snapshots.

    `snapshots`: an fsspec URL; by default in `data`.
    """

    #: Where snapshots are stored: an fsspec URL. A gateway only reads them. Default: in the data
    #: directory.
    snapshots: str = ""

    @property
    def snapshots_url(self) -> str:
        """The snapshots' URL, or the default."""
        return self.snapshots or str(self.data / "snapshots")


class PackageSettings(LogSettings):
    """Settings of a service that stores or fetches code packages."""

    #: Where code packages of users are stored: an fsspec URL, the same for gateways and agents.
    #: Empty: there is no store, and jobs with a context are refused.
    packages: str = ""
    #: The largest code package, in bytes of its compressed archive.
    max_package_bytes: Annotated[int, Field(ge=1024)] = PackageLimits().packed_bytes

    @property
    def package_limits(self) -> PackageLimits:
        """The limits of a code package."""
        return PackageLimits(packed_bytes=self.max_package_bytes)


class ArtifactSettings(LogSettings):
    """Settings of a service that keeps or reads artifacts."""

    #: Where files that tasks leave are kept as artifacts: an fsspec URL, the same for gateways and
    #: agents. Empty: there is no store, and jobs with artifacts are refused.
    artifacts: str = ""


class SharedSettings(LogSettings):
    """Settings of a service whose replicas divide the cells among them.

    `cells`: all cells of the log in the order of their partitions (`main,east`); empty: only
    `cell`, at `partition`.
    """

    #: All cells of the log, in the order of their partitions: `main,east`. Without it, `cell`
    #: alone.
    cells: Annotated[tuple[Name, ...], NoDecode] = ()
    #: The consumer group that assigns the cells to replicas. Default: one group per service.
    group: Name | None = None
    #: A member of the group is considered gone after this time without a heartbeat.
    session_timeout_s: Annotated[float, Field(ge=1, le=300)] = 6.0

    @field_validator("cells", mode="before")
    @classmethod
    def _split(cls, cells: object) -> object:
        if isinstance(cells, str):
            return tuple(name.strip() for name in cells.split(",") if name.strip())
        return cells


class RuntimeSettings(SharedSettings, SnapshotSettings):
    """Settings of a service that runs state machines."""

    cycle: CycleLimits = CycleLimits()
    snapshot: SnapshotLimits = SnapshotLimits()

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
