"""How to reach Kafka's brokers, and how the catalogue's topics are configured there."""

import ssl
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from yardmaster_eventlog.errors import TlsUnusable
from yardmaster_schemas.topics import DAY_MS, Topic


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSettings:
    """How to reach the brokers, and how topics are made.

    Attributes:
        bootstrap: `host:port`, several separated by commas.
        security_protocol: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL. TLS is 1.3 or newer, and a
            broker's certificate must name the address that was asked for.
        ssl_cafile, ssl_certfile, ssl_keyfile: paths of PEM files; whom to trust (without it, whom
            the system trusts), who this client is, and its key.
        sasl_mechanism: PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512.
        append_timeout_s: after it an append's outcome is unknown.
        call_timeout_s: the same for all other calls, which then fail.
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
        """The arguments that all of aiokafka's clients share.

        Raises: TlsUnusable.
        """
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
                if Path(path).stat().st_mode & stat.S_IROTH:
                    raise TlsUnusable(path=path, found="anybody may read the key; chmod o-r it")
                # Without one OpenSSL would ask whoever sits at the terminal.
                password = self.ssl_key_password or ""
                context.load_cert_chain(self.ssl_certfile, self.ssl_keyfile, password)
        except OSError as error:  # ssl's errors are
            found = getattr(error, "reason", None) or error.strerror
            raise TlsUnusable(path=path, found=found) from None
        return context


def topic_settings(topic: Topic, settings: KafkaSettings) -> dict[str, str]:
    """A topic's configuration on the brokers, from its entry in the catalogue."""
    config = {
        "cleanup.policy": "compact" if topic.compacted else "delete",
        "compression.type": topic.compression,
        "max.message.bytes": str(topic.max_batch_bytes),
        # Agents' clocks are only shown: the log's own says when a record came.
        "message.timestamp.type": "LogAppendTime",
        "min.insync.replicas": str(settings.min_insync_replicas),
        "retention.bytes": "-1",
        "retention.ms": "-1" if topic.retention_ms is None else str(topic.retention_ms),
        "unclean.leader.election.enable": "false",
    }
    if topic.retention_ms is not None:
        # Only whole segments go, and never the one that is written to.
        config["segment.ms"] = str(max(60_000, topic.retention_ms // 4))
    if topic.compacted:
        config["max.compaction.lag.ms"] = str(DAY_MS)
    return config
