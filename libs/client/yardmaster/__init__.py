"""Yardmaster for users: the task SDK and the HTTP client.

```python
import yardmaster

if yardmaster.should_stop():
    yardmaster.report_checkpoint(uri, step)
```

`yardmaster.Client` calls the gateway. The functions of `task` use the standard library alone; the
client and its dependencies are imported when `Client` is first used.
"""

from typing import TYPE_CHECKING, Any

from yardmaster.task import (
    Checkpoint,
    CheckpointRefused,
    done,
    last_checkpoint,
    progress,
    report_checkpoint,
    should_stop,
)

if TYPE_CHECKING:
    from yardmaster.client import Client

__all__ = [
    "Checkpoint",
    "CheckpointRefused",
    "Client",
    "done",
    "last_checkpoint",
    "progress",
    "report_checkpoint",
    "should_stop",
]


def __getattr__(name: str) -> Any:
    if name == "Client":
        from yardmaster.client import Client

        return Client
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
