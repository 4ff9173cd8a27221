"""Remove control characters: a user's text must not move the cursor of another user's terminal."""

import re
from typing import Final

#: Control characters except tab.
CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]")


def plain(text: str) -> str:
    """`text` without control characters, safe to print."""
    return CONTROL.sub("", text).replace("\t", " ")
