"""Kafka's jars: what a start says about their download, and a proxy that opens TLS."""

import http.server
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import jgo
import pytest

from tests.support.redis_views import authority
from yardmaster_localcluster import background, broker
from yardmaster_localcluster.background import BackgroundCluster
from yardmaster_localcluster.errors import DownloadFailed
from yardmaster_localcluster.layout import DataLayout


@pytest.fixture
def repository(tmp_path: Path) -> Iterator[str]:
    """The URL of a server whose certificate nothing trusts, as behind a proxy that opens TLS."""
    files = authority(tmp_path / "tls")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certfile, files.keyfile)
    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler
    ) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"https://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def test_behind_a_proxy_that_opens_tls_the_error_names_the_variable(
    repository: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(variable, str(tmp_path))
    for variable in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "HTTPS_PROXY", "https_proxy"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(jgo, "MAVEN_CENTRAL_URL", repository)
    with pytest.raises(DownloadFailed, match="SSLError") as failed:
        broker.classpath.__wrapped__()
    assert "REQUESTS_CA_BUNDLE" in (failed.value.hint or "")


def test_a_download_is_announced_only_when_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    said: list[str] = []
    reported = threading.Event()

    def progress(line: str) -> None:
        said.append(line)
        if "since" in line:
            reported.set()

    cluster = BackgroundCluster(DataLayout(tmp_path / "up"), progress, report_s=0.01)
    monkeypatch.setattr(background, "classpath", lambda: reported.wait(30))
    cluster._fetch()
    assert said[0] == "downloading Kafka (54 MB); later starts use this copy"
    assert said[1].startswith("downloading Kafka since ")

    jar = tmp_path / "yardmaster/jgo/envs/org/modules" / f"kafka_2.13-{broker.KAFKA_VERSION}.jar"
    jar.parent.mkdir(parents=True)
    jar.touch()
    said.clear()
    cluster._fetch()
    assert said == []
