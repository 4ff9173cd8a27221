"""The defaults of `Client`: the machine's clock and current folder, and random idempotency keys."""

import os
import secrets
import time

__all__ = ["current_folder", "monotonic_s", "new_key", "sleep"]

current_folder = os.getcwd
sleep = time.sleep
monotonic_s = time.monotonic


def new_key() -> str:
    """A random idempotency key, 32 hex digits."""
    return secrets.token_hex(16)
