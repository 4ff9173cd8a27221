"""Digests of nodes' public keys, from the two forms in which people have them."""

import base64
from hashlib import sha256
from pathlib import Path

import pytest

from yardmaster_cli.errors import CliError
from yardmaster_cli.node_keys import key_digest

RAW = bytes(range(32))
DER = bytes.fromhex("302a300506032b6570032100") + RAW
PEM = f"-----BEGIN PUBLIC KEY-----\n{base64.b64encode(DER).decode()}\n-----END PUBLIC KEY-----\n"
BLOB = b"\0\0\0\x0bssh-ed25519\0\0\0\x20" + RAW
SSH = f"ssh-ed25519 {base64.b64encode(BLOB).decode()} root@gpu-07\n"


@pytest.mark.parametrize("text", [PEM, SSH, PEM.replace("\n", "\r\n")], ids=["pem", "ssh", "crlf"])
def test_both_forms_of_a_key_have_one_digest(tmp_path: Path, text: str) -> None:
    path = tmp_path / "key.pub"
    path.write_text(text)
    assert key_digest(path) == sha256(DER).hexdigest()


def test_a_private_key_is_refused_without_being_shown(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIsecret\n")
    with pytest.raises(CliError, match="is a private key; enroll the public key") as raised:
        key_digest(path)
    assert "secret" not in "\n".join(raised.value.lines())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello",
        "ssh-rsa AAAAB3NzaC1yc2E=",
        "ssh-ed25519 AAAA",
        "ssh-ed25519 A",
        PEM.replace("MCow", "MDow"),
        PEM + "x" * 20_000,
        "-----BEGIN PUBLIC KEY-----\n!!!\n-----END PUBLIC KEY-----",
    ],
)
def test_what_is_no_ed25519_key_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "key"
    path.write_text(text)
    with pytest.raises(CliError, match="no Ed25519 public key"):
        key_digest(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CliError, match=r"nowhere\.pub"):
        key_digest(tmp_path / "nowhere.pub")
