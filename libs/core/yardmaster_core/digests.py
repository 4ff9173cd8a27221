"""State digests as sums: the hash of each row, added modulo 2^256.

Addition commutes, so neither the order of changes nor their split over cycles matters, and a
changed row costs two hashes instead of a pass over all rows.
"""

from hashlib import blake2b
from typing import Final

MODULUS: Final = 1 << 256


def row_hash(text: str) -> int:
    """Return a row's summand: the BLAKE2b-256 hash of its canonical text as an integer."""
    return int.from_bytes(blake2b(text.encode(), digest_size=32).digest(), "big")
