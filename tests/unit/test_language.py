"""The words that this project does not use: plain English, one term per concept (CONTRIBUTING.md).

Prose is what comments, strings, docstrings and pages say; names are identifiers and file names.
"""

import ast
import io
import keyword
import re
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

#: Archaic or private diction, as whole words.
PROSE = re.compile(
    r"\b("
    r"anew|whom|whomever|whose going|told|thereby|besides?|at hand|for good|nobody|somebody|anybody"
    r"|whoever|heed(?:s|ed|ing)?|bears?|lies|lain|hold(?:s|ing)? back|held back"
    r"|mak(?:e|es|ing) room|made room|go(?:es|ing)? on|went on|let(?:s|ting)? go"
    r"|giv(?:e|es|ing|en) back|gave back|tak(?:e|es|ing|en) in|took in"
    r"|ha(?:ve|s|d) \w+ stopped|worse priorit(?:y|ies)|better priorit(?:y|ies)"
    r"|he|his|him|himself"
    r"|data folders?|deriv(?:e|es|ed|ing)(?: \w+){0,4} again"
    r"|(?:quota|the scheduler)'s machine"
    r")\b",
    re.IGNORECASE,
)
#: Stands before the first word of a docstring.
START = "^"
#: Sentences without their noun: a docstring that starts with a pronoun or only refers to another
#: one, a relative clause that is torn from its noun, an amount that is named nowhere.
TORN = re.compile(
    r"\^(?:It|Its|Itself|They|Their|Them|Themselves|These|Such)\b"
    r"|\^See `"
    r"|\bDo the same\b"
    r"|(?<!,)(?<!\bone)(?<!\bnone)(?<!\ball)(?<!\bany)(?<!\bsome)(?<!\beach)(?<!\bhalf)(?<!\bpart)"
    r" of which\b"
    r"|\bso (?:many|much)\b(?![^.]*\bthat\b)"
)
#: Parts of names that are private words.
WORDS = frozenset(
    (
        *("told", "whom", "anew", "nobody", "somebody", "anybody", "beside", "heed", "heeding"),
        *("lineup", "lane", "lanes", "party", "parties", "portion", "portions", "asked", "asking"),
        *("settle", "settles", "settled", "patient", "leftovers", "surroundings"),
    )
)
#: Names of the former code whose words alone say nothing.
NAMES = frozenset(
    (
        *("Tape", "Stage", "Sight", "Shop", "Book", "Bell", "Freeing", "Filling", "Ring"),
        *("TrailRow", "TallyRow", "Taken", "Upstream", "Wish"),
    )
)
#: Names on the wire: fields of events, reasons and answers, which later readers must understand.
WIRE = frozenset({"asked", "asked_milli", "asked_gpu_milli", "asked_cpu_milli", "asked_memory_mib"})
#: Files that are data, history, or the words of others.
EXEMPT = (
    "LICENSE",
    "docs/explanation/decisions/",
    "libs/schemas/schemas/",
    "tests/conformance/scenarios/",
    "tests/data/",
    "tests/golden/records/",
    "tests/unit/test_language.py",
)


def files(*endings: str) -> Iterator[Path]:
    """The tree's own files with one of these endings."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in sorted(listed.stdout.splitlines()):
        path = ROOT / name
        if name.endswith(endings) and not name.startswith(EXEMPT) and path.is_file():
            yield path


def python_tokens(path: Path) -> Iterator[tokenize.TokenInfo]:
    """The tokens of a file; a file must be valid Python."""
    yield from tokenize.generate_tokens(io.StringIO(path.read_text()).readline)


def parts(name: str) -> set[str]:
    """The words of an identifier: `PoolView.asked_milli` has pool, view, asked, milli."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    return set(spaced.lower().split("_"))


def private(name: str) -> bool:
    """Whether an identifier is, or contains, a private word."""
    return name.strip("_") in NAMES or (name not in WIRE and bool(parts(name) & WORDS))


def found(path: Path, number: int, text: str) -> str:
    """One finding, as a line to jump to."""
    return f"{path.relative_to(ROOT)}:{number}: {text}"


