"""Connections from kubeconfig files and from the files of a pod."""

import base64
import json
import subprocess
from pathlib import Path
from typing import Any

import certifi
import pytest

from yardmaster_kubernetes.configuration import from_kubeconfig, in_cluster
from yardmaster_kubernetes.errors import ConfigurationUnusable


def kubeconfig(folder: Path, user: dict[str, Any], **cluster: Any) -> Path:
    body = {
        "clusters": [{"name": "c", "cluster": {"server": "https://k.example.org/", **cluster}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "n"}}],
        "current-context": "x",
    }
    path = folder / "kubeconfig"
    path.write_text(json.dumps(body))
    return path


def test_a_token_and_an_authority_may_be_in_the_file(tmp_path: Path) -> None:
    authority = base64.b64encode(Path(certifi.where()).read_bytes()).decode()
    path = kubeconfig(tmp_path, {"token": "t"}, **{"certificate-authority-data": authority})
    found = from_kubeconfig(path)
    assert (found.server, found.read_token()) == ("https://k.example.org", "t")
    assert found.tls.get_ca_certs()


def test_paths_are_relative_to_the_file_and_a_token_file_is_read_each_time(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_bytes(Path(certifi.where()).read_bytes())
    (tmp_path / "token").write_text("first\n")
    user = {"token": "other", "tokenFile": "token"}
    found = from_kubeconfig(kubeconfig(tmp_path, user, **{"certificate-authority": "ca.pem"}), "x")
    assert found.read_token() == "first"
    (tmp_path / "token").write_text("second\n")
    assert found.read_token() == "second"


def test_a_client_certificate_may_be_in_the_file_or_next_to_it(tmp_path: Path) -> None:
    key = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "key.pem"]
    words = [*key, "-subj", "/CN=u", "-out", "cert.pem"]
    subprocess.run(words, cwd=tmp_path, check=True, capture_output=True)
    files = {"client-certificate": "cert.pem", "client-key": "key.pem"}
    data = {
        f"{name}-data": base64.b64encode((tmp_path / file).read_bytes()).decode()
        for name, file in files.items()
    }
    for user in (files, data):
        assert from_kubeconfig(kubeconfig(tmp_path, user)).read_token() == ""
    data["client-key-data"] = base64.b64encode(b"another").decode()
    with pytest.raises(ConfigurationUnusable, match="the client certificate: "):
        from_kubeconfig(kubeconfig(tmp_path, data))


@pytest.mark.parametrize(
    ("user", "cluster", "found"),
    [
        ({"exec": {"command": "aws"}}, {}, "users 'u' has exec, not supported"),
        ({"username": "a", "password": "b"}, {}, "has password, username, not supported"),
        ({}, {"insecure-skip-tls-verify": True}, "clusters 'c' has insecure-skip-tls-verify"),
        ({}, {"proxy-url": "http://p"}, "clusters 'c' has proxy-url, not supported"),
        ({}, {"server": "http://k"}, "'http://k' does not start with https://"),
        ({}, {"certificate-authority-data": "?"}, "certificate-authority-data: "),
        ({}, {"certificate-authority": "missing.pem"}, "No such file"),
        ({"client-certificate": "missing.pem"}, {}, "the client certificate: "),
    ],
)
def test_fields_that_cannot_be_used_are_refused_by_name(
    tmp_path: Path, user: dict[str, Any], cluster: dict[str, Any], found: str
) -> None:
    with pytest.raises(ConfigurationUnusable, match="cannot be used: ") as refused:
        from_kubeconfig(kubeconfig(tmp_path, user, **cluster))
    assert found in str(refused.value)


def test_a_context_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationUnusable, match="contexts has no 'y'"):
        from_kubeconfig(kubeconfig(tmp_path, {}), "y")
    with pytest.raises(ConfigurationUnusable, match="No such file"):
        from_kubeconfig(tmp_path / "missing")
    (tmp_path / "list").write_text("[]")
    with pytest.raises(ConfigurationUnusable, match="contexts has no ''"):
        from_kubeconfig(tmp_path / "list")


def test_a_pod_uses_the_files_of_its_service_account(tmp_path: Path) -> None:
    environment = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    with pytest.raises(ConfigurationUnusable, match="token cannot be used"):
        in_cluster(environment, tmp_path)
    (tmp_path / "token").write_text("t")
    (tmp_path / "ca.crt").write_bytes(Path(certifi.where()).read_bytes())
    found = in_cluster(environment, tmp_path)
    assert (found.server, found.read_token()) == ("https://[fd00::1]:443", "t")
    with pytest.raises(ConfigurationUnusable, match="KUBERNETES_SERVICE_HOST"):
        in_cluster({}, tmp_path)
