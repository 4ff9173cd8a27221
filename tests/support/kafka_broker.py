"""A real Apache Kafka broker for tests; `yard up --local` runs the same."""

from yardmaster_localcluster.broker import (
    COORDINATES,
    KAFKA_VERSION,
    START_LIMIT_S,
    STOP_LIMIT_S,
    KafkaBroker,
    classpath,
)
from yardmaster_localcluster.errors import BrokerFailed

__all__ = [
    "COORDINATES",
    "KAFKA_VERSION",
    "START_LIMIT_S",
    "STOP_LIMIT_S",
    "BrokerFailed",
    "KafkaBroker",
    "classpath",
]
