"""Where everything of a cluster lies: its data folder and its ports, alike here and in compose.

```
kafka/ redis/ snapshots/ agents/NODE/ views/   what each keeps
logs/PROCESS.log                               what each said
token                                          what callers send; 0600
tokens.json                                    its digest and roles, for gateways; 0600
redis/password                                 0600
lock up.json state.json dev.json               of the supervisor: who runs, what is wanted, what is,
                                               and where `yard` finds it
```
"""

import hashlib
import json
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from yardmaster_localcluster.data_lock import make_private, write_private

#: Ports when nothing says otherwise. Gateways and health take one for each process from there on.
GATEWAY_PORT: Final = 7450
HEALTH_PORT: Final = 7500
KAFKA_PORT: Final = 9092
CONTROLLER_PORT: Final = 9093
REDIS_PORT: Final = 6379
#: Ports of a node's range for gangs; nodes of one machine must not share any.
FIRST_GANG_PORT: Final = 29_600
GANG_PORTS: Final = 100


@dataclass(frozen=True, slots=True)
class DataLayout:
    """The files of one cluster's data folder."""

    path: Path

    @property
    def kafka(self) -> Path:
        """The broker's records and settings."""
        return self.path / "kafka"

    @property
    def redis(self) -> Path:
        """Redis' settings, and what it saves."""
        return self.path / "redis"

    @property
    def redis_password_file(self) -> Path:
        """Redis' password."""
        return self.redis / "password"

    @property
    def snapshots(self) -> Path:
        """The machines' snapshots."""
        return self.path / "snapshots"

    @property
    def agents(self) -> Path:
        """The nodes' ledgers and their tasks' directories, one folder a node."""
        return self.path / "agents"

    @property
    def views(self) -> Path:
        """What the views' workers keep."""
        return self.path / "views"

    @property
    def logs(self) -> Path:
        """What every process said."""
        return self.path / "logs"

    @property
    def token_file(self) -> Path:
        """What callers send."""
        return self.path / "token"

    @property
    def tokens_file(self) -> Path:
        """What gateways know of it."""
        return self.path / "tokens.json"

    def make(self, cells: tuple[str, ...]) -> None:
        """Make what is not there yet: folders, and secrets of chance."""
        make_private(self.path)
        for folder in (self.kafka, self.redis, self.snapshots, self.agents, self.views, self.logs):
            folder.mkdir(exist_ok=True)
        token = self._secret(self.token_file)
        self._secret(self.redis_password_file)
        roles = [{"role": "operator", "scope": "cell", "name": cell} for cell in cells]
        digest = hashlib.sha256(token.encode()).hexdigest()
        entry = {"id": "local", "digest": digest, "user": "local", "roles": roles}
        write_private(self.tokens_file, json.dumps({"version": 1, "tokens": [entry]}) + "\n")

    def token(self) -> str:
        """What callers send; empty before `make`."""
        return read(self.token_file)

    def redis_password(self) -> str:
        """Redis' password; empty before `make`."""
        return read(self.redis_password_file)

    def _secret(self, path: Path) -> str:
        found = read(path)
        if not found:
            found = secrets.token_urlsafe(32)
            write_private(path, found + "\n")
        return found


def read(path: Path) -> str:
    """A small file's text; empty when it is not there."""
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return ""


def read_json(path: Path) -> dict[str, Any]:
    """A small file's object; empty when it is not there, or damaged."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
