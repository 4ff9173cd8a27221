"""Amounts as people write them (`256Gi`, `20m`, `0.5`) and as the log stores them: integers."""

import math
import re
from typing import Final

from yardmaster_schemas.durations import DURATION_PATTERN, duration_s
from yardmaster_schemas.fields import MAX_INT, MAX_SLOTS
from yardmaster_schemas.resources import Resources

__all__ = [
    "DURATION_PATTERN",
    "MEMORY_PATTERN",
    "duration_s",
    "gpu_slots",
    "memory_mib",
    "milli",
]

MEMORY_PATTERN: Final = r"^[0-9]{1,12}(\.[0-9]{1,3})?(Ki|Mi|Gi|Ti|k|M|G|T)$"

_BYTES: Final = {
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
}


def memory_mib(text: str) -> int:
    """Return the MiB, rounded up, of `256Gi`, `512Mi`, `1.5Ti` or `64G` (10^9).

    Raises: ValueError with what to write instead.
    """
    if re.fullmatch(r"[0-9.]{1,16}", text):
        raise ValueError(f"{text} has no unit; write {text}Mi or {text}Gi")
    if re.fullmatch(MEMORY_PATTERN, text) is None:
        raise ValueError(f"{text[:32]!r} is not an amount of memory; write 512Mi, 256Gi or 1Ti")
    digits = text.rstrip("KMGTik")
    whole, _, fraction = digits.partition(".")
    thousandths = int(whole) * 1000 + int(fraction.ljust(3, "0") or 0)
    amount = thousandths * _BYTES[text[len(digits) :]]
    mib = -(-amount // (1000 * 2**20))
    if mib > MAX_INT:
        raise ValueError(f"{text[:32]!r} is too much memory")
    return mib


def milli(amount: int | float, what: str) -> int:
    """Return the thousandths of `amount`; `what` names it in the error.

    Raises: ValueError when the amount has more than three decimals, or is out of range.
    """
    if amount < 0:
        raise ValueError(f"{what}: {amount} is below 0")
    if not math.isfinite(amount) or amount * 1000 > MAX_INT:
        raise ValueError(f"{what} is out of range")
    thousandths = round(amount * 1000)
    if abs(amount * 1000 - thousandths) > 1e-6 * max(1.0, abs(amount)):
        raise ValueError(f"{what}: {amount} is not a multiple of 0.001")
    return thousandths


def gpu_slots(amount: int | float) -> Resources:
    """Return the slots of a number of GPUs: 8 is eight whole GPUs, 0.5 is half a GPU.

    Raises: ValueError for an ambiguous number such as 1.5, which can be split in several ways.
    """
    total = milli(amount, "gpus")
    if total <= 1000:
        return Resources(gpus=1 if total else 0, gpu_milli=total)
    if total % 1000:
        raise ValueError(
            f"{amount} GPUs can be split in several ways; write "
            "{count: 2, fraction: 0.75} for two times three quarters"
        )
    if total // 1000 > MAX_SLOTS:
        raise ValueError(f"{amount} GPUs are more than the {MAX_SLOTS} slots a node can have")
    return Resources(gpus=total // 1000, gpu_milli=1000)
