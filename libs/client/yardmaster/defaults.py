"""The defaults of `Client`: the machine's clock, and random idempotency keys."""

import secrets
import time

__all__ = ["monotonic_s", "new_key", "sleep"]

sleep = time.sleep
monotonic_s = time.monotonic


def new_key() -> str:
    """A random idempotency key, 32 hex digits."""
    return secrets.token_hex(16)
