"""Kafka and Redis in containers, for the suites that need them, where Docker is available.

Images are those of compose: `YARD_UP_KAFKA_IMAGE` and `YARD_UP_REDIS_IMAGE` name others, such as CI
builds. Tests never pull an image. Without the image (or Docker) the same suites run on the
processes of `kafka_broker` and `redis_server`; in CI a missing image is a failure.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Final, Self

import docker
import pytest
from docker.errors import DockerException, ImageNotFound
from testcontainers.core.config import testcontainers_config
from testcontainers.core.container import DockerContainer
from testcontainers.core.wait_strategies import LogMessageWaitStrategy

from tests.support.half_open import collect_half_open
from yardmaster_localcluster.broker import KAFKA_VERSION
from yardmaster_localcluster.ports import HOST, free_ports
from yardmaster_runtime.engine_api import FOLDER_LABEL

# Ryuk would be one more image from a registry; here the fixture that starts a container stops it.
testcontainers_config.ryuk_disabled = True

START: Final = Path(__file__).parents[2] / "deploy" / "kafka" / "start.sh"
KAFKA_IMAGE: Final = os.environ.get("YARD_UP_KAFKA_IMAGE", f"apache/kafka:{KAFKA_VERSION}")
REDIS_IMAGE: Final = os.environ.get("YARD_UP_REDIS_IMAGE", "redis:8")
#: An image with `sh`, for tests of the executor of containers.
CONTAINER_IMAGE: Final = os.environ.get("YARD_UP_BASE", "yardmaster-base:ci")
#: The socket of the engine that the tests use, as for the command `docker`.
ENGINE_SOCKET: Final = Path(
    os.environ.get("DOCKER_HOST", "").removeprefix("unix://") or "/var/run/docker.sock"
)
START_LIMIT_S: Final = 120
IN_CI: Final = os.environ.get("CI") == "true"


class LoopbackContainer(DockerContainer):
    """A container that only this machine reaches; its exit removes it."""

    def __init__(self, image: str, container_port: int, ready: str) -> None:
        super().__init__(image)
        # Kafka advertises the address to clients, so it is chosen before the container starts.
        self.port = free_ports(1)[0]
        self.ports[str(container_port)] = (HOST, self.port)  # type: ignore[assignment]
        self.waiting_for(LogMessageWaitStrategy(ready).with_startup_timeout(START_LIMIT_S))

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise


class KafkaContainer(LoopbackContainer):
    """A broker from an image with the plain Apache layout, reached at `bootstrap`.

    Its data is deleted with it.
    """

    def __init__(self, image: str = KAFKA_IMAGE) -> None:
        super().__init__(image, 9092, "Kafka Server started")
        self.with_volume_mapping(str(START), "/etc/yardmaster/start.sh", "ro")
        self.with_envs(
            KAFKA_INSIDE="localhost:9292",
            KAFKA_OUTSIDE=self.bootstrap,
            KAFKA_HEAP_OPTS="-Xmx512m",
            KAFKA_JVM_PERFORMANCE_OPTS="-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
            LOG_DIR="/tmp",
            KAFKA_OPEN_TO_ALL="1",
        )
        self.with_command(["sh", "/etc/yardmaster/start.sh"])

    @property
    def bootstrap(self) -> str:
        """host:port for clients."""
        return f"{HOST}:{self.port}"


class RedisContainer(LoopbackContainer):
    """Redis at `url`, without a password and without persistence."""

    password: Final = None

    def __init__(self, image: str = REDIS_IMAGE) -> None:
        super().__init__(image, 6379, "Ready to accept connections")
        self.with_command(["redis-server", "--protected-mode", "no", "--save", ""])

    @property
    def url(self) -> str:
        """The URL for clients."""
        return f"redis://{HOST}:{self.port}/0"


def remove_containers(folder: Path) -> None:
    """Remove the containers of all agents whose data directories are below a folder."""
    client = docker.from_env()
    try:
        labelled = {"label": FOLDER_LABEL}
        for each in client.containers.list(all=True, sparse=True, filters=labelled):
            if Path(each.attrs["Labels"][FOLDER_LABEL]).is_relative_to(folder):
                each.remove(force=True)
    finally:
        client.close()
        collect_half_open()


@contextmanager
def pulled(image: str) -> Iterator[None]:
    """Where the machine lacks an image that a page names, `CONTAINER_IMAGE` gets its name.

    Skips the test on a machine without `CONTAINER_IMAGE`; in CI it fails.
    """
    if not is_there(CONTAINER_IMAGE):
        pytest.skip(f"Docker has no image {CONTAINER_IMAGE}")
    client = docker.from_env()
    named = bool(client.images.list(name=image))
    try:
        if not named:
            client.images.get(CONTAINER_IMAGE).tag(image)
        yield
    finally:
        if not named:
            client.images.remove(image, noprune=True)
        client.close()
        collect_half_open()


@cache
def is_there(image: str) -> bool:
    """Whether this machine can run containers of the image; in CI it must."""
    try:
        client = docker.from_env()
        try:
            client.images.get(image)
        finally:
            client.close()
    except ImageNotFound:
        found = f"Docker has no image {image}"
    except DockerException as error:
        found = f"Docker does not answer: {error}"
    else:
        return True
    collect_half_open()
    if IN_CI:
        pytest.fail(f"{found}; .ci/run starts Docker and builds the images")
    return False
