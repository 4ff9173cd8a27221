"""Reads what agents have kept: the indexes and the files of the store of artifacts."""

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from yardmaster_gateway.errors import ArtifactStoreUnavailable
from yardmaster_packages.artifact_store import ArtifactIndex, ArtifactPlace, ArtifactStore
from yardmaster_packages.errors import ArtifactDamaged, ArtifactsUnavailable
from yardmaster_runtime.telemetry.port import Telemetry

#: Indexes that a gateway remembers: the files of a replica are usually read one after the other.
MAX_INDEXES: Final = 4


class ArtifactReader:
    """Reads the store of artifacts, and remembers the indexes that were read last."""

    def __init__(self, store: ArtifactStore, telemetry: Telemetry) -> None:
        self.store = store
        self._indexes: OrderedDict[ArtifactPlace, ArtifactIndex] = OrderedDict()
        self._read = telemetry.counter(
            "artifact_indexes", "Indexes of artifacts, by where they were found", "source"
        )

    async def index(self, place: ArtifactPlace) -> ArtifactIndex | None:
        """Return what is kept of a replica; None if nothing is.

        Raises:
            ArtifactDamaged, ArtifactsUnavailable.
        """
        known = self._indexes.pop(place, None)
        self._read.labels("store" if known is None else "memory").inc()
        found = await self.store.index(place) if known is None else known
        if found is not None:
            self._indexes[place] = found
            if len(self._indexes) > MAX_INDEXES:
                self._indexes.popitem(last=False)
        return found


@contextmanager
def store_errors(telemetry: Telemetry) -> Iterator[None]:
    """Log errors of the store, and raise the error for the caller instead.

    Raises: ArtifactStoreUnavailable.
    """
    try:
        yield
    except (ArtifactDamaged, ArtifactsUnavailable) as error:
        # The URL of the store and the cause are for the operator, not for the caller.
        telemetry.warn("artifacts_unavailable", code=error.code, found=str(error)[:500])
        raise ArtifactStoreUnavailable from error
