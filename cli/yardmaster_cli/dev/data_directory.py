"""The data directory of the embedded mode: lock, token, cluster, and the address of the process.

```
log.db        the log           token         the token of callers; 0600
dev.json      port, token, pid  cluster.json  nodes and policy of the last start
lock          held by the process  nodes/ snapshots/ packages/ artifacts/
port          the last port of the gateway
```
"""

import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from yardmaster.yaml_tree import read, unknown_key
from yardmaster_cli.errors import BadUsage
from yardmaster_cli.policy_spec import PolicySpec
from yardmaster_localcluster.data_lock import announce, take_lock, withdraw, write_private
from yardmaster_schemas.fields import MAX_SLOTS, Labels, Name

#: The slots of a node when none are given and the machine has no GPU.
DEFAULT_SLOTS: Final = 4

_CLOSED = ConfigDict(extra="forbid", frozen=True)


class NodeSpec(BaseModel):
    """One node of the embedded cluster; its slots are declared and need no GPU."""

    model_config = _CLOSED

    name: Name
    slots: Annotated[int, Field(ge=0, le=MAX_SLOTS)] = DEFAULT_SLOTS
    pool: Name = "default"
    type: Name = "generic"
    labels: Labels = {}
    cpus: Annotated[int, Field(ge=1)] | None = None
    memory_mib: Annotated[int, Field(ge=0)] | None = None
    gpu_memory_mib: Annotated[int, Field(ge=0)] | None = None


class Cluster(BaseModel):
    """The content of a file for `yard dev --cluster FILE`."""

    model_config = _CLOSED

    nodes: Annotated[tuple[NodeSpec, ...], Field(min_length=1, max_length=64)]
    policy: PolicySpec = PolicySpec()

    @model_validator(mode="after")
    def _named_apart(self) -> "Cluster":
        names = [node.name for node in self.nodes]
        if len(set(names)) < len(names):
            raise ValueError("two nodes have the same name")
        return self


def plain_cluster(nodes: int, slots: int, policy: PolicySpec) -> Cluster:
    """A cluster of `nodes` equal nodes, named `node-1`, `node-2` and so on."""
    named = tuple(NodeSpec(name=f"node-{i + 1}", slots=slots) for i in range(nodes))
    return Cluster(nodes=named, policy=policy)


def read_cluster(path: Path) -> Cluster:
    """Read a cluster from a YAML file.

    Raises:
        BadUsage: the file cannot be read, or is not a cluster; the error names the line.
    """
    try:
        text = path.read_text()
    except OSError as error:
        raise BadUsage(f"{path}: {error.strerror}") from None
    tree = read(text, str(path))
    try:
        return Cluster.model_validate(tree.values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = first["loc"]
        if first["type"] == "extra_forbidden":
            known = NodeSpec if where[0] == "nodes" else PolicySpec if len(where) > 1 else Cluster
            raise unknown_key(tree, where, known.model_fields) from None
        what = str(first["msg"]).removeprefix("Value error, ")
        raise tree.error(where, what) from None


@dataclass(slots=True)
class DataDirectory:
    """A data directory that this process has locked; `take` creates it."""

    path: Path
    lock: int

    @classmethod
    def take(cls, path: Path) -> "DataDirectory":
        """Create the folder if necessary, and hold its lock until this process ends.

        Raises:
            DataDirInUse: another process runs on the folder.
            DataDirUnusable: the folder cannot be created.
        """
        return cls(path, take_lock(path))

    @property
    def log(self) -> Path:
        """The log's file."""
        return self.path / "log.db"

    def node(self, name: str) -> Path:
        """The folder of a node's agent, with its ledger and its tasks."""
        return self.path / "nodes" / name

    def token(self) -> str:
        """The token of this folder, created at the first start; only the owner can read it."""
        path = self.path / "token"
        try:
            found = path.read_text().strip()
        except FileNotFoundError:
            found = ""
        if not found:
            found = secrets.token_urlsafe(32)
            self._write("token", found + "\n")
        return found

    def cluster(self) -> Cluster | None:
        """The cluster of the last start; None at the first start, or when its file is damaged."""
        try:
            return Cluster.model_validate_json((self.path / "cluster.json").read_bytes())
        except (OSError, ValidationError):
            return None

    def keep_cluster(self, cluster: Cluster) -> None:
        """Store the cluster for the next start."""
        self._write("cluster.json", cluster.model_dump_json(indent=2) + "\n")

    def port(self) -> int | None:
        """The gateway's port at the last start; None when no port is stored."""
        try:
            return int((self.path / "port").read_text())
        except (OSError, ValueError):
            return None

    def keep_port(self, port: int) -> None:
        """Store the gateway's port for the next start."""
        self._write("port", f"{port}\n")

    def announce(self, port: int, token: str) -> None:
        """Publish the address of this process for callers."""
        announce(self.path, port, token, what="yard dev")

    def withdraw(self) -> None:
        """Remove the published address; after a crash its pid shows that it is out of date."""
        withdraw(self.path)

    def _write(self, name: str, text: str) -> None:
        """Replace a file atomically; only its owner can read it."""
        write_private(self.path / name, text)
