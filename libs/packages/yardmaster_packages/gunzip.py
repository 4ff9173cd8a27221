"""Decompression of a package that is not trusted: counted, hashed and limited while it is read."""

import hashlib
import zlib
from collections.abc import Iterator
from typing import Final

from yardmaster_packages.errors import ArchiveRefused, WrongDigest, WrongSize
from yardmaster_packages.limits import PackageLimits

#: The largest piece that is decompressed at once.
PIECE_BYTES: Final = 256 * 1024
#: The window size by which zlib expects a gzip header.
_GZIP: Final = 31


class Gunzip:
    """Decompresses one package, and compares it with its digest and its compressed size.

    Every piece is counted before it is returned, so a compression bomb ends at the limit.
    """

    def __init__(self, digest: str, packed_bytes: int, limits: PackageLimits) -> None:
        self._digest = digest
        self._expected = packed_bytes
        self._limit = limits.tar_bytes
        self._zlib = zlib.decompressobj(_GZIP)
        self._hash = hashlib.sha256()
        #: Compressed and decompressed bytes until now.
        self.packed_bytes = 0
        self.tar_bytes = 0
        if packed_bytes > limits.packed_bytes:
            found = f"it has {packed_bytes} bytes, the limit is {limits.packed_bytes}"
            raise WrongSize(digest=digest, found=found)

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the decompressed pieces of the next compressed bytes; iterate to the end.

        Raises: ArchiveRefused, WrongSize.
        """
        self.packed_bytes += len(data)
        if self.packed_bytes > self._expected:
            found = f"it has more than {self._expected} bytes"
            raise WrongSize(digest=self._digest, found=found)
        more = bool(data)
        while more:
            if self._ended():
                raise self._refused("bytes follow its end")
            try:
                piece = self._zlib.decompress(data, PIECE_BYTES)
            except zlib.error as error:
                raise self._refused("it is not gzip, or damaged") from error
            data = self._zlib.unused_data if self._ended() else self._zlib.unconsumed_tail
            # zlib may keep output that did not fit into the piece, although it has read all input.
            more = bool(data) or (len(piece) == PIECE_BYTES and not self._ended())
            self.tar_bytes += len(piece)
            if self.tar_bytes > self._limit:
                raise self._refused(f"it unpacks to more than {self._limit} bytes")
            self._hash.update(piece)
            if piece:
                yield piece

    def finish(self) -> None:
        """Check that the package is complete and has its digest.

        Raises: ArchiveRefused, WrongSize, WrongDigest.
        """
        if self.packed_bytes != self._expected:
            found = f"it has {self.packed_bytes} of {self._expected} bytes"
            raise WrongSize(digest=self._digest, found=found)
        if not self._ended():
            raise self._refused("it is truncated")
        if self._hash.hexdigest() != self._digest:
            raise WrongDigest(digest=self._digest, found=self._hash.hexdigest())

    def _ended(self) -> bool:
        return self._zlib.eof

    def _refused(self, found: str) -> ArchiveRefused:
        return ArchiveRefused(digest=self._digest, found=found)
