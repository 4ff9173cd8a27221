"""`.yardignore`: the rules of gitignore, `.git` left out by default."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.packages import write_tree
from yardmaster_packages.archive import context_paths
from yardmaster_packages.errors import ContextUnusable, IgnoreRulesInvalid

TREE: dict[str, bytes | str] = dict.fromkeys(
    (
        *("train.py", "README.md", "notes.log", "keep.log", "a b.txt", "#note", "!odd"),
        *("build/out.o", "src/build/out.o", "src/a.py", "src/a.pyc", "src/deep/er/b.pyc"),
        *("data/raw/1.bin", "data/raw/keep.bin", "data/index.json", "x1.txt", "x2.txt", "xy.txt"),
        *("pages/a/b/c.md", "pages/c.md", "logs/1/debug.txt", "logs/debug.txt", "building/out.o"),
    ),
    b"x",
)
CASES = {
    "name": ["*.pyc", "build"],
    "anchored": ["/build", "/src/*.pyc"],
    "folder only": ["build/", "train.py/"],
    "exception": ["*.log", "!keep.log"],
    "last rule decides": ["!keep.log", "*.log"],
    "no exception below an excluded folder": ["data/raw/", "!data/raw/keep.bin"],
    "exception below excluded content": ["data/raw/*", "!data/raw/keep.bin"],
    "double star": ["pages/**/c.md", "**/debug.txt"],
    "trailing double star": ["logs/**"],
    "character class": ["x[0-9].txt"],
    "question mark": ["x?.txt"],
    "comment and escapes": ["# note", "\\#note", "\\!odd", "a\\ b.txt"],
    "trailing spaces": ["train.py   ", ""],
    "everything but": ["/*", "!/src", "/src/*", "!/src/a.py"],
    "middle slash": ["data/index.json"],
}


@pytest.mark.parametrize("rules", CASES.values(), ids=CASES.keys())
def test_the_rules_leave_out_what_git_leaves_out(tmp_path: Path, rules: list[str]) -> None:
    folder = write_tree(tmp_path / "context", TREE)
    text = "\n".join(rules)
    (folder / ".yardignore").write_text(text)
    packed = {path for path in context_paths(folder) if (folder / path).is_file()}

    (folder / ".gitignore").write_text(text)
    git(folder, "init", "-q")
    listed = git(folder, "ls-files", "-z", "--others", "--exclude-standard").split("\0")
    assert packed == {path for path in listed if path and path != ".gitignore"}


def git(folder: Path, *words: str) -> str:
    environment = {"HOME": str(folder.parent), "PATH": "/usr/bin:/bin:/usr/local/bin"}
    done = subprocess.run(
        ["git", *words], cwd=folder, env=environment, check=True, capture_output=True, text=True
    )
    return done.stdout


def test_git_is_left_out_by_default(tmp_path: Path) -> None:
    folder = write_tree(tmp_path, {"a.py": b"", ".git/config": b"", "sub/.git": b"gitdir: x"})
    assert context_paths(folder) == ["a.py"]


def test_a_rule_can_include_git(tmp_path: Path) -> None:
    folder = write_tree(tmp_path, {".git/config": b"", ".yardignore": b"!.git\n"})
    assert context_paths(folder) == [".git", ".git/config", ".yardignore"]


def test_lines_may_end_as_on_windows_and_start_with_a_byte_order_mark(tmp_path: Path) -> None:
    folder = write_tree(tmp_path, {"a": b"", "b": b"", ".yardignore": b"\xef\xbb\xbfa\r\nb\r\n"})
    assert context_paths(folder) == [".yardignore"]


@pytest.mark.parametrize("rule", [b"!", b"[z-a]"])
def test_a_wrong_rule_is_named_with_its_line(tmp_path: Path, rule: bytes) -> None:
    folder = write_tree(tmp_path, {".yardignore": b"a\n\n" + rule + b"\n"})
    with pytest.raises(IgnoreRulesInvalid, match=r"Line 3 of .*\.yardignore is not a rule"):
        context_paths(folder)


@pytest.mark.parametrize("content", [b"\xff\xfe\n", b"a" * (1024 * 1024 + 1)])
def test_a_file_that_is_no_text_is_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(ContextUnusable, match=r"\.yardignore"):
        context_paths(write_tree(tmp_path, {".yardignore": content}))


def test_a_folder_in_place_of_the_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ContextUnusable, match=r"\.yardignore"):
        context_paths(write_tree(tmp_path, {".yardignore/a": b""}))


def test_a_pipe_in_place_of_the_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".yardignore")
    with pytest.raises(ContextUnusable, match=r"\.yardignore .*it is not a file"):
        context_paths(tmp_path)


def test_an_ignored_folder_is_not_entered(tmp_path: Path) -> None:
    folder = write_tree(tmp_path, {"a": b"", "data/x": b"", ".yardignore": b"data\n"})
    (folder / "data").chmod(0)
    try:
        assert context_paths(folder) == [".yardignore", "a"]
    finally:
        (folder / "data").chmod(0o700)
