"""Which files of a working folder are artifacts, and that no link is followed."""

import os
from pathlib import Path

import pytest

from yardmaster_packages.artifact_files import FoundFiles, find_artifacts, opened_below, selection
from yardmaster_packages.limits import ArtifactLimits

EVERYTHING = ["**"]


def found(folder: Path, patterns: list[str], **limits: int) -> FoundFiles:
    return find_artifacts(folder, patterns, limits=ArtifactLimits(**limits), owner=None)


def paths(result: FoundFiles) -> list[str]:
    return [file.path for file in result.files]


def left_out(result: FoundFiles) -> dict[str, str]:
    return {one.path: one.reason for one in result.left_out}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "work"
    for path, size in (("out/a/w.bin", 30), ("out/log", 10), ("m.onnx", 20), ("train.py", 5)):
        target = made / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(bytes(size))
    return made


def test_patterns_select_by_the_rules_of_gitignore(folder: Path) -> None:
    assert paths(found(folder, ["out/**", "*.onnx"])) == ["m.onnx", "out/a/w.bin", "out/log"]
    assert paths(found(folder, ["out/", "!out/log"])) == ["out/a/w.bin"]
    assert paths(found(folder, ["w.bin"])) == ["out/a/w.bin"]
    assert paths(found(folder, ["/w.bin"])) == []


def test_a_pattern_that_is_none_is_named(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"'!' is not a pattern"):
        selection(["*.onnx", "!"])


def test_links_and_special_files_are_left_out_and_not_followed(folder: Path) -> None:
    secret = folder.parent / "secret"
    secret.mkdir()
    (secret / "key").write_text("key")
    (folder / "out/file").symlink_to(secret / "key")
    (folder / "out/folder").symlink_to(secret)
    os.mkfifo(folder / "out/pipe")
    result = found(folder, EVERYTHING)
    assert paths(result) == ["m.onnx", "out/a/w.bin", "out/log", "train.py"]
    assert left_out(result) == {
        "out/file": "it is a symbolic link",
        "out/folder": "it is a symbolic link",
        "out/pipe": "it is not a regular file",
    }


def test_a_folder_that_became_a_link_is_not_entered(folder: Path) -> None:
    (folder / "out/a/w.bin").unlink()
    (folder / "out/a").rmdir()
    (folder / "out/a").symlink_to("/etc")
    with pytest.raises(NotADirectoryError), opened_below(folder, "out/a/passwd"):
        raise AssertionError("a link in the middle of a path was followed")
    with opened_below(folder, "out/log") as opened:
        assert os.read(opened, 100) == bytes(10)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to another user")
def test_files_of_another_user_are_left_out(folder: Path) -> None:
    os.chown(folder / "m.onnx", 12345, 12345)
    result = find_artifacts(folder, EVERYTHING, limits=ArtifactLimits(), owner=0)
    assert left_out(result) == {"m.onnx": "it belongs to another user"}


def test_what_exceeds_a_limit_is_left_out_and_smaller_files_are_kept(folder: Path) -> None:
    result = found(folder, EVERYTHING, total_bytes=40)
    assert paths(result) == ["m.onnx", "out/log", "train.py"]
    assert left_out(result) == {"out/a/w.bin": "with it, the files have more than 40 bytes"}
    result = found(folder, EVERYTHING, files=1)
    assert paths(result) == ["m.onnx"]
    assert result.left_out_count == 3
    result = found(folder, EVERYTHING, scanned=2)
    assert left_out(result)["."] == "the folder has more than 2 files and folders"


def test_only_the_first_paths_that_are_left_out_are_named(folder: Path) -> None:
    for number in range(150):
        (folder / f"link-{number:03}").symlink_to("train.py")
    result = found(folder, ["link-*"])
    assert (len(result.left_out), result.left_out_count) == (100, 150)


def test_a_folder_deeper_than_a_path_may_be_ends_no_agent(tmp_path: Path) -> None:
    name, opened = "d" * 250, os.open(tmp_path, os.O_DIRECTORY)
    for _ in range(20):
        os.mkdir(name, dir_fd=opened)
        inner = os.open(name, os.O_DIRECTORY, dir_fd=opened)
        os.close(opened)
        opened = inner
    os.close(opened)
    result = found(tmp_path, EVERYTHING)
    assert list(left_out(result).values()) == ["it is too long"]


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        found(tmp_path / "missing", EVERYTHING)
