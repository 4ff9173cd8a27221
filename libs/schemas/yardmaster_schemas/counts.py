"""Counts in messages."""


def count_of(number: int | str, noun: str, plural: str | None = None) -> str:
    """`1 task`, `3 tasks`, `0.5 CPUs`; `plural` is the plural of a noun that does not add an s."""
    return f"{number} {noun}" if str(number) == "1" else f"{number} {plural or f'{noun}s'}"
