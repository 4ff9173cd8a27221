"""The text about starts that failed because nodes could not have an image or a commit."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from yardmaster.control_characters import plain
from yardmaster_cli.output.formats import LABEL_WIDTH, Row
from yardmaster_schemas.counts import count_of

#: What ended starts because of the image or the commit, by the code of their attempts.
_CAUSES: Final[Mapping[str, str]] = {
    "image_missing": "image not found",
    "image_refused": "the registry refuses the image, or its name is not valid",
    "image_unreachable": "the registry of the image cannot be reached",
    "commit_missing": "commit or repository not found",
    "commit_refused": "the git server refuses the node, or asks for a login",
    "commit_unusable": "the files of the commit cannot be used",
}
#: How an agent's line about a replica begins that it could not start.
_SAID: Final = re.compile(r"never started: (Not started|The agent does not start \S+): ")


def last_fetch_failed(attempts: Iterable[Row]) -> bool:
    """Whether the last start failed because of the image or the commit."""
    return str(max(attempts, key=_number, default={}).get("end")) in _CAUSES


def failed_fetch_lines(
    attempts: Sequence[Row], output: Callable[[int], Iterable[tuple[int, str]]]
) -> list[str]:
    """The lines about the last start, if it failed because of the image or the commit; else none.

    Earlier starts in a row that failed alike count too. `output` returns the replica and the text
    of each last piece of an attempt's output, which has what the agents say.
    """
    nodes, words = set[str](), ""
    if not last_fetch_failed(attempts):
        return []
    newest_first = sorted(attempts, key=_number, reverse=True)
    code = str(newest_first[0]["end"])
    for attempt in newest_first:
        if attempt.get("end") != code:
            break
        names = {one["replica"]: one["node"] for one in attempt["replicas"]}
        for replica, text in output(attempt["attempt"]):
            for line in text.splitlines():
                said = _SAID.match(line)
                if said and replica in names:
                    nodes.add(names[replica])
                    words = words or line[said.end() :].removesuffix(".")
    checked = f" (checked on {count_of(len(nodes), 'node')})" if nodes else ""
    lines = ["Last start".ljust(LABEL_WIDTH) + _CAUSES[code] + checked]
    return [*lines, " " * LABEL_WIDTH + plain(words)] if words else lines


def _number(attempt: Row) -> int:
    return int(attempt["attempt"])
