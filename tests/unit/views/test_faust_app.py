"""How Faust is set up: what it says to brokers, and what it leaves alone."""

from pathlib import Path
from typing import Any

import pytest
from faust.auth import SASLCredentials, SSLCredentials
from faust.types.auth import AuthProtocol, SASLMechanism
from faust.types.enums import ProcessingGuarantee

from tests.support.secure_broker import Authority
from tests.support.views import telemetry
from yardmaster_eventlog.kafka.settings import KafkaSettings
from yardmaster_views.cells import Cells
from yardmaster_views.faust_app import GROUP, credentials, make_app
from yardmaster_views.settings import ViewsSettings

PASSWORD = "correct-horse"


def test_without_security_nothing_is_said() -> None:
    assert credentials(KafkaSettings(bootstrap="b:1")) is None


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_password_goes_with_its_mechanism(mechanism: str) -> None:
    kafka = KafkaSettings(
        bootstrap="b:1",
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism=mechanism,
        sasl_username="views",
        sasl_password=PASSWORD,
    )
    found = credentials(kafka)
    assert isinstance(found, SASLCredentials)
    assert found.protocol is AuthProtocol.SASL_PLAINTEXT
    assert found.mechanism is SASLMechanism(mechanism)
    assert (found.username, found.password) == ("views", PASSWORD)
    assert PASSWORD not in repr(found)


def test_tls_is_ours_with_or_without_a_password(tmp_path: Path) -> None:
    ca = str(Authority(tmp_path).ca)
    plain = KafkaSettings(bootstrap="b:1", security_protocol="SSL", ssl_cafile=ca)
    found = credentials(plain)
    assert isinstance(found, SSLCredentials)
    assert found.context.check_hostname
    both = KafkaSettings(
        bootstrap="b:1",
        security_protocol="SASL_SSL",
        ssl_cafile=ca,
        sasl_mechanism="SCRAM-SHA-512",
        sasl_username="views",
        sasl_password=PASSWORD,
    )
    with_password = credentials(both)
    assert isinstance(with_password, SASLCredentials)
    assert with_password.protocol is AuthProtocol.SASL_SSL
    assert with_password.ssl_context is not None


def test_faust_keeps_nothing_and_makes_no_topics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    async def serve(*_: object) -> None:
        raise AssertionError("nothing was given")

    kafka = KafkaSettings(bootstrap="one:1,two:2")
    settings = ViewsSettings(cells=("main", "east"), session_timeout_s=12)
    app = make_app(settings, kafka, Cells(settings.partitions, serve, telemetry()))
    app.finalize()
    conf: Any = app.conf
    assert conf.id == GROUP
    assert [str(url) for url in conf.broker] == ["kafka://one:1", "kafka://two:2"]
    assert str(conf.store) == "memory:"
    assert not conf.web_enabled
    assert not conf.topic_allow_declare
    assert conf.topic_disable_leader
    assert conf.processing_guarantee is ProcessingGuarantee.AT_LEAST_ONCE
    assert conf.broker_session_timeout == 12
    assert conf.broker_heartbeat_interval == 1
    assert sorted(app.agents) == ["usage", "views"]
    assert all(agent.concurrency == 1 for agent in app.agents.values())
    boot: Any = app.boot_strategy
    started = {type(one).__name__ for one in boot.kafka_producer()}
    assert started == set()
    assert list(tmp_path.iterdir()) == []


def test_each_cell_is_at_its_partition() -> None:
    assert ViewsSettings(cell="east", partition=3).partitions == {3: "east"}
    assert ViewsSettings(cells=("main", "east")).partitions == {0: "main", 1: "east"}
