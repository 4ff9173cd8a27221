"""What starting a local cluster may raise.

```
YardmasterError
  LocalClusterError  DataDirUnusable  DataDirInUse  PackageMissing  DownloadFailed
```
"""

from yardmaster_schemas.errors import YardmasterError


class LocalClusterError(YardmasterError):
    """The local cluster failed: {found}."""

    code = "local_cluster"

    def __init__(self, *, hint: str, **fields: object) -> None:
        super().__init__(**fields)
        self.hint = hint


class DataDirUnusable(LocalClusterError):
    """{found}"""

    code = "data_dir_unusable"


class DataDirInUse(LocalClusterError):
    """another yard dev or yard up (pid {pid}) runs on {path}"""

    code = "data_dir_in_use"


class PackageMissing(LocalClusterError):
    """{found}"""

    code = "package_missing"


class DownloadFailed(LocalClusterError):
    """Kafka's jars could not be fetched: {found}"""

    code = "download_failed"
