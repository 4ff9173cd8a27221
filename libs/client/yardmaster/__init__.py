"""Yardmaster for users: the task SDK and the HTTP client.

Inside a task:

```python
import yardmaster

if yardmaster.should_stop():
    yardmaster.report_checkpoint(uri, step)
    raise SystemExit(0)
```

From anywhere:

```python
with yardmaster.Client.from_env() as client:
    submitted = client.submit(Path("job.yaml"))
    for task in client.wait(submitted):
        print(task.task_id, task.phase)
```

The task SDK uses only the standard library. The client, its models and their dependencies are
imported on first use. This package imports no service.
"""

import warnings
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

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
    from yardmaster.errors import (
        ApiError,
        InputError,
        NeverFits,
        NoServer,
        TokenCommandFailed,
        WaitTimeout,
    )
    from yardmaster.job_calls import Piece
    from yardmaster.transport import Change
    from yardmaster_schemas.job_file import JobSpec, parse_job

__all__ = [
    "ApiError",
    "Change",
    "Checkpoint",
    "CheckpointRefused",
    "Client",
    "InputError",
    "JobSpec",
    "NeverFits",
    "NoServer",
    "Piece",
    "TokenCommandFailed",
    "WaitTimeout",
    "done",
    "last_checkpoint",
    "parse_job",
    "progress",
    "report_checkpoint",
    "should_stop",
]

#: The names of the client, and the modules that define them.
_CLIENT: Final = {
    "ApiError": "yardmaster.errors",
    "Change": "yardmaster.transport",
    "Client": "yardmaster.client",
    "InputError": "yardmaster.errors",
    "JobSpec": "yardmaster_schemas.job_file",
    "NeverFits": "yardmaster.errors",
    "NoServer": "yardmaster.errors",
    "Piece": "yardmaster.job_calls",
    "TokenCommandFailed": "yardmaster.errors",
    "WaitTimeout": "yardmaster.errors",
    "parse_job": "yardmaster_schemas.job_file",
}


def _warn_of_other_distribution(site_packages: Path) -> None:
    """Warn if the distribution `yardmaster` of PyPI, another project, shares this package's folder.

    This module runs, so at present the folder contains this project's files, and the program can
    continue. The next installation or removal of the other distribution overwrites or removes these
    files. If the folder contains the other distribution's files, this module does not run; `yard
    doctor` reports both cases.
    """
    for found in site_packages.glob("yardmaster-*.dist-info"):
        warnings.warn(
            f"{found.name.removesuffix('.dist-info')} is another project that installs into the "
            f"folder of this package, {site_packages / 'yardmaster'}. Remove it, then install "
            "yardmaster-scheduler again; yard doctor prints the commands",
            RuntimeWarning,
            stacklevel=3,
        )


_warn_of_other_distribution(Path(__file__).parents[1])


def __getattr__(name: str) -> Any:
    if name not in _CLIENT:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_CLIENT[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
