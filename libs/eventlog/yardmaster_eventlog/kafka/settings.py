"""How to reach Kafka's brokers, and how the catalog's topics are configured there."""

import logging
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from yardmaster_eventlog.errors import TlsUnusable
from yardmaster_schemas.secret import not_private
from yardmaster_schemas.topics import ASSIGNMENTS_PREFIX, DAY_MS, Topic

_LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]")


class _ClearTextOnce(logging.Filter):
    """Passes aiokafka's warning about PLAIN without TLS once for each address of brokers.

    aiokafka (0.14) logs the warning for each connection. For brokers on this machine the warning is
    always dropped, because the password does not leave the machine.
    """

    _TEXT: Final = "Sending username and password in the clear"

    def __init__(self) -> None:
        super().__init__()
        self._known: set[str] = set()
        self._due = False

    def connects(self, bootstrap: str) -> None:
        """Let the next warning pass if `bootstrap` is new and names another machine."""
        hosts = {address.strip().rpartition(":")[0] for address in bootstrap.split(",")}
        if bootstrap not in self._known and not hosts.issubset(_LOOPBACK):
            self._known.add(bootstrap)
            self._due = True

    def filter(self, record: logging.LogRecord) -> bool:
        if record.msg != self._TEXT:
            return True
        due, self._due = self._due, False
        return due


_CLEAR_TEXT: Final = _ClearTextOnce()
logging.getLogger("aiokafka.conn").addFilter(_CLEAR_TEXT)


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSettings:
    """How to reach the brokers, and how topics are created.

    Attributes:
        bootstrap: `host:port`, several separated by commas.
        security_protocol: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL. TLS is 1.3 or newer, and a
            broker's certificate must name the requested address.
        ssl_cafile, ssl_certfile, ssl_keyfile: paths of PEM files; the trusted authority (by
            default the system's), this client's certificate, and its key.
        sasl_mechanism: PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512.
        append_timeout_s: the time after which an append's outcome is unknown.
        call_timeout_s: the time after which any other call fails.
    """

    bootstrap: str
    client_id: str = "yardmaster"
    security_protocol: str = "PLAINTEXT"
    ssl_cafile: str | None = None
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    ssl_key_password: str | None = field(default=None, repr=False)
    sasl_mechanism: str = "PLAIN"
    sasl_username: str | None = None
    sasl_password: str | None = field(default=None, repr=False)
    replication_factor: int = 1
    min_insync_replicas: int = 1
    append_timeout_s: float = 10.0
    call_timeout_s: float = 10.0

    def client(self) -> dict[str, Any]:
        """Return the arguments that all of aiokafka's clients share.

        Raises: TlsUnusable.
        """
        if self.security_protocol == "SASL_PLAINTEXT" and self.sasl_mechanism == "PLAIN":
            _CLEAR_TEXT.connects(self.bootstrap)
        return {
            "bootstrap_servers": self.bootstrap,
            "client_id": self.client_id,
            "security_protocol": self.security_protocol,
            "ssl_context": self._tls(),
            "sasl_mechanism": self.sasl_mechanism,
            "sasl_plain_username": self.sasl_username,
            "sasl_plain_password": self.sasl_password,
            "request_timeout_ms": int(self.call_timeout_s * 1000),
        }

    def _tls(self) -> ssl.SSLContext | None:
        if self.security_protocol not in ("SSL", "SASL_SSL"):
            return None
        path = self.ssl_cafile
        try:
            context = ssl.create_default_context(cafile=path)
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            if self.ssl_certfile is not None:
                path = self.ssl_keyfile or self.ssl_certfile
                found = not_private(Path(path))
                if found is not None:
                    raise TlsUnusable(path=path, found=found)
                # Without a password OpenSSL would ask for one on the terminal.
                password = self.ssl_key_password or ""
                context.load_cert_chain(self.ssl_certfile, self.ssl_keyfile, password)
        except OSError as error:  # the base class of the errors of ssl
            found = getattr(error, "reason", None) or error.strerror
            raise TlsUnusable(path=path, found=found) from None
        return context


def topic_settings(topic: Topic, settings: KafkaSettings) -> dict[str, str]:
    """Return a topic's configuration on the brokers, from its entry in the catalog."""
    config = {
        "cleanup.policy": "compact" if topic.compacted else "delete",
        "compression.type": topic.compression,
        "max.message.bytes": str(topic.max_batch_bytes),
        # Agents' clocks are for display only: the log's own clock gives a record's time.
        "message.timestamp.type": "LogAppendTime",
        "min.insync.replicas": str(settings.min_insync_replicas),
        "retention.bytes": "-1",
        "retention.ms": "-1" if topic.retention_ms is None else str(topic.retention_ms),
        "unclean.leader.election.enable": "false",
    }
    synced = topic.retention_ms is None or topic.name.startswith(ASSIGNMENTS_PREFIX)
    if synced and settings.replication_factor == 1:
        # Kafka does not sync by default. Without replicas, an acknowledged record must therefore be
        # written to the disk at once. The loss of an assignment that its agent has read would end
        # all tasks of the node.
        config["flush.messages"] = "1"
    if topic.retention_ms is not None:
        # Kafka deletes only whole segments, and never the active one.
        config["segment.ms"] = str(max(60_000, topic.retention_ms // 4))
    if topic.compacted:
        config["max.compaction.lag.ms"] = str(DAY_MS)
    return config
