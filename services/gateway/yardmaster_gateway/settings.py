"""How a gateway is set up (`YARD_GATEWAY_*`, then `YARD_*`, in its environment); limits by name."""

from pathlib import Path
from typing import Annotated

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from yardmaster_projections.redis.settings import RedisSettings
from yardmaster_runtime.settings import LogSettings
from yardmaster_schemas.fields import Name

Positive = Annotated[float, Field(gt=0)]


class GatewaySettings(LogSettings):
    """One gateway's settings."""

    model_config = SettingsConfigDict(env_prefix="YARD_GATEWAY_")

    redis: RedisSettings = RedisSettings()
    #: Part of the source of what it records; no two gateways that run at once may share it. None,
    #: in a process of its own: the host's name and the port.
    instance: Name | None = None
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65_535)] = 7450
    token_file: Path | None = None

    #: Requests a caller may make at once, and how many more each second.
    rate_burst: Annotated[int, Field(ge=1)] = 2_000
    rate_per_s: Positive = 500.0
    #: Callers whose rates are kept; the one that was quiet longest is forgotten.
    rate_callers: Annotated[int, Field(ge=1)] = 10_000
    #: Larger bodies are refused.
    max_body_bytes: Annotated[int, Field(ge=1024)] = 1024 * 1024
    #: How long a read waits for its min_position.
    view_wait_s: Positive = 5.0
    #: The longest that `timeout_s` and `wait_s` may ask for.
    max_wait_s: Positive = 60.0
    #: Streams (watches, followed output) that may be open, and how long one lasts before it is
    #: closed for its client to resume.
    max_streams: Annotated[int, Field(ge=1)] = 1_000
    stream_s: Positive = 3_600.0
    #: A stream that is quiet so long says so, and has its caller checked again.
    bookmark_s: Positive = 15.0
    #: How often a `details` partition in which nothing happens is written to, so that what was
    #: erased leaves the disk (see ticker.py); None: never, for logs that do not compact.
    details_tick_s: Positive | None = 3_600.0
    #: Requests, the newest, among which a submission finds an earlier one of its key by itself;
    #: for older ones it needs the views.
    recent_requests: Annotated[int, Field(ge=1, le=1_000_000)] = 20_000
    #: How long a gateway that is stopped finishes what it is answering.
    stop_s: Annotated[float, Field(ge=0, le=60)] = 1.0
    #: Text of one answer of `logs`; what is longer is cut there.
    max_log_bytes: Annotated[int, Field(ge=1024)] = 64 * 1024 * 1024
