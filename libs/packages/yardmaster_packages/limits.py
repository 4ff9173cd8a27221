"""The limits of packages, which writer, store and reader all check, and those of artifacts."""

from dataclasses import dataclass
from typing import Final

MIB: Final = 1024 * 1024
#: Bytes of the tar for an entry in addition to its content: its header, the padding of its
#: content, and an extended header for a long path.
_ENTRY_BYTES: Final = 3 * 1024
#: The unit of a tar's length; its end is padded with zeros.
_RECORD_BYTES: Final = 10 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageLimits:
    """The largest package that is written, stored and unpacked."""

    #: Bytes of the compressed archive.
    packed_bytes: int = 100 * MIB
    #: Bytes of all files together.
    unpacked_bytes: int = 1024 * MIB
    #: Files, folders and symbolic links.
    files: int = 100_000

    @property
    def tar_bytes(self) -> int:
        """The bytes of the uncompressed archive."""
        return self.unpacked_bytes + self.files * _ENTRY_BYTES + 2 * _RECORD_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactLimits:
    """The most that is kept of one replica in one attempt."""

    #: Bytes of all files together.
    total_bytes: int = 1024 * MIB
    files: int = 10_000
    #: Files and folders that are looked at.
    scanned: int = 1_000_000
