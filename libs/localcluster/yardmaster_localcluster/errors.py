"""Errors of a local cluster; the message says what happened, `hint` what to do.

```
YardmasterError
  LocalClusterError
    DataDirUnusable  DataDirInUse          the data directory
    OtherDataFormat
    PackageMissing  DownloadFailed         what a broker or Redis needs
    PortsInUse  NoGangPorts                what was requested cannot be started
    ClusterFixed  TooManyNodes
    ProcessFailed                          a process ended, or did not become ready
      BrokerFailed  RedisFailed  ServiceFailed
    StartFailed  NotHealthy                the cluster did not come up
    StopFailed  EngineSilent               processes or containers are left
    DockerMissing  ComposeFileMissing  ComposeFailed
```
"""

from yardmaster_schemas.errors import YardmasterError


class LocalClusterError(YardmasterError):
    """The local cluster failed: {found}."""

    code = "local_cluster"

    def __init__(self, *, hint: str | None = None, **fields: object) -> None:
        super().__init__(**fields)
        self.hint = hint


class DataDirUnusable(LocalClusterError):
    """{found}"""

    code = "data_dir_unusable"


class DataDirInUse(LocalClusterError):
    """another yard dev or yard up (pid {pid}) runs on {path}"""

    code = "data_dir_in_use"


class OtherDataFormat(LocalClusterError):
    """{path} contains a cluster of {found}, and this version of Yardmaster reads and writes only
    format {known}. Nothing was changed.
    """

    code = "other_data_format"


class PackageMissing(LocalClusterError):
    """{found}"""

    code = "package_missing"


class DownloadFailed(LocalClusterError):
    """Kafka's jars could not be fetched: {found}"""

    code = "download_failed"


class NoGangPorts(LocalClusterError):
    """other clusters of this machine have all ports for gangs, {first} to {last}"""

    code = "no_gang_ports"


class PortsInUse(LocalClusterError):
    """{ports} of {host} already in use"""

    code = "ports_in_use"

    def __init__(self, *, ports: str, host: str, free: dict[str, int], hint: str) -> None:
        super().__init__(ports=ports, host=host, hint=hint)
        #: Free ports by listener, when there are any.
        self.free = free


class ClusterFixed(LocalClusterError):
    """a running cluster keeps its {what}: {found}"""

    code = "cluster_fixed"


class TooManyNodes(LocalClusterError):
    """--agents {count}: the compose file has {known} nodes"""

    code = "too_many_nodes"


class ProcessFailed(LocalClusterError):
    """{found}"""

    code = "process_failed"

    def __init__(self, found: str) -> None:
        super().__init__(found=found)


class BrokerFailed(ProcessFailed):
    """the Kafka broker {found}"""

    code = "broker_failed"


class RedisFailed(ProcessFailed):
    """Redis {found}"""

    code = "redis_failed"


class ServiceFailed(ProcessFailed):
    """{found}"""

    code = "service_failed"


class StartFailed(LocalClusterError):
    """the cluster did not start: {found}"""

    code = "start_failed"


class NotHealthy(LocalClusterError):
    """not healthy after {seconds} s: {found}"""

    code = "not_healthy"


class StopFailed(LocalClusterError):
    """still running after the stop: {found}"""

    code = "stop_failed"


class EngineSilent(LocalClusterError):
    """containers of tasks are left: the container engine at {path} does not answer ({found})"""

    code = "engine_silent"


class DockerMissing(LocalClusterError):
    """no Docker daemon answers, or compose is not installed"""

    code = "docker_missing"


class ComposeFileMissing(LocalClusterError):
    """the compose file is missing: this is an installation without the sources"""

    code = "compose_file_missing"


class ComposeFailed(LocalClusterError):
    """docker compose {command} ended with exit code {code_of_compose}"""

    code = "compose_failed"
