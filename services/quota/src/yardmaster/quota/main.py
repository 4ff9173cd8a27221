"""The quota service: judges every request of a cell, with the admission machine on a log.

All it does of its own is to choose the machine and its policy check; cycles, terms, snapshots and
their limits are the runtime's.
"""

import asyncio
import sys
from typing import Final, NoReturn

from pydantic import ValidationError
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from yardmaster.core.admission.machine import QuotaMachine
from yardmaster.core.scheduling.policies import check
from yardmaster.runtime.service import Ports, open_ports, run_machine
from yardmaster.runtime.settings import RuntimeSettings
from yardmaster.schemas.errors import YardmasterError

__all__ = ["Ports", "Settings", "main", "run"]

SERVICE: Final = "quota"


class Settings(RuntimeSettings):
    """`YARD_QUOTA_CYCLE__MAX_INPUTS` and its like; what is not set so is that of all services.

    `YARD_LOG` says for all where the log is, `YARD_QUOTA_LOG` for quota alone.
    """

    model_config = SettingsConfigDict(env_prefix="YARD_QUOTA_")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """What the caller gives, then quota's environment, then everybody's."""
        shared = EnvSettingsSource(settings_cls, env_prefix="YARD_")
        return init_settings, env_settings, shared


async def run(ports: Ports, settings: RuntimeSettings) -> NoReturn:
    """Judge requests until cancelled.

    Raises:
        ForeignRecord, ChainBroken, ReplayDiverged, ImpossibleEvent, LogTruncated, LogCorrupt,
        LogClosed, UnknownTopic: the machine stops; another start would meet the same.
    """
    await run_machine(QuotaMachine(check), ports, settings)


async def serve(settings: RuntimeSettings) -> None:
    """Be the service on the log that the settings name; raises what `run` and opening it raise."""
    ports = await open_ports(settings, SERVICE)
    try:
        await run(ports, settings)
    finally:
        await ports.log.close()


def main() -> int:
    """Run the service; 0 after Ctrl-C, 2 for bad settings, 100 when it cannot go on."""
    try:
        settings = Settings()
    except ValidationError as error:
        for found in error.errors(include_url=False, include_input=False):
            name = "YARD_QUOTA_" + "__".join(str(part) for part in found["loc"]).upper()
            print(f"error: {name}: {found['msg']}", file=sys.stderr)
        return 2
    try:
        asyncio.run(serve(settings))
    except KeyboardInterrupt:
        return 0
    except YardmasterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 100
    return 0


if __name__ == "__main__":
    sys.exit(main())
