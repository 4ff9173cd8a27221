"""A git server over https: git's own `http-backend`, with a certificate of a test authority."""

import os
import ssl
import subprocess
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

from tests.support.secure_broker import Authority

HOST: Final = "127.0.0.1"
#: Answers of the server by the first part of the path.
STATUS: Final = {"private": 401, "broken": 500, "moved": 302, "forbidden": 403}
#: With the right login, the first part gives repositories, and the second the login in an error.
PRIVATE, ECHOING = "private", "echoing"


class Repository:
    """A repository `NAME.git` of a server's folder."""

    def __init__(self, root: Path, name: str = "code") -> None:
        self.path = root / f"{name}.git"
        self.path.mkdir(parents=True)
        self.git("init", "--quiet", "--bare", ".")

    def git(self, *words: str, stdin: bytes = b"") -> str:
        who = {
            f"GIT_{one}_{what}": "a@b"
            for one in ("AUTHOR", "COMMITTER")
            for what in ("NAME", "EMAIL")
        }
        done = subprocess.run(
            ["git", *words],
            cwd=self.path,
            env={**os.environ, **who, "GIT_CONFIG_GLOBAL": "/dev/null"},
            input=stdin,
            check=True,
            capture_output=True,
        )
        return done.stdout.decode().strip()

    def blob(self, content: bytes) -> str:
        return self.git("hash-object", "-w", "--stdin", stdin=content)

    def tree(self, *entries: tuple[str, str, str]) -> str:
        """A tree of entries (mode, id, name), unchecked."""
        kinds = {"040000": "tree", "160000": "commit"}
        lines = [f"{mode} {kinds.get(mode, 'blob')} {id_}\t{name}" for mode, id_, name in entries]
        return self.git("mktree", "--missing", stdin="".join(f"{one}\n" for one in lines).encode())

    def commit(self, *entries: tuple[str, str, str]) -> str:
        made = self.git("commit-tree", "-m", "a", self.tree(*entries))
        self.git("update-ref", "refs/heads/main", made)
        return made

    def files(self, **files: bytes) -> str:
        return self.commit(*(("100644", self.blob(data), name) for name, data in files.items()))


@contextmanager
def serving(
    root: Path,
    authority: Authority,
    login: str | None = None,
    meanwhile: Callable[[], object] = lambda: None,
) -> Iterator[tuple[str, list[str]]]:
    """Serve the repositories of a folder; yield the address and the paths of the requests.

    `login` (USER:PASSWORD) is for the private ones; `meanwhile` runs in each request with it.
    """
    asked: list[str] = []
    right = None if login is None else f"Basic {b64encode(login.encode()).decode()}"

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            path, _, query = self.path.partition("?")
            first = path.split("/")[1]
            status = STATUS.get(first)
            if login is not None and self.headers.get("Authorization") == right:
                meanwhile()
                status = None if first == PRIVATE else status
                if first == ECHOING:
                    split = f"{login[:-3]}\x01{login[-3:]}"
                    self.answer_with_error(f"{self.headers['Authorization']} {login} {split}")
                    return
            elif first == ECHOING:
                status = 401
            if status is not None:
                self.send_response(status)
                self.send_header("WWW-Authenticate", 'Basic realm="git"')
                self.send_header("Location", self.path.replace("/moved", "", 1))
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            cgi = {
                "GIT_PROJECT_ROOT": str(root),
                "GIT_HTTP_EXPORT_ALL": "1",
                "PATH_INFO": path,
                "QUERY_STRING": query,
                "REQUEST_METHOD": self.command,
                "CONTENT_TYPE": self.headers.get("Content-Type", ""),
                "CONTENT_LENGTH": str(len(body)),
                "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
                "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            }
            done = subprocess.run(
                ["git", "http-backend"], env={**os.environ, **cgi}, input=body, capture_output=True
            )
            head, _, content = done.stdout.partition(b"\r\n\r\n")
            fields = dict(line.split(": ", 1) for line in head.decode().splitlines())
            self.send_response(int(fields.pop("Status", "200").split()[0]))
            for name, value in fields.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def answer_with_error(self, text: str) -> None:
            def line(content: str) -> str:
                return f"{len(content) + 4:04x}{content}"

            service = line("# service=git-upload-pack\n")
            body = f"{service}0000{line('ERR ' + text)}".encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/x-git-upload-pack-advertisement")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer((HOST, 0), Handler)
    leaf = authority.leaf("git")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(leaf.certificate, leaf.key)
    server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"{HOST}:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
