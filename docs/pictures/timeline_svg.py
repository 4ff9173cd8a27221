"""Draw the timeline of a log as SVG: the tasks on each GPU, and the pending tasks below.

    python -m docs.pictures.timeline_svg LOG.db PICTURE.svg

`make picture` runs the demo and draws its log. The same log gives the same picture. An attempt
holds its GPUs from its allocation until the node has released them. Tasks without GPUs have no bar,
and a part of a GPU is drawn like a whole one.
"""

import asyncio
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from docs.pictures.timeline import Bar, Cancellation, Job, Timeline, timeline_of
from yardmaster_cli.log.source import file_source, opened

#: Sizes in pixels.
WIDTH: Final = 900
LEFT: Final = 76
RIGHT: Final = 14
ROW: Final = 28
GAP: Final = 3
NODE_GAP: Final = 8
QUEUE: Final = 64
#: The mean width of a character of the small font.
CHARACTER: Final = 6.2
COLORS: Final = ("#2f6db5", "#b85a0b", "#2b7d4c", "#7a4bb0", "#b5315f", "#4d6470")
TICKS_S: Final = (1, 2, 5, 10, 30, 60, 300, 600, 3600)
STYLE: Final = """
text { font: 12px "Segoe UI", "Noto Sans", Helvetica, Arial, sans-serif; fill: #1f2328 }
.title { font-weight: 600; font-size: 14px }
.small { font-size: 11px; fill: #59636e }
.said { paint-order: stroke; stroke: #ffffff; stroke-width: 4 }
.on-bar { font-size: 11px; fill: #ffffff }
.paper { fill: #ffffff }
.row { fill: #f0f2f5 }
.grid { stroke: #d1d9e0; stroke-width: 1 }
.note { stroke: #59636e; stroke-width: 1; stroke-dasharray: 2 3 }
.part { fill: #ffffff; fill-opacity: .45 }
.checkpoint { fill: #ffffff; stroke: #1f2328; stroke-width: 1 }
.preempted { fill: #d1242f; stroke: #ffffff; stroke-width: 1 }
.resumed { fill: #ffffff }
@media (prefers-color-scheme: dark) {
text { fill: #f0f6fc }
.small { fill: #9198a1 }
.said { stroke: #0d1117 }
.on-bar { fill: #ffffff }
.paper { fill: #0d1117 }
.row { fill: #1a2029 }
.grid { stroke: #3d444d }
.note { stroke: #9198a1 }
.part { fill: #0d1117 }
.preempted { fill: #ff6a69 }
}
"""


