"""A gang that is paused after its first checkpoint, and what its replicas printed."""

import re

from yardmaster.client import Client

LIMIT_S = 180.0


def output(client: Client, task_id: str, attempt: int) -> list[str]:
    """The output of each replica in an attempt."""
    found = ["", ""]
    for piece in client.output(task_id, attempt=attempt):
        found[piece.replica] += piece.text
    return found


def numbers(pattern: str, printed: list[str]) -> list[str]:
    """The first match of each replica; each must have one."""
    found = [re.findall(pattern, text) for text in printed]
    assert all(found), printed
    return [each[0] for each in found]


def pause_after_a_checkpoint(client: Client, task_id: str) -> None:
    """Pause the task when its first checkpoint is known; wait until it is pending again."""
    paused = False
    for change in client.watch(["task"], timeout_s=LIMIT_S):
        task = change.data.get("item") or {}
        if task.get("task_id") != task_id:
            continue
        if not paused and task["checkpoint"] is not None:
            client.pause(task_id)
            paused = True
        if task["phase"] in ("failed", "succeeded") or (paused and task["phase"] == "pending"):
            return
