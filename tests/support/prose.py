"""The prose of a Markdown page, and its form in this repository: one sentence a line."""

import re
from collections.abc import Iterator
from typing import Final

#: Parts of a page that are no prose: code blocks, and the text that a program writes.
BLOCK: Final = re.compile(
    r"^(?P<indent> *)```.*?^(?P=indent)```$"
    r"|^<!-- generated: (?P<part>[a-z-]+) -->.*?^<!-- end: (?P=part) -->$",
    re.DOTALL | re.MULTILINE,
)
#: Lines that are no prose: titles, rows of tables, footnotes, HTML.
NO_PROSE: Final = re.compile(r" *(?:#|\||\[\^[\w-]+\]:|<)")
#: What stands before the text of a list item.
MARKER: Final = re.compile(r" *(?:[-*+]|\d+\.) +")
#: Code and the targets of links, which may contain periods.
OPAQUE: Final = re.compile(r"`[^`]+`|\]\([^)]*\)")
#: The end of a sentence, also behind a bracket, a quote or a mark of emphasis.
END: Final = re.compile(r"[.?!][)\"'*_\]]* +(?=[*_\[]|[\"'(]*[A-Z0-9\x00])")
#: A period that ends no sentence: an abbreviation, or the words in bold that open a paragraph.
INSIDE: Final = re.compile(r"(?:\b(?:e\.g|i\.e|etc|vs|cf|al)\.|^\*\*[^*]+\*\*) $")


def sentences(text: str) -> list[str]:
    """The sentences of a paragraph that is written in one line."""
    opaque = OPAQUE.sub(lambda found: "\x00" * len(found[0]), text)
    found: list[str] = []
    start = 0
    for end in END.finditer(opaque):
        if not INSIDE.search(text[start : end.end()]):
            found.append(text[start : end.end()].rstrip())
            start = end.end()
    return [*found, text[start:].rstrip()]


def paragraphs(page: str) -> Iterator[list[str]]:
    """The lines of each paragraph and each list item of a page."""
    paragraph: list[str] = []
    for line in [*BLOCK.sub(lambda found: "\n" * found[0].count("\n"), page).splitlines(), ""]:
        prose = bool(line.strip()) and not NO_PROSE.match(line)
        if paragraph and (not prose or MARKER.match(line)):
            yield paragraph
            paragraph = []
        if prose:
            paragraph.append(line)


def one_sentence_a_line(paragraph: list[str]) -> list[str]:
    """The paragraph with a line for each sentence, indented as the text of its first line."""
    marker = MARKER.match(paragraph[0])
    width = marker.end() if marker else len(paragraph[0]) - len(paragraph[0].lstrip())
    text = " ".join([paragraph[0][width:], *(line.strip() for line in paragraph[1:])])
    first, *others = sentences(text)
    return [paragraph[0][:width] + first, *(" " * width + other for other in others)]
