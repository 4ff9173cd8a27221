# ruff: noqa: TID251  (a user's program may use the machine directly)
"""Trains one network on several replicas at once, with the standard library only.

Each replica has its own share of the points. In every step, the replicas send their gradients to
rank 0 (MASTER_ADDR, MASTER_PORT), which answers with the mean, so all replicas have the same
weights. Rank 0 saves the checkpoints. It also decides for all replicas when to stop, so that no
replica waits for one that has exited.
"""

import argparse
import json
import os
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import TextIO

import tiny

import yardmaster

CONNECT_S = 30


class ReplicaGroup:
    """The connections of a gang's replicas to rank 0; a message is a line of JSON."""

    def __init__(self) -> None:
        self.rank = int(os.environ.get("RANK", "0"))
        self.size = int(os.environ.get("WORLD_SIZE", "1"))
        self._peers: list[TextIO] = []
        address = (
            os.environ.get("MASTER_ADDR", "127.0.0.1"),
            int(os.environ.get("MASTER_PORT", "0")),
        )
        if self.rank == 0 and self.size > 1:
            with socket.create_server(address, backlog=self.size) as server:
                server.settimeout(CONNECT_S)
                for _ in range(self.size - 1):
                    peer, _ = server.accept()
                    self._peers.append(peer.makefile("rw"))
        elif self.size > 1:
            self._peers.append(self._connect(address).makefile("rw"))

    def _connect(self, address: tuple[str, int]) -> socket.socket:
        deadline = time.monotonic() + CONNECT_S
        while True:
            try:
                return socket.create_connection(address, timeout=CONNECT_S)
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def mean(self, values: list[float], stop: bool) -> tuple[list[float], bool]:
        """The mean of the values of all replicas, and whether rank 0 wants to stop."""
        if self.rank != 0:
            self._send(self._peers[0], {"values": values})
            answer = json.loads(self._peers[0].readline())
            return answer["values"], answer["stop"]
        totals = list(values)
        for peer in self._peers:
            for i, value in enumerate(json.loads(peer.readline())["values"]):
                totals[i] += value
        means = [total / self.size for total in totals]
        for peer in self._peers:
            self._send(peer, {"values": means, "stop": stop})
        return means, stop

    @staticmethod
    def _send(peer: TextIO, message: dict[str, object]) -> None:
        peer.write(json.dumps(message) + "\n")
        peer.flush()


def main() -> int:
    """Train together until all steps are done or a stop is requested."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--rate", type=float, default=1.0)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--pause", type=float, default=0.1)
    parser.add_argument(
        "--out", type=Path, default=Path(tempfile.gettempdir()) / "yard-checkpoints"
    )
    args = parser.parse_args()
    group = ReplicaGroup()
    attempt = os.environ.get("YARD_ATTEMPT", "1")
    folder = args.out.resolve() / os.environ.get("YARD_TASK_ID", "local") / f"attempt-{attempt}"
    points = tiny.moons(60 * group.size, seed=7)[group.rank :: group.size]
    node = os.environ.get("YARD_NODE", "here")
    print(f"rank {group.rank} of {group.size} on {node}, {len(points)} points", flush=True)

    last = yardmaster.last_checkpoint()
    net, step = (tiny.Net.fresh(8, seed=7), 0) if last is None else tiny.load(last.uri)
    if last is not None:
        print(f"resumed from step {step} (attempt {attempt})", flush=True)
    while step < args.steps:
        loss, slopes = net.gradient(points)
        (mean_loss, *means), stop = group.mean([loss, *slopes], yardmaster.should_stop())
        net.step(means, args.rate)
        step += 1
        if group.rank == 0 and step % 5 == 0:
            print(f"step {step} loss {mean_loss:.4f} over {group.size} replicas", flush=True)
        if group.rank == 0 and (stop or step % args.every == 0 or step == args.steps):
            yardmaster.report_checkpoint(tiny.save(net, step, folder), step)
        if stop:
            print(f"stopped at step {step}, state saved", flush=True)
            return 0
        time.sleep(args.pause)
    yardmaster.done()
    print(f"finished after {step} steps: same weights on every replica", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
