"""How to undo the changes of an open draft.

While a draft is open that will be undone, everything that a decision may change in the state
records here how to undo it; `undo` then goes back through these changes, newest first.
"""

from collections.abc import Callable
from typing import Any

from yardmaster_core.scheduling.state.ordered_tasks import OrderedTasks
from yardmaster_core.scheduling.state.tasks import Task

Undo = tuple[Callable[..., object], tuple[Any, ...]]


class Journal:
    """The changes of the open draft, and the removals that it puts off until its end."""

    __slots__ = ("changes", "unpruned")

    def __init__(self) -> None:
        #: While a draft that will be undone is open: its changes, oldest first.
        self.changes: list[Undo] | None = None
        #: While any draft is open: collections that tasks left, which the planner may iterate.
        self.unpruned: dict[OrderedTasks[Task], None] | None = None

    def record(self, function: Callable[..., object], *arguments: object) -> None:
        """Record that calling `function` with `arguments` undoes a change."""
        if self.changes is not None:
            self.changes.append((function, arguments))

    def put(self, thing: object, name: str, value: object) -> None:
        """Set the attribute `name` of `thing`; undone with the draft."""
        if self.changes is not None:
            self.changes.append((setattr, (thing, name, getattr(thing, name))))
        setattr(thing, name, value)

    def undo(self) -> None:
        """Undo the recorded changes; from now on none are recorded."""
        changes, self.changes = self.changes, None
        while changes:
            function, arguments = changes.pop()
            function(*arguments)

    def prune(self, tasks: OrderedTasks[Task]) -> None:
        """Remove the entries of tasks that left `tasks`.

        While a draft is open, this only notes `tasks`; a draft that is kept prunes them at its end.
        """
        if self.unpruned is None:
            tasks.prune()
        else:
            self.unpruned[tasks] = None
