"""Remove control characters from text that another user's terminal shows.

A user's text must not move the cursor, and must not change the order in which a terminal shows the
characters around it ("Trojan Source", CVE-2021-42574). Marks that only give a direction to the
characters next to them stay, because texts in Arabic and Hebrew need them.
"""

import re
from typing import Final

#: Control characters except tab; separators of lines and paragraphs (U+2028, U+2029); embeddings,
#: overrides and isolates of the bidirectional algorithm (U+202A to U+202E, U+2066 to U+2069).
CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def plain(text: str) -> str:
    """`text` without control characters, safe to print."""
    return CONTROL.sub("", text).replace("\t", " ")
