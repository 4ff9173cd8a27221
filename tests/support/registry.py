"""A registry of container images on this machine: manifests and blobs of the distribution API.

Its images have a shell, whose files are those of `CONTAINER_IMAGE`. Engines pull from 127.0.0.1
without TLS. Switches of a `Registry` let it refuse, fail, or stop in the middle of a layer.
"""

import base64
import gzip
import hashlib
import io
import json
import re
import secrets
import tarfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

import docker
from docker.errors import APIError, ImageNotFound

from tests.support.containers import CONTAINER_IMAGE
from tests.support.half_open import collect_half_open

MANIFEST: Final = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG: Final = "application/vnd.docker.container.image.v1+json"
LAYER: Final = "application/vnd.docker.image.rootfs.diff.tar.gzip"
#: Bytes of a layer that are sent before the registry looks at its switches again.
PIECE_BYTES: Final = 16_384
_ROUTE: Final = re.compile(r"/v2/(?P<name>[a-z0-9/-]+)/(?P<kind>manifests|blobs)/(?P<ref>[^/]+)")
#: How long a handler waits for a test that failed.
_GIVE_UP_S: Final = 60


def digest_of(data: bytes) -> str:
    """The name under which a registry stores bytes."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


@cache
def _shell() -> dict[str, bytes]:
    """The files of a shell and its libraries in the image of the tests, by path."""
    client = docker.from_env()
    try:
        listed = client.containers.run(
            CONTAINER_IMAGE,
            entrypoint=["sh", "-c", "ldd /bin/sh | grep -o '/[^ ]*'"],
            network_mode="none",
            remove=True,
        )
        container = client.containers.create(CONTAINER_IMAGE, entrypoint=["sh"])
        try:
            paths = ["/bin/sh", *listed.decode().split()]
            return {path: _file(container, path) for path in paths}
        finally:
            container.remove()
    finally:
        client.close()
        collect_half_open()


def _file(container: Any, path: str) -> bytes:
    """The content of a file of a container, through all links."""
    chunks, _ = container.get_archive(path)
    with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as archive:
        (member,) = archive.getmembers()
        if not member.issym():
            found = archive.extractfile(member)
            assert found is not None
            return found.read()
    folder = path.rpartition("/")[0]
    target = member.linkname
    return _file(container, target if target.startswith("/") else f"{folder}/{target}")


def _layer(files: dict[str, bytes]) -> bytes:
    """A layer as a tar archive."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        for path, content in files.items():
            member = tarfile.TarInfo(path.lstrip("/"))
            member.size, member.mode = len(content), 0o755
            archive.addfile(member, io.BytesIO(content))
    return target.getvalue()


