"""A broker that refuses clients without TLS and a password or certificate; for tests."""

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tests.support.kafka_broker import KafkaBroker
from yardmaster_eventlog.kafka.settings import KafkaSettings
from yardmaster_localcluster.ports import HOST, free_ports

USER: Final = "yard"
PASSWORD: Final = "correct-horse-battery"
MECHANISMS: Final = ("SCRAM-SHA-512", "SCRAM-SHA-256")
_SCRAM: Final = "org.apache.kafka.common.security.scram.ScramLoginModule required;"


@dataclass(frozen=True)
class Leaf:
    """A certificate and its key, in files: `pem` has both, the key unencrypted."""

    certificate: Path
    key: Path
    pem: Path


class Authority:
    """Signs certificates; `ca` is the file for clients that trust it."""

    def __init__(self, directory: Path, name: str = "test authority") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._certificate = self._sign(self._name, self._key.public_key(), [], is_ca=True)
        self.ca = directory / "ca.pem"
        self.ca.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def leaf(self, name: str, *, password: str | None = None) -> Leaf:
        """A certificate for 127.0.0.1 (no other name, so `localhost` is a wrong one)."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        names = [x509.IPAddress(ipaddress.ip_address(HOST))]
        certificate = self._sign(subject, key.public_key(), names).public_bytes(
            serialization.Encoding.PEM
        )
        leaf = Leaf(*(self._directory / f"{name}.{what}" for what in ("crt", "key", "pem")))
        leaf.certificate.write_bytes(certificate)
        leaf.key.touch(mode=0o600)
        leaf.key.write_bytes(_pem(key, password))
        leaf.pem.write_bytes(_pem(key, None) + certificate)
        return leaf

    def _sign(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePublicKey,
        names: list[x509.IPAddress],
        *,
        is_ca: bool = False,
    ) -> x509.Certificate:
        now = datetime.now(UTC)
        own = self._key.public_key()
        uses = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(own), critical=False)
        )
        if is_ca:
            sign_only = dict.fromkeys(
                (
                    "digital_signature",
                    "content_commitment",
                    "key_encipherment",
                    "data_encipherment",
                    "key_agreement",
                    "encipher_only",
                    "decipher_only",
                ),
                False,
            )
            usage = x509.KeyUsage(key_cert_sign=True, crl_sign=True, **sign_only)
            builder = builder.add_extension(usage, critical=True)
        else:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
            builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        return builder.sign(self._key, hashes.SHA256())


def _pem(key: ec.EllipticCurvePrivateKey, password: str | None) -> bytes:
    encryption = (
        serialization.NoEncryption()
        if password is None
        else serialization.BestAvailableEncryption(password.encode())
    )
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption
    )


class SecureBroker(KafkaBroker):
    """Listeners: plaintext (for the broker itself), `secure` and `mutual`.

    `secure` is SASL_SSL with SCRAM for USER; `mutual` is SSL and requires a certificate of the
    authority.
    """

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.authority = Authority(directory / "tls")
        self._leaf = self.authority.leaf("broker")
        self._ports = (0, 0)

    @property
    def secure(self) -> str:
        """host:port for clients with a password."""
        return f"{HOST}:{self._ports[0]}"

    @property
    def mutual(self) -> str:
        """host:port for clients with a certificate."""
        return f"{HOST}:{self._ports[1]}"

    def settings(self, mechanism: str = MECHANISMS[0], password: str = PASSWORD) -> KafkaSettings:
        """The settings of a client with a password."""
        return KafkaSettings(
            bootstrap=self.secure,
            security_protocol="SASL_SSL",
            ssl_cafile=str(self.authority.ca),
            sasl_mechanism=mechanism,
            sasl_username=USER,
            sasl_password=password,
        )

    def format_extra(self) -> list[str]:
        """The user, in both mechanisms."""
        user = f"[name={USER},password={PASSWORD}]"
        return [word for each in MECHANISMS for word in ("--add-scram", f"{each}={user}")]

    def _write(self, controller: int) -> None:
        first, second = free_ports(2)
        self._ports = (first, second)
        own = f"PLAINTEXT://{HOST}:{self._port}"
        others = f"SECURE://{self.secure},MUTUAL://{self.mutual}"
        scram = {
            f"listener.name.secure.{each.lower()}.sasl.jaas.config": _SCRAM for each in MECHANISMS
        }
        self._settings |= {
            "listeners": f"{own},{others},CONTROLLER://{HOST}:{controller}",
            "advertised.listeners": f"{own},{others}",
            "listener.security.protocol.map": (
                "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURE:SASL_SSL,MUTUAL:SSL"
            ),
            "inter.broker.listener.name": "PLAINTEXT",
            "sasl.enabled.mechanisms": ",".join(MECHANISMS),
            "ssl.enabled.protocols": "TLSv1.3",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self._leaf.pem),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority.ca),
            "listener.name.mutual.ssl.client.auth": "required",
            **scram,
        }
        super()._write(controller)