class Picture:
    """The SVG of a timeline."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self.jobs = dict(sorted(timeline.jobs.items(), key=lambda item: item[1].submitted_ms))
        self.colors = {job: COLORS[i % len(COLORS)] for i, job in enumerate(self.jobs)}
        self.duration_ms = max(timeline.end_ms - timeline.start_ms, 1)
        self.svg = ET.Element("svg", {"xmlns": "http://www.w3.org/2000/svg", "role": "img"})
        self.y = 0.0
        self.row_y: dict[tuple[str, int], float] = {}

    def draw(self) -> str:
        """Draw everything, from top to bottom."""
        gpus, nodes = len(self.timeline.rows()), len(self.timeline.nodes)
        title = f"{gpus} GPUs on {nodes} nodes, {self.duration_ms / 1000:.0f} seconds"
        self._add("title", text=f"Timeline: {title}")
        self._add("style", text=STYLE)
        self._add("rect", {"class": "paper", "width": "100%", "height": "100%"})
        self._text(10, 22, title, "title")
        self.y = 34
        self._legend()
        self._notes_and_rows()
        self._axis()
        self._queue()
        self.svg.set("viewBox", f"0 0 {WIDTH} {self.y:.0f}")
        self.svg.set("width", str(WIDTH))
        self.svg.set("height", f"{self.y:.0f}")
        ET.indent(self.svg, "")
        return ET.tostring(self.svg, encoding="unicode") + "\n"

    # --- parts --------------------------------------------------------------------------------

    def _legend(self) -> None:
        x = 10.0
        for job_id, job in self.jobs.items():
            words = _described(job)
            width = 24 + CHARACTER * len(words)
            if x > 10 and x + width > WIDTH - RIGHT:
                x, self.y = 10.0, self.y + 19
            spec = job.spec
            entry = self._add(
                "g",
                {
                    "data-job": job.name,
                    "data-tasks": spec.tasks,
                    "data-replicas": spec.replicas_max,
                    "data-gpu-milli": spec.resources.gpu_total_milli,
                    "data-priority": spec.priority,
                    "data-preemptible": str(spec.preemptible).lower(),
                },
            )
            swatch = {"x": x, "y": self.y, "width": 12, "height": 12, "rx": 2}
            self._add("rect", {**swatch, "fill": self.colors[job_id]}, parent=entry)
            self._text(x + 17, self.y + 10, words, parent=entry)
            x += width + 8
        self.y += 21
        x = 10.0
        marks = (
            (_diamond, "checkpoint", "checkpoint saved"),
            (_down, "preempted", "preempted: asked to save and stop"),
            (_right, "resumed", "resumed from its checkpoint"),
        )
        for shape, name, words in marks:
            if name == "resumed":
                swatch = {"x": x, "y": self.y, "width": 12, "height": 12, "rx": 2}
                self._add("rect", {**swatch, "fill": COLORS[0]})
            self._add("path", {"class": name, "d": shape(x + 6, self.y + 6)})
            self._text(x + 17, self.y + 10, words, "small")
            x += 40 + CHARACTER * len(words)
        box = {"x": x, "y": self.y, "width": 18, "height": 12}
        self._add("rect", {**box, "rx": 2, "fill": COLORS[0]})
        self._add("rect", {**box, "class": "part"})
        self._text(x + 23, self.y + 10, "starts or stops", "small")
        self.y += 24

    def _notes_and_rows(self) -> None:
        notes = sorted(
            [(job.submitted_ms, f"submit {job.name}") for job in self.jobs.values()]
            + [(each.at_ms, self._cancelled(each)) for each in self.timeline.cancellations]
        )
        levels: list[float] = []
        placed = []
        for at_ms, words in notes:
            x, width = self._x(at_ms), CHARACTER * len(words)
            x_text = min(x, WIDTH - RIGHT - width)
            level = next((i for i, end in enumerate(levels) if end < x_text), len(levels))
            levels[level:] = [x_text + width + 8, *levels[level + 1 :]]
            placed.append((x, x_text, level, words))
        top = self.y
        self.y += 14 * len(levels) + 6
        before = None
        for node, slot in self.timeline.rows():
            self.y += 0 if before in (None, node) else NODE_GAP
            before = node
            row = {"x": LEFT, "y": self.y, "width": WIDTH - LEFT - RIGHT, "height": ROW}
            self._add("rect", {**row, "class": "row", "data-gpu": f"{node}/{slot}"})
            self._text(10, self.y + 18, f"{node} / {slot}", "small")
            self.row_y[node, slot] = self.y
            self.y += ROW + GAP
        bottoms = [top + 14 * (len(levels) - level) for _, _, level, _ in placed]
        for (x, *_), y in zip(placed, bottoms, strict=True):
            self._line(x, y + 2, x, self.y, "note")
        for (_, x_text, _, words), y in zip(placed, bottoms, strict=True):
            self._text(x_text, y - 1, words, "small said")
        for bar in self.timeline.bars:
            self._bar(bar)
        for checkpoint in self.timeline.checkpoints:
            bar = checkpoint.bar
            center = self.row_y[bar.node, bar.slot] + ROW - 6
            at = {"data-task": bar.task_id, "data-attempt": bar.attempt}
            shape = _diamond(self._x(checkpoint.at_ms), center)
            self._add("path", {"class": "checkpoint", **at, "d": shape})

    def _bar(self, bar: Bar) -> None:
        name = self.jobs[bar.job_id].name
        index = bar.task_id.partition(".")[2]
        end_ms = bar.released_ms or self.timeline.end_ms
        x, end = self._x(bar.allocated_ms), self._x(end_ms)
        y = self.row_y[bar.node, bar.slot]
        group = self._add(
            "g",
            {
                "class": "attempt",
                "data-job": name,
                "data-index": index,
                "data-attempt": bar.attempt,
                "data-gpu": f"{bar.node}/{bar.slot}",
            },
        )
        said = f"{name}.{index}, attempt {bar.attempt}, {self._span(bar.allocated_ms, end_ms)}"
        self._add("title", text=said + (", preempted" if bar.preempted else ""), parent=group)
        box = {"x": x, "y": y, "width": max(end - x - 1, 1), "height": ROW}
        self._add("rect", {**box, "rx": 3, "fill": self.colors[bar.job_id]}, parent=group)
        parts = [(bar.allocated_ms, bar.started_ms or bar.stop_ms or end_ms)]
        parts += [] if bar.stop_ms is None else [(max(bar.stop_ms, parts[0][1]), end_ms)]
        for begin_ms, until_ms in parts:
            left, right = self._x(begin_ms), self._x(until_ms) - (until_ms == end_ms)
            if right > left:
                area = {"class": "part", "x": left, "y": y, "width": right - left, "height": ROW}
                self._add("rect", area, parent=group)
        left = self._x(parts[0][1]) + 4
        if bar.resumed:
            self._add("path", {"class": "resumed", "d": _right(left + 4, y + 10)}, parent=group)
            left += 12
        words = f"{name} {index}" if self.jobs[bar.job_id].spec.tasks > 1 else name
        if self._x(bar.stop_ms or end_ms) - left > CHARACTER * len(words):
            self._text(left, y + 14, words, "on-bar", parent=group)
        if bar.preempted and bar.stop_ms is not None:
            shape = _down(self._x(bar.stop_ms), y + 6)
            self._add("path", {"class": "preempted", "d": shape}, parent=group)

    def _axis(self) -> None:
        seconds = self.duration_ms / 1000
        step = next((tick for tick in TICKS_S if seconds / tick <= 12), TICKS_S[-1])
        self.y += 2
        for tick in range(0, int(seconds) + 1, step):
            x = self._x(self.timeline.start_ms + tick * 1000)
            self._line(x, self.y, x, self.y + 4, "grid")
            anchor = "start" if tick == 0 else "middle"
            self._text(x, self.y + 15, f"{tick} s" if tick == 0 else str(tick), "small", anchor)
        self.y += 26

    def _queue(self) -> None:
        samples = [*self.timeline.pending, (self.timeline.end_ms, Counter[str]())]
        most = max(counts.total() for _, counts in samples) or 1
        bottom = self.y + QUEUE
        self._text(10, self.y + 28, "pending", "small")
        self._text(10, self.y + 42, "tasks", "small")
        self._text(LEFT - 6, self.y + 9, str(most), "small", "end")
        self._text(LEFT - 6, bottom, "0", "small", "end")
        for y in (self.y, bottom):
            self._line(LEFT, y, WIDTH - RIGHT, y, "grid")
        below = [0] * len(samples)
        for job_id in self.jobs:
            above = [n + counts[job_id] for n, (_, counts) in zip(below, samples, strict=True)]
            if above != below:
                scale = QUEUE / most
                upper = self._steps(samples, [bottom - n * scale for n in above])
                lower = self._steps(samples, [bottom - n * scale for n in below])
                shape = "M" + " L".join(f"{x:.1f} {y:.1f}" for x, y in [*upper, *lower[::-1]])
                fill = {"fill": self.colors[job_id], "data-pending": self.jobs[job_id].name}
                self._add("path", {**fill, "d": shape + " Z"})
            below = above
        self.y = bottom + 12

    def _steps(
        self, samples: Sequence[tuple[int, Counter[str]]], heights: Iterable[float]
    ) -> list[tuple[float, float]]:
        """The corners of a line that keeps each height until the next sample."""
        corners: list[tuple[float, float]] = []
        for (at_ms, _), height in zip(samples, heights, strict=True):
            x = self._x(at_ms)
            if corners:
                corners.append((x, corners[-1][1]))
            corners.append((x, height))
        return corners

    # --- helpers ------------------------------------------------------------------------------

    def _x(self, at_ms: int) -> float:
        share = (at_ms - self.timeline.start_ms) / self.duration_ms
        return LEFT + max(share, 0) * (WIDTH - LEFT - RIGHT)

    def _span(self, begin_ms: int, end_ms: int) -> str:
        start_ms = self.timeline.start_ms
        return f"{(begin_ms - start_ms) / 1000:.1f} s to {(end_ms - start_ms) / 1000:.1f} s"

    def _cancelled(self, each: Cancellation) -> str:
        job = self.jobs.get(each.job_id)
        name = each.job_id if job is None else job.name
        few = job is not None and 0 < each.tasks < job.spec.tasks
        return f"cancel {each.tasks} of {name}" if few else f"cancel {name}"

    def _add(
        self,
        tag: str,
        attributes: dict[str, object] | None = None,
        text: str | None = None,
        parent: ET.Element | None = None,
    ) -> ET.Element:
        shown = {
            name: f"{value:.1f}" if isinstance(value, float) else str(value)
            for name, value in (attributes or {}).items()
        }
        element = ET.SubElement(self.svg if parent is None else parent, tag, shown)
        element.text = text
        return element

    def _text(
        self,
        x: float,
        y: float,
        words: str,
        kind: str = "",
        anchor: str = "start",
        parent: ET.Element | None = None,
    ) -> None:
        attributes: dict[str, object] = {"x": float(x), "y": float(y)}
        attributes |= {"class": kind} if kind else {}
        attributes |= {} if anchor == "start" else {"text-anchor": anchor}
        self._add("text", attributes, words, parent)

    def _line(self, x1: float, y1: float, x2: float, y2: float, kind: str) -> None:
        ends: dict[str, object] = {"x1": x1, "y1": y1, "x2": x2, "y2": y2}
        self._add("line", {"class": kind, **ends})


def _described(job: Job) -> str:
    """A job's size and priority."""
    spec = job.spec
    gpus = spec.resources.gpu_total_milli / 1000
    size = f"{gpus:g} GPU" if gpus == 1 else f"{gpus:g} GPUs"
    if spec.replicas_max > 1:
        size = f"{spec.replicas_max} x {size}"
    if spec.tasks > 1:
        size = f"{spec.tasks} tasks, {size} each"
    return f"{job.name}: {size}, priority {spec.priority}"


def _diamond(x: float, y: float) -> str:
    return f"M{x:.1f} {y - 3.5:.1f} l3.5 3.5 l-3.5 3.5 l-3.5 -3.5 Z"


def _down(x: float, y: float) -> str:
    return f"M{x - 5:.1f} {y - 5:.1f} l10 0 l-5 9 Z"


def _right(x: float, y: float) -> str:
    return f"M{x - 4:.1f} {y - 4:.1f} l8 4 l-8 4 Z"


async def _read(path: Path) -> Timeline:
    async with opened(file_source(path)) as log:
        return await timeline_of(log)


def main() -> int:
    """Draw the picture of a log."""
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    log, picture = map(Path, sys.argv[1:])
    picture.write_text(Picture(asyncio.run(_read(log))).draw())
    return 0


if __name__ == "__main__":
    sys.exit(main())
