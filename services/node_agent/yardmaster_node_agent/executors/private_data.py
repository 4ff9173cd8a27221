"""The modes of the agent's files: what another user can write, it can make the agent do."""

import os
import stat
from contextlib import suppress
from pathlib import Path

from yardmaster_node_agent.errors import DataWritable
from yardmaster_runtime.private_files import report_writable
from yardmaster_runtime.telemetry.port import Telemetry
from yardmaster_schemas.file_modes import other_writers


def check_private(data_dir: Path, secrets_dir: Path | None, telemetry: Telemetry) -> None:
    """Check that no other user may write the files that the agent believes.

    Folders are closed to others where they belong to the agent's user, such as a volume that
    Kubernetes mounts open to all; else they are reported.

    Raises: DataWritable: other users may have written the ledger.
    """
    own = os.geteuid()
    for path in (data_dir / "ledger", data_dir / "ledger.lock"):
        with suppress(FileNotFoundError):
            status = path.lstat()
            writers = other_writers(status.st_mode)
            if not stat.S_ISREG(status.st_mode):
                raise DataWritable(path=path, found="it is not a regular file")
            if writers is not None:
                raise DataWritable(path=path, found=f"{writers} may write it")
            if status.st_uid not in (own, 0):
                raise DataWritable(path=path, found=f"it belongs to user {status.st_uid}")
    for path in (data_dir, data_dir / "replicas"):
        with suppress(FileNotFoundError):
            status = path.stat()
            if other_writers(status.st_mode) is not None and own in (status.st_uid, 0):
                path.chmod(stat.S_IMODE(status.st_mode) & ~(stat.S_IWGRP | stat.S_IWOTH))
                telemetry.info("made_private", path=str(path))
    secrets = () if secrets_dir is None else (secrets_dir,)
    report_writable(telemetry, (data_dir, data_dir / "replicas", *secrets))
