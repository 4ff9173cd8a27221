"""A network namespace for one test: a loopback interface on which every port is free.

Commands that use the default ports of `yard up` and `yard dev` run in one, so that they conflict
neither with other tests nor with a cluster on this machine. Root may create one; other users may
where the kernel allows user namespaces.
"""

import fcntl
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Final, Self

_SIOCGIFFLAGS: Final = 0x8913
_SIOCSIFFLAGS: Final = 0x8914
_IFF_UP: Final = 1
LIMIT_S: Final = 30
#: A user who is not root becomes the root of a user namespace, which has the network one.
_USER: Final = () if os.getuid() == 0 else ("--user", "--map-root-user")
_JOIN_USER: Final = () if os.getuid() == 0 else ("--user", "--preserve-credentials")


class Network:
    """A network namespace that lives as long as the context; `prefix` runs a command in it."""

    def __enter__(self) -> Self:
        self._holder = _holder()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._holder.send_signal(signal.SIGKILL)
        self._holder.communicate(timeout=LIMIT_S)

    @property
    def prefix(self) -> list[str]:
        """The command prefix that runs a command in this network."""
        words = ["nsenter", "--target", str(self._holder.pid), "--net", *_JOIN_USER]
        return [*words, "--"]


class SharedNetwork(Network):
    """The network of the machine, where namespaces are forbidden: tests must run one at a time."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return

    @property
    def prefix(self) -> list[str]:
        """No prefix."""
        return []


def own_network() -> Network:
    """A new network where the machine allows it, else the network of the machine."""
    return Network() if allowed() else SharedNetwork()


@cache
def allowed() -> bool:
    """Whether this user may make a network namespace here."""
    if shutil.which("unshare") is None or shutil.which("nsenter") is None:
        return False
    try:
        with Network() as network:
            done = subprocess.run(
                [*network.prefix, "true"], capture_output=True, timeout=LIMIT_S, check=False
            )
    except (OSError, AssertionError):
        return False
    return done.returncode == 0


def _holder() -> subprocess.Popen[str]:
    """A process in a new namespace whose loopback is up; it waits for its end."""
    process = subprocess.Popen(
        ["unshare", "--net", *_USER, "--", sys.executable, "-m", __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert process.stdout is not None
    if process.stdout.readline() != "up\n":
        _, said = process.communicate(timeout=LIMIT_S)
        raise AssertionError(f"no network namespace: {said}")
    return process


def _loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack("16sH14s", b"lo", 0, b"")
        found = fcntl.ioctl(control, _SIOCGIFFLAGS, request)
        (flags,) = struct.unpack("16xH14x", found)
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sH14s", b"lo", flags | _IFF_UP, b""))


if __name__ == "__main__":
    _loopback_up()
    print("up", flush=True)
    # The end of stdin means that the parent process is gone.
    sys.stdin.read()
