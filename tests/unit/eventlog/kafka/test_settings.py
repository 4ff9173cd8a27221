"""Settings of Kafka: what the catalogue says reaches the brokers, and no secret a log line."""

import logging
import ssl

import pytest

from yardmaster_eventlog.kafka.settings import KafkaSettings, topic_settings
from yardmaster_schemas.topics import DECISIONS, DETAILS, HEARTBEATS, HOUR_MS, assignments

SETTINGS = KafkaSettings(bootstrap="kafka:9092", min_insync_replicas=2)


def test_a_topic_without_retention_is_kept_forever() -> None:
    config = topic_settings(DECISIONS, SETTINGS)
    assert config["retention.ms"] == config["retention.bytes"] == "-1"
    assert config["cleanup.policy"] == "delete"
    assert config["max.message.bytes"] == str(DECISIONS.max_batch_bytes)
    assert config["min.insync.replicas"] == "2"
    assert "segment.ms" not in config


def test_a_topic_that_expires_rolls_its_segments_in_time() -> None:
    config = topic_settings(HEARTBEATS, SETTINGS)
    assert config["retention.ms"] == str(2 * HOUR_MS)
    assert config["segment.ms"] == str(HOUR_MS // 2)
    assert config["compression.type"] == "uncompressed"


def test_a_compacted_topic_is_compacted_within_a_day() -> None:
    config = topic_settings(DETAILS, SETTINGS)
    assert config["cleanup.policy"] == "compact"
    assert config["max.compaction.lag.ms"] == str(24 * HOUR_MS)


def test_without_replicas_what_is_kept_or_assigned_is_synced_before_it_is_acknowledged() -> None:
    alone = KafkaSettings(bootstrap="kafka:9092")
    replicated = KafkaSettings(bootstrap="kafka:9092", replication_factor=3)
    for topic in (DECISIONS, DETAILS, assignments("n1")):
        assert topic_settings(topic, alone)["flush.messages"] == "1"
        assert "flush.messages" not in topic_settings(topic, replicated)
    assert "flush.messages" not in topic_settings(HEARTBEATS, alone)


def test_passwords_are_not_printed() -> None:
    settings = KafkaSettings(bootstrap="k:1", sasl_password="hunter2", ssl_key_password="hunter3")
    assert "hunter" not in repr(settings)


def test_tls_is_1_3_and_checks_the_broker_name() -> None:
    assert SETTINGS.client()["ssl_context"] is None
    client = KafkaSettings(
        bootstrap="k:1", security_protocol="SASL_SSL", sasl_mechanism="SCRAM-SHA-512"
    ).client()
    context = client["ssl_context"]
    assert context.minimum_version is ssl.TLSVersion.TLSv1_3
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    assert client["sasl_mechanism"] == "SCRAM-SHA-512"


def test_a_password_in_the_clear_is_reported_once_for_each_address(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def connect(bootstrap: str) -> None:
        KafkaSettings(
            bootstrap=bootstrap, security_protocol="SASL_PLAINTEXT", sasl_mechanism="PLAIN"
        ).client()
        logging.getLogger("aiokafka.conn").warning("Sending username and password in the clear")

    # A client of another test, which never connected, may have left a line due.
    logging.getLogger("aiokafka.conn").warning("Sending username and password in the clear")
    caplog.clear()
    for bootstrap in (
        "127.0.0.1:1",
        "localhost:2,127.0.0.1:3",
        "brokers:1",
        "brokers:1",
        "other:1",
    ):
        connect(bootstrap)
    logging.getLogger("aiokafka.conn").warning("another warning")
    clear = "Sending username and password in the clear"
    assert caplog.messages == [clear, clear, "another warning"]
