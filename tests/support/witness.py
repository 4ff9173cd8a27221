"""A record that is independent of the log: test tasks note their own starts, ends and slots.

A task run under `command` (`watch.py`) notes its start and end as lines of `FOLDER/witness.jsonl`
and holds a lock file for each of its whole slots and for its replica while it lives. The kernel
releases a lock when the last process that inherited it is gone, so a held lock proves that a
process still runs.
"""

import json
import sys
from collections.abc import Container
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support import watch
from tests.support.watch import FILE


@dataclass(frozen=True, slots=True)
class Start:
    """One process that ran a replica; `end_ns` is None when it was killed or still runs."""

    task: str
    attempt: int
    replica: int
    node: str
    pid: int
    start_ns: int
    slots: tuple[int, ...]
    end_ns: int | None = None


@dataclass(slots=True)
class Testimony:
    """The notes of all tasks."""

    starts: list[Start] = field(default_factory=list)
    #: Failed attempts to take a lock, because another process held it.
    taken: list[dict[str, Any]] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)

    def problems(self, removed: Container[tuple[str, int]] = ()) -> list[str]:
        """Attempts that started twice, slots held twice: one line each.

        `removed`: attempts, as (task, attempt), that the log lost; they may start once more.
        """
        found = [f"unreadable line: {line[:200]!r}" for line in self.unreadable]
        first: dict[tuple[str, int, int], Start] = {}
        for start in self.starts:
            other = first.setdefault((start.task, start.attempt, start.replica), start)
            if other is not start and (start.task, start.attempt) not in removed:
                found.append(
                    f"{start.task} attempt {start.attempt} replica {start.replica} started twice: "
                    f"pid {other.pid} on {other.node}, pid {start.pid} on {start.node}"
                )
        for line in self.taken:
            kind = "slot held twice" if line["lock"].startswith("slot.") else "runs twice at once"
            found.append(
                f"{kind}: {line['lock']} wanted by {line['task']} attempt {line['attempt']} "
                f"(pid {line['pid']}), held by {line['holder']}"
            )
        return found


def read_witness(folder: Path) -> Testimony:
    """Read the notes of the tasks of a folder; empty when no task ran."""
    testimony = Testimony()
    path = folder / FILE
    if not path.exists():
        return testimony
    open_: dict[tuple[str, int, int, int], int] = {}
    for text in path.read_text(errors="replace").splitlines():
        try:
            line = json.loads(text)
            key = (line["task"], line["attempt"], line["replica"], line["pid"])
            match line["what"]:
                case "start":
                    open_[key] = len(testimony.starts)
                    slots = tuple(line["slots"])
                    testimony.starts.append(
                        Start(*key[:3], line["node"], key[3], line["at_ns"], slots)
                    )
                case "end":
                    at = open_.pop(key)
                    s = testimony.starts[at]
                    testimony.starts[at] = Start(
                        *key[:3], s.node, s.pid, s.start_ns, s.slots, line["at_ns"]
                    )
                case "taken":
                    testimony.taken.append(line)
                case other:
                    raise ValueError(other)
        except (ValueError, KeyError, TypeError):
            testimony.unreadable.append(text)
    return testimony


def assert_witness_clean(folder: Path) -> Testimony:
    """Fail when an attempt started twice or a slot was held twice; return the notes."""
    testimony = read_witness(folder)
    problems = testimony.problems()
    assert not problems, "tasks noted violations:\n" + "\n".join(problems[:20])
    return testimony


def command(folder: Path, *cmd: str) -> list[str]:
    """The command of a task that runs `cmd` under a witness."""
    return [sys.executable, "-I", "-S", watch.__file__, str(folder), "--", *cmd]