class Registry:
    """A running registry; `push` gives it images, and the attributes are its switches."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        #: The digest of each NAME:TAG.
        self.tags: dict[str, str] = {}
        #: The user and the password that it demands.
        self.login: tuple[str, str] | None = None
        #: The status and the error code of its answers to requests for manifests.
        self.failing: tuple[int, str] | None = None
        #: If set, each pull needs a release of it before it knows what a tag names.
        self.turns: threading.Semaphore | None = None
        #: Set while layers may be sent further than their first piece.
        self.flows = threading.Event()
        self.flows.set()
        #: Set when a layer has stopped for `flows`.
        self.stalled = threading.Event()
        #: One more piece of each stopped layer may be sent.
        self.one_piece = threading.Semaphore(0)
        #: The answered requests, as `GET manifests`.
        self.requests: Counter[str] = Counter()
        registry = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                registry.answer(self)

            def do_HEAD(self) -> None:
                registry.answer(self)

            def log_message(self, *_: object) -> None:
                """Print nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.host = f"127.0.0.1:{self._server.server_address[1]}"

    def push(self, name: str, *, filler_bytes: int = 4 * PIECE_BYTES, **config: Any) -> str:
        """Store an image of a shell under NAME:TAG, with a layer that no other one has.

        Return its digest.
        """
        layers = [_layer(_shell()), _layer({"/filler": secrets.token_bytes(filler_bytes)})]
        described = json.dumps(
            {
                "architecture": "amd64",
                "os": "linux",
                "config": {"Env": ["PATH=/bin"], **config},
                "rootfs": {"type": "layers", "diff_ids": [digest_of(each) for each in layers]},
            }
        ).encode()
        packed = [gzip.compress(each, compresslevel=1, mtime=0) for each in layers]
        manifest = json.dumps(
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST,
                "config": self._described(CONFIG, described),
                "layers": [self._described(LAYER, each) for each in packed],
            }
        ).encode()
        self.tags[name] = self._described(MANIFEST, manifest)["digest"]
        return self.tags[name]

    def _described(self, kind: str, data: bytes) -> dict[str, Any]:
        """Store bytes and return how a manifest names them."""
        digest = digest_of(data)
        self.blobs[digest] = data
        return {"mediaType": kind, "size": len(data), "digest": digest}

    def image(self, name: str) -> str:
        """The reference of an image, as a job names it."""
        return f"{self.host}/{name}"

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        """Answer a request of an engine."""
        found = _ROUTE.fullmatch(request.path)
        self.requests[f"{request.command} {found['kind'] if found else request.path}"] += 1
        if self.login is not None and not self._knows(request.headers.get("Authorization", "")):
            headers = {"WWW-Authenticate": 'Basic realm="registry"'}
            self._refuse(request, 401, "UNAUTHORIZED", headers)
        elif found is None:
            self._send(request, b"{}", "application/json")
        elif found["kind"] == "manifests":
            if self.turns is not None and request.command == "HEAD":
                self.turns.acquire(timeout=_GIVE_UP_S)
            digest = self.tags.get(f"{found['name']}:{found['ref']}", found["ref"])
            if self.failing is not None:
                self._refuse(request, *self.failing)
            elif digest not in self.blobs:
                self._refuse(request, 404, "MANIFEST_UNKNOWN")
            else:
                headers = {"Docker-Content-Digest": digest}
                self._send(request, self.blobs[digest], MANIFEST, headers)
        else:
            self._send(request, self.blobs[found["ref"]], "application/octet-stream")

    def _knows(self, authorization: str) -> bool:
        assert self.login is not None
        expected = base64.b64encode(":".join(self.login).encode()).decode()
        return authorization == f"Basic {expected}"

    def _refuse(
        self,
        request: BaseHTTPRequestHandler,
        status: int,
        code: str,
        headers: dict[str, str] | None = None,
    ) -> None:
        body = json.dumps({"errors": [{"code": code, "message": f"the test says {code}"}]})
        self._send(request, body.encode(), "application/json", headers, status=status)

    def _send(
        self,
        request: BaseHTTPRequestHandler,
        body: bytes,
        kind: str,
        headers: dict[str, str] | None = None,
        *,
        status: int = 200,
    ) -> None:
        request.send_response(status)
        request.send_header("Content-Type", kind)
        request.send_header("Content-Length", str(len(body)))
        for name, value in (headers or {}).items():
            request.send_header(name, value)
        request.end_headers()
        if request.command == "HEAD":
            return
        with suppress(ConnectionError):
            for at in range(0, len(body), PIECE_BYTES):
                if at and not self.flows.is_set():
                    self._stop_here()
                request.wfile.write(body[at : at + PIECE_BYTES])

    def _stop_here(self) -> None:
        """Wait until layers flow again, or one more piece is permitted."""
        self.stalled.set()
        for _ in range(_GIVE_UP_S * 10):
            if self.flows.is_set() or self.one_piece.acquire(timeout=0.1):
                return

    def run(self) -> None:
        """Serve until `close`."""
        self._server.serve_forever(poll_interval=0.05)

    def close(self) -> None:
        """Stop serving, and remove what an engine has pulled."""
        self.flows.set()
        self._server.shutdown()
        self._server.server_close()
        client = docker.from_env()
        # Without looking at each image: a test that runs at the same time may remove its own.
        for image in client.api.images():
            for name in (*(image["RepoTags"] or ()), *(image["RepoDigests"] or ())):
                if name.startswith(f"{self.host}/"):
                    with suppress(ImageNotFound, APIError):
                        client.images.remove(name, force=True)
        client.close()
        collect_half_open()


@contextmanager
def running_registry() -> Iterator[Registry]:
    """Run a registry in the block."""
    registry = Registry()
    serving = threading.Thread(target=registry.run)
    serving.start()
    try:
        yield registry
    finally:
        registry.close()
        serving.join()
