"""Quantities of Kubernetes (`500m`, `2Gi`, `1e3`) as exact integers."""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from yardmaster_kubernetes.errors import QuantityInvalid

#: Quantities are kept in billionths, the finest that Kubernetes stores.
NANO: Final = 1_000_000_000
#: The largest number of a quantity; Kubernetes uses it for all larger ones too.
LARGEST: Final = 2**63 - 1

_QUANTITY: Final = re.compile(
    r"(?P<sign>[+-]?)(?P<whole>\d*)(?:\.(?P<part>\d*))?"
    r"(?:(?P<suffix>n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)|[eE](?P<exponent>[+-]?\d{1,3}))?",
    re.ASCII,
)
_DECIMAL: Final[Mapping[str, int]] = {
    **{"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18},
}
_BINARY: Final[Mapping[str, int]] = {
    name: 1024**power for power, name in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)
}


@lru_cache(maxsize=4096)
def nano(text: str) -> int:
    """The quantity in billionths; a finer part is rounded up, away from 0.

    Raises:
        QuantityInvalid.
    """
    found = _QUANTITY.fullmatch(text)
    if found is None or not (found["whole"] or found["part"]):
        raise QuantityInvalid(text=text)
    part = found["part"] or ""
    number = int((found["whole"] or "0") + part)
    suffix = found["suffix"] or ""
    power = 9 - len(part) + (int(found["exponent"]) if found["exponent"] else 0)
    if suffix in _BINARY:
        number *= _BINARY[suffix]
    else:
        power += _DECIMAL[suffix]
    size: int = number * 10**power if power >= 0 else -(-number // 10**-power)
    size = min(size, LARGEST * NANO)
    return -size if found["sign"] == "-" else size


def milli(size: int) -> int:
    """Billionths in thousandths, rounded up: the scheduler counts CPUs so."""
    return min(-(-size // (NANO // 1000)), LARGEST)


def whole(size: int) -> int:
    """Billionths as a whole number, rounded up: the scheduler counts everything else so."""
    return min(-(-size // NANO), LARGEST)
