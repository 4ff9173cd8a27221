"""Fixtures that every test may request.

Kafka and Redis are containers where Docker has their images (`containers`), else processes.
"""

from collections.abc import Iterator

import pytest

from tests.support import containers, forks
from tests.support.containers import KafkaContainer, RedisContainer
from tests.support.docker_engine import OwnEngine, can_start, own_engine
from tests.support.half_open import collect_half_open
from tests.support.kafka_broker import KafkaBroker
from tests.support.kubernetes.control_plane import admin, control_plane, namespace
from tests.support.redis_server import RedisServer

__all__ = ["admin", "control_plane", "namespace"]


@pytest.fixture(scope="session")
def kafka_broker(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[KafkaBroker | KafkaContainer]:
    """A running broker, one for the session (under xdist: one a worker; group tests by `kafka`).

    Use its `bootstrap` and your own topics, and do not stop it: a test that kills a broker creates
    its own KafkaBroker.
    """
    if containers.is_there(containers.KAFKA_IMAGE):
        with KafkaContainer() as container:
            yield container
    else:
        with KafkaBroker(tmp_path_factory.mktemp("kafka")) as broker:
            yield broker


@pytest.fixture(scope="session")
def redis_server(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[RedisServer | RedisContainer]:
    """A running Redis without a password, one for the session, empty at first.

    Use its `url` and your own cells, and do not stop or flush it: a test that does creates its own
    RedisServer.
    """
    if containers.is_there(containers.REDIS_IMAGE):
        with RedisContainer() as container:
            yield container
    else:
        with RedisServer(tmp_path_factory.mktemp("redis")) as server:
            yield server


@pytest.fixture(scope="module")
def docker_engine() -> Iterator[OwnEngine]:
    """An engine of the module's own, which its tests may kill and restart."""
    if not can_start():
        pytest.skip("needs root and dockerd")
    with own_engine() as engine:
        yield engine


def pytest_unconfigure() -> None:
    """Stop the fork server, if a test started it."""
    forks.stop()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """After a test with a broker, collect what aiokafka left half open when the broker stopped."""
    yield
    if item.get_closest_marker("kafka") is not None:
        collect_half_open()
