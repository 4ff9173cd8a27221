"""Kafka over TLS: access with a password or a certificate, and the errors of refused clients."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from tests.contract.conftest import topic
from tests.support.redis_server import RedisServer
from tests.support.secure_broker import PASSWORD, USER, Authority, SecureBroker
from yardmaster_cli.log.first_records import Site, set_up
from yardmaster_eventlog.errors import LogAccessRefused, LogError, LogNotTrusted, TlsUnusable
from yardmaster_eventlog.kafka.log import KafkaLog
from yardmaster_eventlog.kafka.membership import KafkaMembership
from yardmaster_eventlog.kafka.settings import KafkaSettings
from yardmaster_eventlog.port import Partition, Record
from yardmaster_localcluster.plan import MODULES
from yardmaster_runtime.chance import SystemChance
from yardmaster_runtime.clock import SystemClock
from yardmaster_schemas.events.requests import LogMode

pytestmark = [pytest.mark.kafka, pytest.mark.xdist_group("kafka_tls")]

WRONG = "wrong-horse-battery"
SOON_S = 5.0
CELL = "main"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBroker]:
    with SecureBroker(tmp_path_factory.mktemp("secure")) as broker:
        yield broker


async def refused(settings: KafkaSettings) -> LogError:
    """Return the error of a refused client; check that it comes soon and hides the password."""
    started = time.monotonic()
    with pytest.raises(LogError) as caught:
        await KafkaLog.open(settings, SystemClock())
    assert time.monotonic() - started < SOON_S
    said = f"{caught.value} {caught.value!r} {caught.value.fields}"
    assert PASSWORD not in said
    assert WRONG not in said
    return caught.value


async def works(settings: KafkaSettings) -> None:
    """Check the main operations of the port: create topics, append, read, wait."""
    writer = await KafkaLog.open(settings, SystemClock())
    reader = await KafkaLog.open(settings, SystemClock())
    try:
        new = topic("secure")
        at = Partition(new.name)
        await writer.create_topics([new])
        records = [Record(b"k", f"{number}".encode()) for number in range(3)]
        assert await writer.append(at, records) == 0
        assert [one.record for one in await reader.read(at, 0)] == records
        assert await reader.end(at) == 3
        async with asyncio.TaskGroup() as group:
            woken = group.create_task(reader.wait({at: 3}, 10))
            await asyncio.sleep(0.2)
            await writer.append(at, records)
        assert woken.result()
        assert len(await reader.read(at, 3)) == 3
    finally:
        await writer.close()
        await reader.close()


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "SCRAM-SHA-256"])
async def test_a_client_with_the_password_is_accepted(broker: SecureBroker, mechanism: str) -> None:
    await works(broker.settings(mechanism))


async def test_a_client_with_a_certificate_and_an_encrypted_key_is_accepted(
    broker: SecureBroker,
) -> None:
    leaf = broker.authority.leaf("client", password=PASSWORD)
    await works(mutual(broker, str(leaf.certificate), str(leaf.key)))


def mutual(broker: SecureBroker, certificate: str, key: str) -> KafkaSettings:
    return KafkaSettings(
        bootstrap=broker.mutual,
        security_protocol="SSL",
        ssl_cafile=str(broker.authority.ca),
        ssl_certfile=certificate,
        ssl_keyfile=key,
        ssl_key_password=PASSWORD,
    )


@pytest.mark.parametrize("password", [PASSWORD, WRONG])
async def test_a_group_is_joined_with_the_same_settings(
    broker: SecureBroker, password: str
) -> None:
    own, statuses = topic("group"), asyncio.Queue[str | None]()
    log = await KafkaLog.open(broker.settings(), SystemClock())
    await log.create_topics([own])
    await log.close()
    member = KafkaMembership(
        *(broker.settings(password=password), own.name, own.name, SystemClock()),
        on_status=statuses.put_nowait,
    )
    member.offer(0)
    try:
        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            waiting = group.create_task(member.changed(member.assigned))
            reason = await statuses.get()
            assert (reason is None) == (password == PASSWORD)
            assert PASSWORD not in str(reason)
            assert WRONG not in str(reason)
            assert (0 in member.assigned.partitions) == (reason is None)
            waiting.cancel()
    finally:
        await member.close()


async def test_a_wrong_password_is_a_named_error_with_a_hint(
    broker: SecureBroker,
) -> None:
    error = await refused(broker.settings(password=WRONG))
    assert type(error) is LogAccessRefused
    assert "YARD_KAFKA__SASL_USERNAME" in str(error)
    assert "SCRAM-SHA-512" in str(error)


async def test_a_mechanism_that_the_broker_lacks_is_a_named_error(
    broker: SecureBroker,
) -> None:
    error = await refused(broker.settings("PLAIN"))
    assert type(error) is LogAccessRefused


async def test_a_broker_of_an_unknown_authority_is_not_trusted(
    broker: SecureBroker, tmp_path: Path
) -> None:
    other = Authority(tmp_path, "another authority")
    error = await refused(replace(broker.settings(), ssl_cafile=str(other.ca)))
    assert type(error) is LogNotTrusted
    assert "YARD_KAFKA__SSL_CAFILE" in str(error)


async def test_a_broker_whose_certificate_lacks_its_host_name_is_not_trusted(
    broker: SecureBroker,
) -> None:
    named = broker.secure.replace("127.0.0.1", "localhost")
    error = await refused(replace(broker.settings(), bootstrap=named))
    assert type(error) is LogNotTrusted
    assert "localhost" in str(error)


async def test_a_key_file_that_all_users_may_read_is_refused(
    broker: SecureBroker, tmp_path: Path
) -> None:
    leaf = Authority(tmp_path).leaf("client", password=PASSWORD)
    leaf.key.chmod(0o644)
    error = await refused(mutual(broker, str(leaf.certificate), str(leaf.key)))
    assert type(error) is TlsUnusable
    assert "chmod" in str(error)


async def test_unusable_certificate_files_are_named(broker: SecureBroker, tmp_path: Path) -> None:
    leaf = broker.authority.leaf("another", password=WRONG)
    assert type(await refused(mutual(broker, str(leaf.certificate), str(leaf.key)))) is TlsUnusable
    gone = replace(broker.settings(), ssl_cafile=str(tmp_path / "gone.pem"))
    error = await refused(gone)
    assert type(error) is TlsUnusable
    assert "gone.pem" in str(error)


# --- services as processes ------------------------------------------------------------------------


def secret_file(folder: Path, secret: str = PASSWORD, mode: int = 0o600) -> Path:
    path = folder / "password"
    path.touch(mode=0o600)
    path.write_text(f"{secret}\n")
    path.chmod(mode)
    return path


def environment(broker: SecureBroker, folder: Path, password: Path) -> dict[str, str]:
    kafka = {
        "SECURITY_PROTOCOL": "SASL_SSL",
        "SSL_CAFILE": str(broker.authority.ca),
        "SASL_USERNAME": USER,
        "SASL_PASSWORD_FILE": str(password),
    }
    return {
        "PATH": os.environ["PATH"],
        "YARD_LOG": f"kafka://{broker.secure}",
        "YARD_DATA": str(folder / "data"),
        "YARD_CELLS": CELL,
        "YARD_HEALTH_PORT": "0",
        **{f"YARD_KAFKA__{name}": value for name, value in kafka.items()},
    }


class Service:
    """A service as a separate process; its output is in `said`."""

    def __init__(self, name: str, folder: Path, env: dict[str, str]) -> None:
        self._out = folder / f"{name}.out"
        with self._out.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", MODULES[name]],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=folder,
            )

    @property
    def said(self) -> str:
        return self._out.read_text()

    def health(self, path: str) -> httpx.Response | None:
        for line in self.said.splitlines():
            if '"event": "health"' in line:
                port = json.loads(line)["port"]
                with suppress(httpx.TransportError):
                    return httpx.get(f"http://127.0.0.1:{port}{path}", trust_env=False)
        return None

    def until_ready(self) -> None:
        deadline = time.monotonic() + 90
        while (answer := self.health("/readyz")) is None or answer.status_code != 200:
            assert self.process.poll() is None, self.said
            assert time.monotonic() < deadline, (answer and answer.text, self.said)
            time.sleep(0.1)

    def proc(self, name: str) -> str:
        return Path(f"/proc/{self.process.pid}/{name}").read_bytes().decode(errors="replace")

    def end(self) -> int:
        self.process.terminate()
        try:
            return self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise


async def test_services_connect_with_a_password_from_a_file_and_show_it_nowhere(
    broker: SecureBroker, redis_server: RedisServer, tmp_path: Path
) -> None:
    clock = SystemClock()
    log = await KafkaLog.open(broker.settings(), clock)
    try:
        site = Site(mode=LogMode.KAFKA, cells=(CELL,), actor="test")
        await set_up(log, clock, SystemChance(), site)
    finally:
        await log.close()
    env = environment(broker, tmp_path, secret_file(tmp_path)) | {
        "YARD_REDIS__URL": redis_server.url,
        "YARD_AGENT_NODE": "n1",
        "YARD_AGENT_DATA_DIR": str(tmp_path / "n1"),
        "YARD_AGENT_GPUS": "1",
        "YARD_GATEWAY_PORT": "0",
    }
    # Consumer groups and Faust use separate clients.
    names = ("quota", "scheduler", "views", "agent", "gateway")
    services = [Service(name, tmp_path, env) for name in names]
    try:
        for service in services:
            await asyncio.to_thread(service.until_ready)
            metrics = service.health("/metrics")
            assert metrics is not None
            shown = [service.proc("cmdline"), service.proc("comm"), service.proc("environ")]
            shown += [service.said, metrics.text]
            assert all(PASSWORD not in each for each in shown)
            assert "log_appends_total" in metrics.text
            assert "spans_exported" not in metrics.text
    finally:
        codes = [service.end() for service in services]
    assert codes == [0] * len(services)
    assert all(PASSWORD not in service.said for service in services)


@pytest.mark.parametrize(
    ("secret", "mode", "code"),
    [(WRONG, 0o600, "log_access_refused"), (PASSWORD, 0o644, "secret_unreadable")],
)
async def test_a_service_with_a_wrong_or_unprotected_secret_ends_with_a_named_error(
    broker: SecureBroker, tmp_path: Path, secret: str, mode: int, code: str
) -> None:
    env = environment(broker, tmp_path, secret_file(tmp_path, secret, mode))
    service = Service("quota", tmp_path, env)
    try:
        assert await asyncio.to_thread(service.process.wait, 30) == 100
    finally:
        service.process.kill()
        service.process.wait()
    assert f"error: {code}: " in service.said
    assert secret not in service.said
