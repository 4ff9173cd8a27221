"""The data directory of a cluster and its ports, the same for processes and containers.

```
kafka/ redis/ snapshots/ agents/NODE/ views/   data of each service
packages/                                      code packages of users
artifacts/                                     artifacts of tasks
logs/PROCESS.log                               log of each process
format                                         the format of the data (`LOG_FORMAT`)
token                                          the token of callers; 0600
tokens.json                                    its digest and roles, for gateways; 0600
credentials/kafka/USER credentials/redis/USER  the password of each user; 0600
lock up.json state.json dev.json               of the supervisor: its lock, the request, its report,
                                               and its address for `yard`
```
"""

import hashlib
import json
import os
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from yardmaster_localcluster.data_lock import make_private, write_private
from yardmaster_localcluster.errors import OtherDataFormat
from yardmaster_schemas.access import ADMIN, REDIS_USERS, SERVICES, agent_user
from yardmaster_schemas.log_format import LOG_FORMAT

#: The default ports. Each gateway and each health endpoint has its own port, from these ports on.
GATEWAY_PORT: Final = 7450
HEALTH_PORT: Final = 7500
KAFKA_PORT: Final = 9092
CONTROLLER_PORT: Final = 9093
REDIS_PORT: Final = 6379
FORMAT_FILE: Final = "format"


@dataclass(frozen=True, slots=True)
class DataLayout:
    """The files of one cluster's data directory."""

    path: Path

    @property
    def kafka(self) -> Path:
        """The data and settings of the broker."""
        return self.path / "kafka"

    @property
    def redis(self) -> Path:
        """The settings and saved data of Redis."""
        return self.path / "redis"

    @property
    def credentials(self) -> Path:
        """The folders `kafka` and `redis` with a file for each user: its password."""
        return self.path / "credentials"

    @property
    def kafka_credentials(self) -> Path:
        """The passwords of the broker's users."""
        return self.credentials / "kafka"

    @property
    def redis_credentials(self) -> Path:
        """The passwords of Redis's users."""
        return self.credentials / "redis"

    @property
    def snapshots(self) -> Path:
        """The snapshots of the state machines (quota and the scheduler)."""
        return self.path / "snapshots"

    @property
    def packages(self) -> Path:
        """The code packages of users."""
        return self.path / "packages"

    @property
    def artifacts(self) -> Path:
        """The artifacts of tasks."""
        return self.path / "artifacts"

    @property
    def agents(self) -> Path:
        """The ledgers and task directories of the nodes, one folder per node."""
        return self.path / "agents"

    @property
    def views(self) -> Path:
        """The data of the views workers."""
        return self.path / "views"

    @property
    def logs(self) -> Path:
        """The logs of the processes."""
        return self.path / "logs"

    @property
    def token_file(self) -> Path:
        """The file with the token of callers."""
        return self.path / "token"

    @property
    def tokens_file(self) -> Path:
        """The file with the digest and roles of the callers' token, for gateways."""
        return self.path / "tokens.json"

    def check_format(self) -> None:
        """Check that the data, if there is any, has the format of this version.

        Raises: OtherDataFormat.
        """
        found = read(self.path / FORMAT_FILE)
        if self.kafka.exists() and found != str(LOG_FORMAT):
            raise OtherDataFormat(
                path=self.path,
                found=f"format {found}" if found else "an earlier format",
                known=LOG_FORMAT,
                hint=f"yard down --purge --data {self.path} deletes it, then yard up starts an "
                "empty cluster; yard up --data OTHER keeps it",
            )

    def make(self, cells: tuple[str, ...], nodes: Iterable[str]) -> None:
        """Create missing folders and random secrets."""
        make_private(self.path)
        # Written before the data that it describes, so a start that is cut off leaves no data
        # without it.
        write_private(self.path / FORMAT_FILE, f"{LOG_FORMAT}\n")
        users = (self.packages, self.artifacts)
        for folder in (self.kafka, self.redis, self.snapshots, *users, self.views, self.logs):
            folder.mkdir(exist_ok=True)
            folder.chmod(0o700)
        self.agents.mkdir(exist_ok=True)
        # If agents run as root, their tasks run as another user, who must be able to pass through
        # these folders to its own folders.
        for folder in (self.path, self.agents):
            folder.chmod(0o711 if os.geteuid() == 0 else 0o700)
        token = self._secret(self.token_file)
        for folder in (self.credentials, self.kafka_credentials, self.redis_credentials):
            folder.mkdir(mode=0o700, exist_ok=True)
        for user in (ADMIN, *SERVICES, *map(agent_user, nodes)):
            self._secret(self.kafka_credentials / user)
        for user in REDIS_USERS:
            self._secret(self.redis_credentials / user)
        roles = [{"role": "operator", "scope": "cell", "name": cell} for cell in cells]
        digest = hashlib.sha256(token.encode()).hexdigest()
        entry = {"id": "local", "digest": digest, "user": "local", "roles": roles}
        # Entries of other users stay, because an operator may have added users to the file.
        others = [
            each
            for each in read_json(self.tokens_file).get("tokens", ())
            if each.get("id") != entry["id"]
        ]
        tokens = {"version": 1, "tokens": [entry, *others]}
        write_private(self.tokens_file, json.dumps(tokens) + "\n")

    def token(self) -> str:
        """The token of callers; empty before `make`."""
        return read(self.token_file)

    def redis_passwords(self) -> dict[str, str]:
        """The password of each user of Redis; empty before `make`."""
        return {user: read(self.redis_credentials / user) for user in REDIS_USERS}

    def _secret(self, path: Path) -> str:
        found = read(path)
        if not found:
            found = secrets.token_urlsafe(32)
            write_private(path, found + "\n")
        return found


def read(path: Path) -> str:
    """The text of a small file; empty without the file."""
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return ""


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a small file; empty without the file, or when it is damaged."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
