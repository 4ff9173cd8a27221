"""Public keys of nodes from files: PEM (`openssl pkey -pubout`) or OpenSSH (`id_ed25519.pub`).

An enrollment contains the digest of a key: SHA-256 of its SubjectPublicKeyInfo in DER, 64 hex
digits.
"""

import base64
import binascii
import re
from hashlib import sha256
from pathlib import Path
from typing import Final

from yardmaster_cli.errors import BadUsage

#: A larger file is not a public key.
MAX_BYTES: Final = 16 * 1024
_PEM: Final = re.compile(r"-----BEGIN PUBLIC KEY-----(.*?)-----END PUBLIC KEY-----", re.DOTALL)
_OPENSSH: Final = re.compile(r"ssh-ed25519 ([A-Za-z0-9+/=]+)")
#: The bytes before the 32 bytes of an Ed25519 key (RFC 8410), in DER and in OpenSSH's format.
_DER_PREFIX: Final = bytes.fromhex("302a300506032b6570032100")
_SSH_PREFIX: Final = b"\x00\x00\x00\x0bssh-ed25519\x00\x00\x00\x20"


def key_digest(path: Path) -> str:
    """The digest of the Ed25519 public key in a file.

    Raises:
        BadUsage: the file contains none.
    """
    try:
        content = path.read_bytes()[: MAX_BYTES + 1]
    except OSError as error:
        raise BadUsage(f"--key {path}: {error.strerror}") from None
    text = content.decode("ascii", "replace")
    if "PRIVATE KEY" in text:
        raise BadUsage(
            f"--key {path} is a private key; enroll the public key",
            hint=f"print it with: openssl pkey -in {path} -pubout",
        )
    der = _der(text)
    if len(content) > MAX_BYTES or len(der) != 44 or not der.startswith(_DER_PREFIX):
        raise BadUsage(
            f"--key {path} contains no Ed25519 public key",
            hint="give a PEM file, or an OpenSSH file that starts with: ssh-ed25519 AAAA",
        )
    return sha256(der).hexdigest()


def _der(text: str) -> bytes:
    pem, ssh = _PEM.search(text), _OPENSSH.match(text)
    try:
        if pem is not None:
            return base64.b64decode("".join(pem[1].split()), validate=True)
        if ssh is not None:
            raw = base64.b64decode(ssh[1], validate=True)
            return _DER_PREFIX + raw.removeprefix(_SSH_PREFIX)
    except binascii.Error:
        pass
    return b""
