# ruff: noqa: TID251  (a user's program may use the machine directly)
"""A tiny neural network in plain Python, with checkpoints. The other examples train it.

Two inputs, one hidden layer, one output; it learns to which of two half moons a point belongs.
"""

import json
import math
import os
import random
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import quote, unquote, urlparse

Point = tuple[float, float, int]


@dataclass
class Net:
    """The weights: one row (two weights, bias) per hidden unit, and those of the output."""

    hidden: list[list[float]]
    output: list[float]

    @classmethod
    def fresh(cls, size: int, seed: int) -> "Net":
        """A network with random weights."""
        rng = random.Random(seed)
        hidden = [[rng.uniform(-1, 1) for _ in range(3)] for _ in range(size)]
        return cls(hidden, [rng.uniform(-1, 1) for _ in range(size + 1)])

    def gradient(self, points: list[Point]) -> tuple[float, list[float]]:
        """The mean loss over the points, and its slope for each weight: hidden, then output."""
        slopes = [[0.0] * 3 for _ in self.hidden]
        out_slopes = [0.0] * len(self.output)
        loss = 0.0
        for x, y, label in points:
            acts = [math.tanh(row[0] * x + row[1] * y + row[2]) for row in self.hidden]
            score = self.output[-1] + sum(w * a for w, a in zip(self.output, acts, strict=False))
            guess = 1 / (1 + math.exp(-max(-30.0, min(30.0, score))))
            loss -= math.log(max(1e-12, guess if label else 1 - guess))
            error = guess - label
            out_slopes[-1] += error
            for i, act in enumerate(acts):
                out_slopes[i] += error * act
                back = error * self.output[i] * (1 - act * act)
                slopes[i][0] += back * x
                slopes[i][1] += back * y
                slopes[i][2] += back
        flat = [value for row in slopes for value in row] + out_slopes
        return loss / len(points), [value / len(points) for value in flat]

    def step(self, slopes: list[float], rate: float) -> None:
        """Move each weight against its slope."""
        at = 0
        for row in self.hidden:
            for i in range(3):
                row[i] -= rate * slopes[at]
                at += 1
        for i in range(len(self.output)):
            self.output[i] -= rate * slopes[at]
            at += 1


def moons(count: int, seed: int) -> list[Point]:
    """`count` points of two interleaving half moons."""
    rng = random.Random(seed)
    points: list[Point] = []
    for i in range(count):
        angle = rng.uniform(0, math.pi)
        x, y = math.cos(angle), math.sin(angle)
        if i % 2:
            x, y = 1 - x, 0.5 - y
        points.append((x + rng.gauss(0, 0.1), y + rng.gauss(0, 0.1), i % 2))
    return points


def save(net: Net, step: int, folder: Path) -> str:
    """Write a checkpoint and return its URI. Because of the rename, the file is always complete."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step-{step:06d}.json"
    part = path.with_suffix(".part")
    with open(part, "w") as file:
        json.dump({"step": step, "net": asdict(net)}, file)
        file.flush()
        os.fsync(file.fileno())
    part.rename(path)
    return "file://" + quote(str(path.resolve()))


def load(uri: str) -> tuple[Net, int]:
    """The network of a checkpoint, and the step after which it was saved."""
    with open(unquote(urlparse(uri).path)) as file:
        found = json.load(file)
    return Net(**found["net"]), found["step"]
