"""Exit with 0 if the process of this container is ready: the health check of the images."""

import os
import socket

with socket.create_connection(("127.0.0.1", int(os.environ["YARD_HEALTH_PORT"])), timeout=2) as to:
    to.sendall(b"GET /readyz HTTP/1.0\r\nhost: localhost\r\n\r\n")
    status = to.recv(64).split(b" ")[1]
raise SystemExit(status != b"200")
