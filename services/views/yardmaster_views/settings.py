"""The views service's settings and their limits; `YARD_VIEWS_IDLE_WAIT_S` and its like."""

from typing import Annotated

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from yardmaster_projections.cached import MAX_ROWS
from yardmaster_projections.redis.settings import RedisSettings
from yardmaster_runtime.settings import SharedSettings
from yardmaster_views.follower import MAX_UNSAVED


class ViewsSettings(SharedSettings):
    """Where the views are, and how much of them a worker keeps at hand."""

    model_config = SettingsConfigDict(env_prefix="YARD_VIEWS_")

    redis: RedisSettings = RedisSettings()
    #: Without a new record, how long until the log and the store are looked at anyway.
    idle_wait_s: Annotated[float, Field(gt=0, le=600)] = 5.0
    #: How often what was used is metered: nobody waits for it, and fewer, larger rounds cost less.
    usage_interval_s: Annotated[float, Field(ge=0, le=600)] = 1.0
    #: How often what is behind is counted.
    measure_s: Annotated[float, Field(gt=0, le=600)] = 5.0
    #: Rows that a follower keeps at hand, so as not to ask the store for them.
    max_cached_rows: Annotated[int, Field(ge=1_000, le=10_000_000)] = MAX_ROWS
    #: Rows that are changed and not written; with more, steps are no longer one write.
    max_unsaved_rows: Annotated[int, Field(ge=1, le=100_000)] = MAX_UNSAVED

    @property
    def partitions(self) -> dict[int, str]:
        """The cell of each partition."""
        return dict(enumerate(self.cells)) if self.cells else {self.partition: self.cell}
