"""The output formats: table, wide, json, jsonl, yaml, csv, name.

Data goes to stdout, everything else to stderr. On a terminal, tables are cut to its width and
colored, with relative times. In a pipe they are whole and plain, with RFC 3339 times. `json` is the
body of the REST API.
"""

import csv
import io
import json
import shutil
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import click

from yardmaster_cli.errors import BadUsage
from yardmaster_cli.output.cells import (
    NOTHING,
    Age,
    Cell,
    Gpus,
    Span,
    When,
    readable,
    render,
    sort_key,
)

Row = Mapping[str, Any]

#: The colors of cells that consist of one of these words.
_COLORS: Final[Mapping[str, str]] = {
    "running": "green",
    "succeeded": "green",
    "ready": "green",
    "starting": "cyan",
    "stopping": "yellow",
    "pending": "yellow",
    "submitted": "yellow",
    "draining": "yellow",
    "drained": "yellow",
    "cordoned": "yellow",
    "failed": "red",
    "rejected": "red",
    "lost": "red",
    "cancelled": "bright_black",
}


#: The width of the labels of a text such as that of `yard explain`.
LABEL_WIDTH: Final = 12
#: The least width of the last column of a table within a text that continues on further lines.
LEAST_ROOM: Final = 8


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its title, the function from a row to its cell, and whether only `wide` has it.

    `exact` is the title that names the unit of the cells in a pipe. `narrow` has pairs of a step
    and a width. If a table is too wide for the terminal, the steps of all columns are applied in
    ascending order until the lines fit: each step cuts the cells of its column to the width, and
    the width 0 leaves the column out.
    """

    title: str
    cell: Callable[[Row], Cell]
    wide: bool = False
    right: bool = False
    exact: str | None = None
    narrow: tuple[tuple[int, int], ...] = ()

    @property
    def key(self) -> str:
        """The name in `--columns` and `--sort`."""
        return _key(self.title)

    @property
    def keys(self) -> tuple[str, ...]:
        """Every accepted name in `--columns` and `--sort`."""
        return (self.key,) if self.exact is None else (self.key, _key(self.exact))

    def title_of(self, *, relative: bool) -> str:
        """The title of the short form (`relative`), or of the exact form."""
        return self.title if relative or self.exact is None else self.exact


def _key(title: str) -> str:
    return title.lower().replace(" ", "_")


@dataclass(slots=True)
class Output:
    """The output of one command: its format and its terminal."""

    format: str = "table"
    columns: tuple[str, ...] = ()
    headers: bool = True
    sort: str | None = None
    limit: int | None = None
    color: bool = False
    terminal: bool = False
    width: int = 0
    height: int = 0
    #: Whether stderr is a terminal; waiting commands then report there what they wait for.
    progress: bool = False
    quiet: bool = False
    verbose: bool = False
    now_ms: Callable[[], int] = field(default=lambda: 0)

    def say(self, text: str = "") -> None:
        """Print a line of data."""
        click.echo(text, color=self.color)

    def note(self, text: str) -> None:
        """Print a hint or progress on stderr, unless `-q` is given."""
        if not self.quiet:
            click.echo(text, err=True, color=self.color)

    def detail(self, text: str) -> None:
        """Print a line on stderr if `-v` is given."""
        if self.verbose:
            click.echo(text, err=True, color=self.color)

    @property
    def for_people(self) -> bool:
        """Whether the format is for people, not for programs."""
        return self.format in ("table", "wide")

    def items(
        self,
        rows: Sequence[Row],
        columns: Sequence[Column],
        *,
        name: str,
        document: Mapping[str, Any] | None = None,
    ) -> None:
        """Print a list; `name` is the key of a row's name, `document` the body of the API."""
        for line in self.lines(rows, columns, name=name, document=document):
            self.say(line)

    def lines(
        self,
        rows: Sequence[Row],
        columns: Sequence[Column],
        *,
        name: str,
        document: Mapping[str, Any] | None = None,
    ) -> list[str]:
        """The lines that `items` prints."""
        rows = self._arranged(rows, columns)
        if self.format == "json":
            body = {**(document or {}), "items": list(rows)}
            return [json.dumps(body, indent=2, ensure_ascii=False)]
        if self.format == "jsonl":
            return [json.dumps(row, ensure_ascii=False) for row in rows]
        if self.format == "yaml":
            return [_yaml({**(document or {}), "items": [dict(row) for row in rows]})]
        if self.format == "name":
            return [str(row[name]) for row in rows]
        chosen = self._chosen(columns)
        if self.format == "csv":
            return self._csv(rows, chosen)
        return self._table(rows, chosen)

    def one(
        self, document: Mapping[str, Any], text: Callable[[], Sequence[str]], name: str
    ) -> None:
        """Print one object: the lines of `text` for people, `document` in other formats."""
        if self.format == "json":
            self.say(json.dumps(document, indent=2, ensure_ascii=False))
        elif self.format == "jsonl":
            self.say(json.dumps(document, ensure_ascii=False))
        elif self.format == "yaml":
            self.say(_yaml(document))
        elif self.format == "name":
            self.say(str(document[name]))
        elif self.format == "csv":
            raise BadUsage("-o csv prints lists only", hint="use -o json or -o yaml")
        else:
            for line in text():
                for part in self.wrapped(line):
                    self.say(part)

    def whole(self, document: Mapping[str, Any], name: str) -> None:
        """Print every field of one object, for people with readable units."""
        self.one(document, lambda: _yaml(readable(document)).splitlines(), name)

    def fit(self, line: str) -> str:
        """Cut `line` to the width of the terminal, if there is one."""
        return cut(line, self.width) if self.terminal and self.width > 0 else line

    def wrapped(self, line: str) -> list[str]:
        """Wrap `line` at the width of the terminal, if there is one."""
        if not self.terminal or self.width <= 0 or len(click.unstyle(line)) <= self.width:
            return [line]
        indent = " " * min(LABEL_WIDTH, self.width // 2)
        return textwrap.wrap(line, self.width, subsequent_indent=indent, break_on_hyphens=False)

    def fit_height(self, lines: Sequence[str], more: int = 0) -> list[str]:
        """Cut `lines` to the height of the terminal, with room for `more` lines and the cursor.

        The last line then says how many are left out.
        """
        room = self.height - more - 1
        if self.height <= 0 or len(lines) <= room:
            return list(lines)
        shown = max(1, room - 1)
        return [*lines[:shown], f"... {len(lines) - shown} more; a higher terminal shows them"]

    def measure(self) -> None:
        """Read the size of the terminal again, because the user may have changed it."""
        if self.terminal:
            self.width, self.height = terminal_size()

    def table(
        self, titles: Sequence[str], rows: Sequence[Sequence[Cell]], right: str = ""
    ) -> list[str]:
        """The lines of a table within a text; `right` names the right-aligned titles.

        On a terminal, a last column that is too wide continues on further lines.
        """
        flush = set(right.split())
        body = [[self._text(cell) for cell in row] for row in rows]
        if self.terminal and self.width > 0 and body:
            room = self.width - _line_width(_widths(titles, body)[:-1]) - 1
            if room >= LEAST_ROOM:
                body = [line for row in body for line in _continued(row, room)]
        return self._grid(list(titles), body, [title in flush for title in titles])

    @property
    def _relative(self) -> bool:
        return self.terminal and self.for_people

    def _text(self, cell: Cell) -> str:
        return render(cell, relative=self._relative, now_ms=self.now_ms())

    def _arranged(self, rows: Sequence[Row], columns: Sequence[Column]) -> Sequence[Row]:
        if self.sort:
            for key in reversed(self.sort.split(",")):
                name = key.lstrip("-")
                column = _column(columns, name)
                # Sorted by age, the newest row is first; sorted by time, the oldest.
                is_age = isinstance(column.cell(rows[0]), Age) if rows else False
                by_time = is_age and name.lower() != column.key
                rows = sorted(
                    rows,
                    key=lambda row: sort_key(column.cell(row)),
                    reverse=key.startswith("-") is not by_time,
                )
        return rows if self.limit is None else rows[: self.limit]

    def _chosen(self, columns: Sequence[Column]) -> list[Column]:
        if self.columns:
            return [_column(columns, key) for key in self.columns]
        return [c for c in columns if not c.wide or self.format in ("wide", "csv")]

    def _csv(self, rows: Sequence[Row], columns: Sequence[Column]) -> list[str]:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        if self.headers:
            writer.writerow([_key(c.title_of(relative=False)) for c in columns])
        for row in rows:
            cells = [c.cell(row) for c in columns]
            writer.writerow(["" if _empty(cell) else self._text(cell) for cell in cells])
        return text.getvalue().splitlines()

    def _table(self, rows: Sequence[Row], columns: Sequence[Column]) -> list[str]:
        body = [[self._text(c.cell(row)) for c in columns] for row in rows]
        titles = [c.title_of(relative=self._relative) for c in columns]
        if self.terminal and self.width > 0:
            widths = self._narrowed(columns, titles, body)
            kept = [i for i, width in enumerate(widths) if width]
            columns = [columns[i] for i in kept]
            titles = [titles[i] for i in kept]
            body = [[cut(row[i], widths[i]) for i in kept] for row in body]
        return self._grid(titles, body, [c.right for c in columns])

    def _narrowed(
        self, columns: Sequence[Column], titles: Sequence[str], body: Sequence[Sequence[str]]
    ) -> list[int]:
        """The width of each column with which the lines fit the terminal, as far as possible.

        The width 0 means that the column is left out.
        """
        whole = _widths(titles, body)
        widths = list(whole)
        steps = []
        for i, column in enumerate(columns):
            empty = all(row[i] == NOTHING for row in body)
            for step, width in column.narrow:
                # A column without any value is left out before one with values.
                steps.append((1 if empty and not width else step, i, width))
        # A column that the user has chosen may be cut, but not left out.
        chosen = bool(self.columns) or self.format == "wide"
        for _, i, width in sorted(steps):
            excess = _line_width(widths) - self.width
            if excess <= 0:
                break
            if width:
                widths[i] = min(widths[i], max(width, widths[i] - excess))
            elif not chosen:
                widths[i] = 0
        for i, width in enumerate(widths):
            # A column that was left out may have freed more width than was needed.
            room = self.width - _line_width(widths)
            if width and room > 0:
                widths[i] = min(whole[i], width + room)
        return widths

    def _grid(self, titles: list[str], body: list[list[str]], right: list[bool]) -> list[str]:
        widths = _widths(titles, body)
        lines = []
        if self.headers:
            lines.append(self._line(titles, widths, right, heading=True))
        lines += [self._line(row, widths, right) for row in body]
        return lines

    def _line(
        self, texts: list[str], widths: list[int], right: list[bool], *, heading: bool = False
    ) -> str:
        padded = [
            text.rjust(width) if flush else text.ljust(width)
            for text, width, flush in zip(texts, widths, right, strict=True)
        ]
        line = self.fit(" ".join(padded).rstrip())
        if not self.color or not self.terminal:
            return line
        if heading:
            return click.style(line, bold=True)
        for text, cell in zip(texts, padded, strict=True):
            if text in _COLORS and cell in line:
                return line.replace(cell, click.style(cell, fg=_COLORS[text]), 1)
        return line


def _yaml(document: Mapping[str, Any]) -> str:
    import yaml

    return yaml.safe_dump(dict(document), sort_keys=False, allow_unicode=True).rstrip("\n")


def _empty(cell: Cell) -> bool:
    if isinstance(cell, Gpus):
        return cell.milli is None
    if isinstance(cell, Span):
        return cell.seconds is None
    if isinstance(cell, When | Age):
        return cell.at is None
    return cell is None or cell == ""


def _column(columns: Sequence[Column], key: str) -> Column:
    for column in columns:
        if key.lower() in column.keys:
            return column
    known = ", ".join(c.key for c in columns)
    raise BadUsage(f"there is no column {key}", hint=f"columns: {known}")


def cut(text: str, width: int) -> str:
    """Cut a text to `width` characters; the last character of a cut text is `…`."""
    return text if len(text) <= width else text[: width - 1] + "…"


def _continued(row: Sequence[str], room: int) -> list[list[str]]:
    """Split `row` at spaces of its last cell into rows whose last cells fit `room` characters."""
    *cells, last = row
    parts = textwrap.wrap(last, room, break_on_hyphens=False, break_long_words=False) or [last]
    blank = [""] * len(cells)
    return [[*(cells if i == 0 else blank), part] for i, part in enumerate(parts)]


def _widths(titles: Sequence[str], body: Sequence[Sequence[str]]) -> list[int]:
    return [max([len(title), *(len(row[i]) for row in body)]) for i, title in enumerate(titles)]


def _line_width(widths: Sequence[int]) -> int:
    return sum(widths) + sum(map(bool, widths)) - 1


def terminal_size() -> tuple[int, int]:
    """The width of the terminal on stdout, in columns, and its height, in lines."""
    size = shutil.get_terminal_size((120, 24))
    return size.columns, size.lines


def is_terminal() -> bool:
    """Whether stdout is a terminal."""
    return sys.stdout.isatty()
