"""Views on a real Redis, for tests."""

import asyncio
import socket
import ssl
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.support.redis_server import RedisServer
from yardmaster_projections.redis.settings import RedisSettings

#: The database of the shared server that tests of the store may empty.
OWN: int = 9


def command(server: RedisServer, *lines: str) -> str:
    """Send inline commands; return the whole answer."""
    with socket.create_connection(("127.0.0.1", server.port), 5) as connection:
        if server.password is not None:
            lines = (f"AUTH {server.password}", *lines)
        connection.sendall("".join(f"{line}\r\n" for line in lines).encode())
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        while piece := connection.recv(65_536):
            answer += piece
    return answer.decode()


def own_database(server: RedisServer) -> RedisSettings:
    """An empty database of a shared server."""
    command(server, f"SELECT {OWN}", "FLUSHDB")
    return RedisSettings(url=f"redis://127.0.0.1:{server.port}/{OWN}", timeout_s=5)


@dataclass(frozen=True)
class Authority:
    """A certificate authority, and a server's certificate for 127.0.0.1 with its key."""

    cafile: Path
    certfile: Path
    keyfile: Path


def authority(directory: Path) -> Authority:
    """Create an authority and a server certificate that it signs."""
    directory.mkdir(parents=True)
    now = datetime.now(tz=UTC)
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
    names = [
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]) for name in ("tests", "redis")
    ]
    found = Authority(*(directory / name for name in ("ca.pem", "cert.pem", "key.pem")))
    for at, file in ((0, found.cafile), (1, found.certfile)):
        builder = (
            x509.CertificateBuilder()
            .subject_name(names[at])
            .issuer_name(names[0])
            .public_key(keys[at].public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(minutes=5))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=at == 0, path_length=None), critical=True)
        )
        if at:
            address = x509.IPAddress(ip_address("127.0.0.1"))
            builder = builder.add_extension(x509.SubjectAlternativeName([address]), critical=False)
        certificate = builder.sign(keys[0], hashes.SHA256())
        file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    found.keyfile.write_bytes(
        keys[1].private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return found


class TlsFront:
    """Terminates TLS for a server without TLS (the Redis of the wheel has none)."""

    def __init__(self, port: int, signed: Authority) -> None:
        self._behind = port
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(signed.certfile, signed.keyfile)
        self._server: asyncio.Server | None = None

    @property
    def port(self) -> int:
        """The port on which it listens."""
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def __aenter__(self) -> "TlsFront":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._behind)
        with suppress(OSError):
            async with asyncio.TaskGroup() as group:
                group.create_task(_pump(reader, back))
                group.create_task(_pump(there, writer))


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while piece := await reader.read(65_536):
            writer.write(piece)
            await writer.drain()
    writer.close()
