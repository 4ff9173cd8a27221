"""Fixtures that every test may ask for."""

from collections.abc import Iterator

import pytest

from tests.support.kafka_broker import KafkaBroker


@pytest.fixture(scope="session")
def kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """A running broker, one for the session (under xdist: one a worker; group tests by `kafka`).

    Use topics of your own, and do not stop it: a test that kills one makes its own KafkaBroker.
    """
    with KafkaBroker(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker
