"""How a gateway is set up (`YARD_GATEWAY_*` in its environment); every limit by name."""

from pathlib import Path
from typing import Annotated

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from yardmaster.schemas.fields import Name

Positive = Annotated[float, Field(gt=0)]


class GatewaySettings(BaseSettings):
    """One gateway's settings."""

    model_config = SettingsConfigDict(env_prefix="YARD_GATEWAY_", frozen=True, extra="forbid")

    cell: Name = "main"
    #: The cell's partition in every topic.
    partition: Annotated[int, Field(ge=0)] = 0
    #: Part of the source of what it records; no two gateways that run at once may share it.
    instance: Name = "gw-1"
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
    #: Text of one answer of `logs`; what is longer is cut there.
    max_log_bytes: Annotated[int, Field(ge=1024)] = 64 * 1024 * 1024