def prose_of(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of prose: all of a page; the comments and strings of a program."""
    if path.suffix != ".py":
        yield from enumerate(path.read_text().splitlines(), 1)
        return
    for token in python_tokens(path):
        if token.type in (tokenize.COMMENT, tokenize.STRING):
            for offset, line in enumerate(token.string.splitlines()):
                yield token.start[0] + offset, line


def test_prose_uses_plain_words() -> None:
    findings = [
        found(path, number, f"'{match[0]}' in: {line.strip()[:100]}")
        for path in files(".py", ".md", ".sh", ".toml", ".yaml", "Makefile", "Dockerfile", ".html")
        for number, line in prose_of(path)
        for match in PROSE.finditer(line)
    ]
    assert not findings, "\n".join(findings)


def test_docstrings_start_with_a_noun_or_a_verb() -> None:
    findings = [
        found(path, getattr(node, "lineno", 1), (ast.get_docstring(node) or "").splitlines()[0])
        for path in files(".py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and re.match(r"(What|Who|Whose|Those)\b", ast.get_docstring(node) or "")
    ]
    assert not findings, "\n".join(findings)


def test_docstrings_and_comments_name_their_nouns() -> None:
    findings = [
        found(path, number, f"'{match[0]}' in: {text[max(0, match.start() - 60) :][:140]}")
        for path in files(".py")
        for number, text in (*docstrings(path), *comments(path))
        for match in TORN.finditer(text)
    ]
    assert not findings, "\n".join(findings)


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """The docstrings of a program, each with a line number, in one line, after START."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield getattr(node, "lineno", 1), START + " ".join(text.split())


def comments(path: Path) -> Iterator[tuple[int, str]]:
    """The blocks of comment lines of a program, each with its first line number, in one line."""
    block: list[tuple[int, str]] = []
    for number, line in enumerate((*path.read_text().splitlines(), ""), 1):
        comment = re.match(r"\s*#:? ?(.*)", line)
        if comment:
            block.append((number, comment[1]))
        elif block:
            yield block[0][0], " ".join(text for _, text in block)
            block = []


@pytest.mark.parametrize(
    ("text", "is_torn"),
    [
        (f"{START}Its parent.", True),
        (f"{START}Item by item.", False),
        (f"{START}See `Machine.load`.", True),
        ("The parts. See `Machine.load`.", False),
        ("Do the same for a draft.", True),
        ("Both do the same.", False),
        ("Bring the usages up to date of which a cycle changed what is held.", True),
        ("A demand, of which a part is fixed; three jobs, none of which runs.", False),
        ("Wait for so many seconds.", True),
        ("There are so many nodes that a search is slow.", False),
    ],
)
def test_a_torn_sentence_is_found(text: str, is_torn: bool) -> None:
    assert bool(TORN.search(text)) is is_torn


def test_pages_write_enroll_except_in_names() -> None:
    spelled = re.compile(r"\benrol(?:s|ments?)?\b", re.IGNORECASE)
    findings = [
        found(path, number, line.strip()[:100])
        for path in files(".md")
        for number, line in enumerate(_without_code(path.read_text()).splitlines(), 1)
        if spelled.search(line)
    ]
    assert not findings, "\n".join(findings)


def _without_code(page: str) -> str:
    """A page without its code blocks, code spans and anchors; lines keep their numbers."""
    blocks = re.sub(r"```.*?```", lambda block: "\n" * block[0].count("\n"), page, flags=re.DOTALL)
    return re.sub(r"`[^`\n]+`|\]\(#[\w-]+\)", "", blocks)


def test_names_use_plain_words() -> None:
    findings = [
        found(path, token.start[0], token.string)
        for path in files(".py")
        for token in python_tokens(path)
        if token.type == tokenize.NAME
        and not keyword.iskeyword(token.string)
        and private(token.string)
    ]
    findings += [str(path.relative_to(ROOT)) for path in files("") if private(path.stem)]
    assert not findings, "\n".join(findings)


@pytest.mark.parametrize(
    ("name", "is_private"),
    [
        ("ended_told", True),
        ("Book", True),
        ("_Bell", True),
        ("ToldOnce", True),
        ("asked_milli", False),
        ("bookkeeping", False),
        ("settlement", False),
    ],
)
def test_a_name_is_judged_by_its_words(name: str, is_private: bool) -> None:
    assert private(name) is is_private
