"""The views service's settings and their limits; `YARD_VIEWS_IDLE_WAIT_S` and its like."""

from typing import Annotated

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from yardmaster_projections.cached import MAX_ROWS
from yardmaster_projections.redis.settings import RedisSettings
from yardmaster_runtime.settings import SharedSettings
from yardmaster_views.follower import MAX_UNSAVED


class ViewsSettings(SharedSettings):
    """The Redis of the views, and limits of a worker."""

    model_config = SettingsConfigDict(env_prefix="YARD_VIEWS_")

    redis: RedisSettings = RedisSettings()
    #: The longest time without a new record until log and store are checked again.
    idle_wait_s: Annotated[float, Field(gt=0, le=600)] = 5.0
    #: Interval of metering usage; fewer, larger rounds cost less.
    usage_interval_s: Annotated[float, Field(ge=0, le=600)] = 1.0
    #: Interval of measuring the lag.
    measure_s: Annotated[float, Field(gt=0, le=600)] = 5.0
    #: Rows in the cache of a follower.
    max_cached_rows: Annotated[int, Field(ge=1_000, le=10_000_000)] = MAX_ROWS
    #: The most changed rows that are collected for one write; with more, the steps are written.
    max_unsaved_rows: Annotated[int, Field(ge=1, le=100_000)] = MAX_UNSAVED

    @property
    def partitions(self) -> dict[int, str]:
        """The cell of each partition."""
        return dict(enumerate(self.cells)) if self.cells else {self.partition: self.cell}
