"""Uploading the folder of a job: once, whole, and never what no package may contain."""

import hashlib
import json
import zlib
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.packages import write_tree
from yardmaster.client import ApiError, Client
from yardmaster.errors import InputError

SUBMITTED = {"job_id": "a" * 12, "task_ids": ["a" * 12 + ".0"], "position": "main@r1"}


class Gateway:
    """Stores packages as a gateway does; `stored` are their contents by path."""

    def __init__(self, **refusals: httpx.Response) -> None:
        self.stored: dict[str, bytes] = {}
        self.jobs: list[Any] = []
        self.puts = 0
        #: Answers to the next uploads, before one is stored.
        self.refusals = list(refusals.values())

    def __call__(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        if path == "/v1/jobs":
            self.jobs.append(json.loads(request.content))
            return httpx.Response(202, json=SUBMITTED)
        if request.method == "GET":
            return self._shown(path) if path in self.stored else problem(404, "not_found")
        assert request.method == "PUT"
        self.puts += 1
        content = request.read()
        assert request.headers["Content-Length"] == str(len(content))
        assert "Transfer-Encoding" not in request.headers
        if self.refusals:
            return self.refusals.pop(0)
        tar = zlib.decompress(content, wbits=31)
        assert hashlib.sha256(tar).hexdigest() == path.rpartition("/")[2]
        self.stored[path] = content
        return self._shown(path, 201)

    def _shown(self, path: str, status: int = 200) -> httpx.Response:
        *_, project, digest = path.split("/")
        body = {
            **{"project": project, "digest": digest, "stored_at": "2026-01-01T00:00:00Z"},
            "packed_bytes": len(self.stored[path]),
        }
        return httpx.Response(status, json=body)

    def client(self, **more: Any) -> Client:
        transport = httpx.MockTransport(self)
        return Client("http://gateway:1/", "t", sleep=lambda _: None, transport=transport, **more)


def problem(status: int, code: str) -> httpx.Response:
    body = {"type": "x", "title": code, "status": status, "detail": f"it is {code}", "code": code}
    return httpx.Response(status, json=body)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_tree(tmp_path / "src", {"train.py": b"print()", "data/large.bin": b"0" * 5000})


def test_a_folder_is_uploaded_once_and_named_by_digest_and_stored_size(folder: Path) -> None:
    gateway = Gateway()
    client = gateway.client()
    sent: list[tuple[int, int]] = []
    first = client.upload_context(folder, project="nlp", on_sent=lambda *at: sent.append(at))
    (path,) = gateway.stored
    assert path == f"/v1/packages/nlp/{first.digest}"
    assert first.packed_bytes == len(gateway.stored[path])
    assert sent[-1] == (first.packed_bytes, first.packed_bytes)
    # Another version of zlib may have compressed the stored package.
    gateway.stored[path] += b"x"
    again = client.upload_context(folder, project="nlp", on_sent=lambda *at: sent.append(at))
    assert (again.digest, again.packed_bytes) == (first.digest, first.packed_bytes + 1)
    assert (gateway.puts, len(sent)) == (1, 1)


def test_a_job_that_names_a_folder_is_submitted_with_its_package(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = folder.parent / "job.yaml"
    job.write_text("run: {command: [a], context: src, working_dir: data}\n")
    run = {"command": ["a"], "context": "src", "working_dir": "data"}
    gateway = Gateway()
    client = gateway.client(project="nlp", shares_files=True)
    client.submit(job)
    monkeypatch.chdir(folder.parent)
    client.submit({"run": run})
    assert gateway.puts == 1
    assert gateway.jobs[0] == gateway.jobs[1]
    assert gateway.jobs[0]["run"]["working_dir"] == "data", "a folder in the context"
    assert gateway.jobs[0]["run"]["context"].keys() == {"digest", "packed_bytes"}


def test_an_upload_that_fails_is_sent_again_from_its_start(folder: Path) -> None:
    gateway = Gateway(first=problem(503, "packages_unavailable"), second=problem(502, "x"))
    context = gateway.client().upload_context(folder, project="nlp")
    assert gateway.puts == 3
    assert f"/v1/packages/nlp/{context.digest}" in gateway.stored


def test_a_folder_above_the_limit_of_the_gateway_names_its_largest_files(folder: Path) -> None:
    gateway = Gateway(first=problem(413, "too_large"))
    with pytest.raises(InputError) as caught:
        gateway.client().upload_context(folder, project="nlp")
    assert "more than the gateway accepts (it is too_large)" in caught.value.problem
    assert "The largest: data/large.bin (5000 bytes), train.py (7 bytes)" in caught.value.problem


def test_a_gateway_that_stores_no_packages_is_not_sent_one(folder: Path) -> None:
    class NoStore(Gateway):
        def __call__(self, request: httpx.Request) -> httpx.Response:
            return problem(501, "no_packages")

    gateway = NoStore()
    with pytest.raises(ApiError) as caught:
        gateway.client().upload_context(folder, project="nlp")
    assert caught.value.document["code"] == "no_packages"
    assert gateway.puts == 0


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({"link": "-> /etc/passwd"}, "link cannot be part of a package"),
        ({".yardignore": b"[z-a]"}, "Line 1 of"),
    ],
)
def test_a_folder_that_no_package_may_contain_is_refused(
    tmp_path: Path, files: dict[str, Any], found: str
) -> None:
    gateway = Gateway()
    write_tree(tmp_path / "bad", files)
    with pytest.raises(InputError, match=r"^run\.context: ") as caught:
        gateway.client().upload_context(tmp_path / "bad", project="nlp")
    assert found in caught.value.problem
    with pytest.raises(InputError, match="there is no folder"):
        gateway.client().upload_context(tmp_path / "missing", project="nlp")
    assert gateway.puts == 0
