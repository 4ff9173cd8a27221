"""The settings of a gateway, from the environment: `YARD_GATEWAY_*`, then `YARD_*`."""

from pathlib import Path
from typing import Annotated

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from yardmaster_projections.redis.settings import RedisSettings
from yardmaster_runtime.settings import ArtifactSettings, PackageSettings, SnapshotSettings
from yardmaster_schemas.fields import Name

Positive = Annotated[float, Field(gt=0)]


class GatewaySettings(SnapshotSettings, PackageSettings, ArtifactSettings):
    """Settings of one gateway, from the variables `YARD_GATEWAY_...`."""

    model_config = SettingsConfigDict(env_prefix="YARD_GATEWAY_")

    redis: RedisSettings = RedisSettings()
    #: Part of the source of the records that it writes. Two gateways that run at the same time must
    #: not share it. None: the service derives it from the host name and the port.
    instance: Name | None = None
    #: Address at which the gateway listens.
    host: str = "127.0.0.1"
    #: Port at which the gateway listens. 0: the system chooses one.
    port: Annotated[int, Field(ge=0, le=65_535)] = 7450
    #: JSON file with the digests of tokens, their users and roles. Users that the log has never
    #: named are recorded there when the gateway starts; of the others the log decides.
    token_file: Path | None = None

    #: After this time without reading the end of `admissions`, which names the users and their
    #: tokens, the gateway refuses every request.
    access_age_s: Positive = 60.0

    #: Requests that a caller may send at once.
    rate_burst: Annotated[int, Field(ge=1)] = 2_000
    #: Requests per second that a caller may send after a burst.
    rate_per_s: Positive = 500.0
    #: Callers whose rates are kept; the least recently active one is dropped.
    rate_callers: Annotated[int, Field(ge=1)] = 10_000
    #: Connections that are open at once. More are answered with 503 and closed. The process's limit
    #: of open files reduces it.
    max_connections: Annotated[int, Field(ge=1)] = 2_000
    #: Connections that one address may have open. Raise it behind a proxy, which has one address
    #: for all clients. None: half of all connections. At a limit, the oldest connection that has
    #: sent no whole head of a request yet is closed in favor of a new one.
    max_connections_per_address: Annotated[int, Field(ge=1)] | None = None
    #: Seconds in which the head of a request must arrive.
    head_s: Positive = 10.0
    #: Seconds in which the body of a request must arrive after its head.
    body_s: Positive = 30.0
    #: Seconds in which an uploaded package must arrive after the head of its request.
    upload_s: Positive = 600.0
    #: Packages that are uploaded at once; each needs about 4 MiB of memory.
    max_uploads: Annotated[int, Field(ge=1)] = 8
    #: How long a package is kept after the last submission of a job with it; one of a job that has
    #: not ended is always kept.
    packages_kept_s: Positive = 30 * 86_400.0
    #: The interval at which the stored packages are counted, and unused ones and the files of
    #: interrupted uploads removed.
    packages_tick_s: Positive = 3_600.0
    #: How long artifacts are kept.
    artifacts_kept_s: Positive = 30 * 86_400.0
    #: The interval at which the stored artifacts are counted, and old ones removed.
    artifacts_tick_s: Positive = 3_600.0
    #: Seconds for which `/readyz`, which needs no token, repeats the last check of log and views.
    ready_age_s: Annotated[float, Field(ge=0)] = 1.0
    #: The largest request body, in bytes.
    max_body_bytes: Annotated[int, Field(ge=1024)] = 1024 * 1024
    #: The longest time that a read waits for its min_position.
    view_wait_s: Positive = 5.0
    #: The upper bound of the parameters `timeout_s` and `wait_s`.
    max_wait_s: Positive = 60.0
    #: Open streams (watches, followed output).
    max_streams: Annotated[int, Field(ge=1)] = 1_000
    #: The lifetime of a stream. After it the gateway closes the stream, and its client resumes it.
    stream_s: Positive = 3_600.0
    #: After this time without an event, a stream sends a bookmark. After this time in any case, it
    #: authenticates its caller again.
    bookmark_s: Positive = 15.0
    #: The interval of writes to an idle `details` partition, so that Kafka removes erased details
    #: from the disk (see details_ticker.py). None: no such writes, for logs that do not compact.
    details_tick_s: Positive | None = 3_600.0
    #: The number of newest requests in which the gateway finds an earlier submission with the same
    #: idempotency key. For an older one it needs the views.
    recent_requests: Annotated[int, Field(ge=1, le=1_000_000)] = 20_000
    #: The time that a stopping gateway has to finish open requests.
    stop_s: Annotated[float, Field(ge=0, le=60)] = 1.0
    #: The largest text of one answer of `logs`, in bytes; longer output is cut.
    max_log_bytes: Annotated[int, Field(ge=1024)] = 64 * 1024 * 1024
