"""A small HTTP server whose answers a test chooses."""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Answer:
    """One answer; a `body` that is no text is sent as JSON, `once` an event is set."""

    body: Any
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    once: threading.Event | None = None


#: How long an answer waits for its event, in seconds.
_LONGEST_S = 60


@dataclass
class Answers:
    """The server: its address, what it is asked and sent, its answers (the last one stays)."""

    url: str
    answers: list[Answer]
    asked: list[tuple[str, Mapping[str, str]]] = field(default_factory=list)
    #: The bodies of writes, by path.
    sent: list[tuple[str, Any]] = field(default_factory=list)


@contextmanager
def answering(*answers: Answer, choose: Callable[[str], Answer] | None = None) -> Iterator[Answers]:
    """A server that gives `answers` one after the other, or for each path what `choose` returns."""
    served = Answers("", list(answers))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            served.asked.append((self.path, dict(self.headers)))
            if choose is not None:
                answer = choose(self.path)
            else:
                answer = served.answers.pop(0) if len(served.answers) > 1 else served.answers[0]
            if answer.once is not None:
                answer.once.wait(_LONGEST_S)
            text = answer.body if isinstance(answer.body, str) else json.dumps(answer.body)
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.end_headers()
            with suppress(ConnectionError):  # a client that no longer waits
                self.wfile.write(text.encode())

        def do_PUT(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            served.sent.append((self.path, json.loads(body)))
            self.do_GET()

        def do_PATCH(self) -> None:
            self.do_PUT()

        def do_POST(self) -> None:
            self.do_PUT()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    served.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
