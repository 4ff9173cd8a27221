"""A folder as a package: the same bytes everywhere, nothing that leaves, nothing too large."""

import gzip
import hashlib
import io
import os
import random
import stat
import tarfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.packages import bind_socket, package_of, read_tree, write_tree
from yardmaster_packages import archive
from yardmaster_packages.archive import context_paths, pack
from yardmaster_packages.errors import (
    ContextChanged,
    ContextTooLarge,
    ContextUnusable,
    PathRefused,
)
from yardmaster_packages.limits import MIB, PackageLimits

TREE: dict[str, bytes | str] = {
    "train.py": b"print('hello')\n",
    "lib/model.py": b"class Model: ...\n" * 1000,
    "lib-a/z.py": b"",
    "lib/deep/er/x.txt": b"x",
    "empty/": b"",
    "data.bin": bytes(range(256)) * 33,
    "current": "-> lib/deep",
    "lib/up": "-> ../train.py",
    "ünïcode/文件.txt": b"text",
}


def members(content: bytes) -> list[tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as tar:
        return tar.getmembers()


def test_equal_folders_have_equal_bytes_whatever_wrote_them(tmp_path: Path) -> None:
    """Other order of creation, times, users, groups, modes and umask: the same package."""
    first = write_tree(tmp_path / "first", TREE)
    shuffled = list(TREE.items())
    random.Random(7).shuffle(shuffled)
    mask = os.umask(0o077)
    try:
        second = write_tree(tmp_path / "second", dict(shuffled))
    finally:
        os.umask(mask)
    for number, path in enumerate(second.rglob("*")):
        os.utime(path, (number, 1_000_000_000 + number), follow_symlinks=False)
        if os.geteuid() == 0:
            os.chown(path, 1000 + number, 2000 + number, follow_symlinks=False)
    assert package_of(first) == package_of(second)


def test_the_digest_of_a_known_folder_never_changes(tmp_path: Path) -> None:
    """Another digest would upload every folder again."""
    digest = package_of(write_tree(tmp_path, TREE)).digest
    assert digest == "08f8a81959c1c639d890ca945fca1cccf7b70dff1bec2a9aea1fea8eb8318d8d"


def test_the_archive_has_no_time_user_or_name(tmp_path: Path) -> None:
    folder = write_tree(tmp_path, TREE)
    (folder / "train.py").chmod(0o700)
    (folder / "data.bin").chmod(0o666)
    content = package_of(folder).content
    assert content[3:8] == b"\0\0\0\0\0", "the gzip header has no flags and no time"
    found = {member.name: member for member in members(content)}
    assert list(found) == sorted(found, key=os.fsencode)
    for member in found.values():
        assert (member.mtime, member.uid, member.gid) == (0, 0, 0)
        assert (member.uname, member.gname) == ("", "")
        executable = member.isdir() or member.issym() or member.name == "train.py"
        assert member.mode == (0o755 if executable else 0o644)


def test_the_digest_is_that_of_the_uncompressed_tar(tmp_path: Path) -> None:
    package = package_of(write_tree(tmp_path, TREE))
    assert hashlib.sha256(gzip.decompress(package.content)).hexdigest() == package.digest


def test_another_content_name_mode_or_target_is_another_package(tmp_path: Path) -> None:
    folder = write_tree(tmp_path, {"a": b"1", "link": "-> a"})
    digests = {package_of(folder).digest}

    def changed(change: Callable[[], object]) -> None:
        change()
        digests.add(package_of(folder).digest)

    changed(lambda: (folder / "a").write_bytes(b"2"))
    changed(lambda: (folder / "a").chmod(0o755))
    changed(lambda: (folder / "a").rename(folder / "b"))
    changed(lambda: (folder / "link").unlink())
    changed(lambda: (folder / "link").symlink_to("b"))
    changed(lambda: (folder / "empty").mkdir())
    assert len(digests) == 7


def test_what_was_packed_is_what_tarfile_extracts(tmp_path: Path) -> None:
    folder = write_tree(tmp_path / "context", TREE)
    package = package_of(folder)
    with tarfile.open(fileobj=io.BytesIO(package.content), mode="r:gz") as tar:
        tar.extractall(tmp_path / "extracted", filter="data")
    assert read_tree(tmp_path / "extracted") == read_tree(folder)


def test_sizes_and_number_are_returned(tmp_path: Path) -> None:
    folder = write_tree(tmp_path, {"a": b"x" * 10, "sub/b": b"y" * 20, "link": "-> a"})
    into = io.BytesIO()
    packed = pack(folder, into)
    assert (packed.unpacked_bytes, packed.files) == (30, 4)
    assert packed.packed_bytes == len(into.getvalue())


def test_a_folder_of_only_ignored_files_is_left_out_and_an_empty_one_kept(tmp_path: Path) -> None:
    folder = write_tree(
        tmp_path,
        {
            "a/__pycache__/x.pyc": b"",
            "only/__pycache__/x.pyc": b"",
            "empty/": b"",
            "a/b.py": b"",
            ".yardignore": b"*.pyc\n.yardignore\n",
        },
    )
    assert context_paths(folder) == ["a", "a/b.py", "empty"]


def test_an_empty_folder_is_a_package(tmp_path: Path) -> None:
    assert members(package_of(tmp_path).content) == []


def test_hard_links_are_files_of_their_own(tmp_path: Path) -> None:
    folder = write_tree(tmp_path, {"a": b"content"})
    os.link(folder / "a", folder / "b")
    assert [member.type for member in members(package_of(folder).content)] == [tarfile.REGTYPE] * 2


@pytest.mark.parametrize("target", ["a", "./a", "sub", ".", "missing", "sub//b"])
def test_a_link_at_the_top_may_point_inside(tmp_path: Path, target: str) -> None:
    folder = write_tree(tmp_path / "c", {"a": b"", "sub/b": b"", "link": f"-> {target}"})
    assert "link" in context_paths(folder)


def test_a_link_with_two_dots_after_a_name_is_refused(tmp_path: Path) -> None:
    """`current/../a` leaves the folder if `current` is a link to another one."""
    folder = write_tree(tmp_path / "c", {"a": b"", "sub/b": b"", "link": "-> sub/../a"})
    with pytest.raises(PathRefused, match=r"\.\. after a name"):
        pack(folder, io.BytesIO())


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("link", "/etc/passwd"),
        ("link", ".."),
        ("link", "../other"),
        ("sub/link", "../../other"),
        ("sub/link", "../.."),
        ("link", "sub/../../other"),
        ("link", "./../x"),
    ],
)
def test_a_link_that_leaves_the_folder_is_refused(tmp_path: Path, path: str, target: str) -> None:
    folder = write_tree(tmp_path / "c", {"sub/b": b"", path: f"-> {target}"})
    with pytest.raises(PathRefused, match=f"^{path} cannot be part of a package: .*link"):
        pack(folder, io.BytesIO())


def test_an_absolute_link_into_the_folder_is_refused(tmp_path: Path) -> None:
    folder = write_tree(tmp_path, {"a": b""})
    (folder / "link").symlink_to(folder / "a")
    with pytest.raises(PathRefused, match="absolute"):
        pack(folder, io.BytesIO())


def test_an_ignored_link_may_leave(tmp_path: Path) -> None:
    folder = write_tree(tmp_path, {"a": b"", "l": "-> /etc", ".yardignore": b"/l\n"})
    assert context_paths(folder) == [".yardignore", "a"]


def test_a_pipe_and_a_socket_are_refused_with_their_path(tmp_path: Path) -> None:
    pipe = write_tree(tmp_path / "pipe", {"sub/a": b""})
    os.mkfifo(pipe / "sub/p")
    with pytest.raises(PathRefused, match=r"^sub/p cannot .*: it is a named pipe"):
        pack(pipe, io.BytesIO())
    other = write_tree(tmp_path / "socket", {"a": b""})
    with bind_socket(other / "s"), pytest.raises(PathRefused, match=r"^s cannot .*a socket"):
        pack(other, io.BytesIO())


def test_a_device_is_refused(tmp_path: Path) -> None:
    try:
        os.mknod(tmp_path / "null", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    except PermissionError:
        # Nothing may create a device here, so the scan gets the status of one.
        status = Path("/dev/null").lstat()
        scan = archive._Scan(tmp_path, PackageLimits())
        with pytest.raises(PathRefused, match="device"):
            scan._entry("null", status)
        return
    with pytest.raises(PathRefused, match=r"^null cannot .*a device"):
        pack(tmp_path, io.BytesIO())


@pytest.mark.parametrize(
    "paths",
    [
        ("Model.py", "model.py"),
        ("A/x.py", "a/y.py"),
        ("straße", "STRASSE"),
        ("caf\u00e9.py", "cafe\u0301.py"),
    ],
)
def test_paths_that_differ_only_in_case_are_refused(tmp_path: Path, paths: tuple[str, str]) -> None:
    folder = write_tree(tmp_path, dict.fromkeys(paths, b""))
    with pytest.raises(PathRefused, match="ignores case does not distinguish"):
        pack(folder, io.BytesIO())


def test_a_name_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"bad\xff")).write_bytes(b"")
    with pytest.raises(PathRefused, match="not UTF-8"):
        pack(tmp_path, io.BytesIO())


def test_control_characters_are_escaped_in_errors(tmp_path: Path) -> None:
    (tmp_path / "a\x1b[31m\n").symlink_to("/x")
    with pytest.raises(PathRefused) as caught:
        pack(tmp_path, io.BytesIO())
    assert str(caught.value).isprintable()


def test_a_path_that_is_too_long_is_refused(tmp_path: Path) -> None:
    at = os.open(tmp_path, os.O_RDONLY)
    try:
        for _ in range(14):
            os.mkdir("x" * 250, dir_fd=at)
            inner = os.open("x" * 250, os.O_RDONLY, dir_fd=at)
            os.close(at)
            at = inner
    finally:
        os.close(at)
    with pytest.raises(PathRefused, match="too long"):
        pack(tmp_path, io.BytesIO())


def test_long_paths_and_targets_are_kept(tmp_path: Path) -> None:
    deep = "/".join(["d" * 100] * 6)
    tree: dict[str, bytes | str] = {f"{deep}/f": b"x", "link": f"-> {deep}/f"}
    folder = write_tree(tmp_path / "c", tree)
    found = {member.name: member for member in members(package_of(folder).content)}
    assert found[f"{deep}/f"].size == 1
    assert found["link"].linkname == f"{deep}/f"


def test_the_five_largest_files_are_named_when_the_folder_is_too_large(tmp_path: Path) -> None:
    folder = write_tree(tmp_path, {f"f{size}": b"x" * size for size in range(100, 110)})
    with pytest.raises(ContextTooLarge) as caught:
        pack(folder, io.BytesIO(), limits=PackageLimits(unpacked_bytes=1000))
    assert "its files have 1045 bytes, above 1000 bytes" in str(caught.value)
    assert ".yardignore" in str(caught.value)
    named = "f109 (109 bytes), f108 (108 bytes), f107 (107 bytes), f106 (106 bytes), f105"
    assert f"The largest: {named} (105 bytes)." in str(caught.value)


def test_the_five_largest_files_are_named_when_the_archive_is_too_large(tmp_path: Path) -> None:
    noise = random.Random(1)
    tree = {f"f{number}": noise.randbytes(20_000 + number) for number in range(8)}
    folder = write_tree(tmp_path, dict(tree))
    into = io.BytesIO()
    with pytest.raises(
        ContextTooLarge, match=r"its archive has more than .*f7 .*f6 .*f5 .*f4 .*f3"
    ):
        pack(folder, into, limits=PackageLimits(packed_bytes=50_000))
    assert len(into.getvalue()) <= 50_000


def test_a_folder_at_the_limits_is_packed(tmp_path: Path) -> None:
    folder = write_tree(tmp_path, {"a": b"x" * 600, "b": b"y" * 400})
    size = package_of(folder).size
    limits = PackageLimits(packed_bytes=size, unpacked_bytes=1000, files=2)
    assert package_of(folder, limits).size == size
    for smaller in ({"packed_bytes": size - 1}, {"unpacked_bytes": 999}, {"files": 1}):
        with pytest.raises(ContextTooLarge):
            package_of(folder, PackageLimits(**smaller))


def test_folders_with_the_most_entries_are_named_when_there_are_too_many(tmp_path: Path) -> None:
    tree = {f"many/{number}": b"" for number in range(30)} | {"few/1": b"", "a": b""}
    folder = write_tree(tmp_path, tree)
    with pytest.raises(ContextTooLarge, match=r"more than 20 files .*many \(\d+ entries\)"):
        pack(folder, io.BytesIO(), limits=PackageLimits(files=20))


def test_the_limits_count_no_ignored_file(tmp_path: Path) -> None:
    tree = {f"many/{number}": b"x" * 100 for number in range(30)} | {"a": b"", "c": b""}
    folder = write_tree(tmp_path, tree | {".yardignore": b"many\n"})
    assert len(context_paths(folder, limits=PackageLimits(files=3, unpacked_bytes=50))) == 3


@pytest.mark.parametrize("content", [b"", b"shorter", b"longer than before"])
def test_a_file_that_changes_while_it_is_read_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    folder = write_tree(tmp_path, {"a": b"at the scan"})
    change_after_scan(monkeypatch, lambda: (folder / "a").write_bytes(content))
    with pytest.raises(ContextChanged, match=r"^a changed"):
        pack(folder, io.BytesIO())


def test_a_file_that_becomes_a_link_or_a_pipe_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"0123456789a")
    folder = write_tree(tmp_path / "c", {"a": b"at the scan"})

    def replace_by_link() -> None:
        (folder / "a").unlink()
        (folder / "a").symlink_to(secret)

    def replace_by_pipe() -> None:
        (folder / "a").unlink()
        os.mkfifo(folder / "a")

    for replace in (replace_by_link, replace_by_pipe, (folder / "a").unlink):
        with monkeypatch.context() as patched:
            change_after_scan(patched, replace)
            with pytest.raises(ContextChanged):
                pack(folder, io.BytesIO())
        (folder / "a").unlink(missing_ok=True)
        (folder / "a").write_bytes(b"at the scan")


def change_after_scan(patch: pytest.MonkeyPatch, change: Callable[[], object]) -> None:
    written = archive._write_tar

    def write(*given: object) -> None:
        change()
        written(*given)  # type: ignore[arg-type]

    patch.setattr(archive, "_write_tar", write)


def test_a_file_that_shrinks_in_the_middle_is_an_error(tmp_path: Path) -> None:
    folder = write_tree(tmp_path, {"a": random.Random(1).randbytes(4 * MIB)})

    class Shrinking(io.BytesIO):
        def write(self, data) -> int:
            if self.tell() > MIB:
                os.truncate(folder / "a", 2 * MIB)
            return super().write(data)

    with pytest.raises(ContextChanged):
        pack(folder, Shrinking())


def test_an_error_of_the_output_is_not_an_error_of_the_folder(tmp_path: Path) -> None:
    folder = write_tree(tmp_path, {"a": random.Random(1).randbytes(MIB)})

    class Full(io.BytesIO):
        def write(self, _) -> int:
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        pack(folder, Full())


@pytest.mark.parametrize(
    ("failure", "error", "found"),
    [
        (PermissionError(13, "Permission denied"), PathRefused, r"^sub cannot .*permission denied"),
        (OSError(5, "Input/output error"), PathRefused, r"^sub cannot .*input/output error"),
        (FileNotFoundError(2, "No such file"), ContextChanged, r"^sub changed"),
        (NotADirectoryError(20, "Not a directory"), ContextChanged, r"^sub changed"),
    ],
)
def test_a_folder_that_cannot_be_read_is_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    failure: OSError,
    error: type[Exception],
    found: str,
) -> None:
    folder = write_tree(tmp_path, {"sub/a": b""})
    scandir = os.scandir

    def failing(path: Path):
        if path == folder / "sub":
            raise failure
        return scandir(path)

    monkeypatch.setattr(os, "scandir", failing)
    with pytest.raises(error, match=found):
        context_paths(folder)


def test_a_path_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path / "file", tmp_path / "missing"):
        with pytest.raises(ContextUnusable, match="it is not a folder"):
            pack(path, io.BytesIO())


def test_memory_does_not_depend_on_the_size_of_files(tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as large:
        large.truncate(64 * MIB)
    tracemalloc.start()
    try:
        with Path(os.devnull).open("wb") as into:
            pack(tmp_path, into)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * MIB


NAMES = st.text("abAB.-_é ", min_size=1, max_size=3).filter(lambda name: name not in {".", ".."})


@given(
    st.dictionaries(st.lists(NAMES, min_size=1, max_size=3).map("/".join), st.binary(max_size=9))
)
def test_any_tree_is_packed_or_refused(tmp_path_factory, tree: dict[str, bytes]) -> None:
    folder = tmp_path_factory.mktemp("c")
    for path, content in tree.items():
        try:
            write_tree(folder, {path: content})
        except (FileExistsError, NotADirectoryError, IsADirectoryError):
            continue  # a path of the tree is a folder of another one
    try:
        package = package_of(folder)
    except PathRefused as error:
        assert "ignores case" in str(error)  # noqa: PT017
        return
    paths = [path.removesuffix("/") for path in read_tree(folder)]
    found = [member.name for member in members(package.content)]
    assert found == sorted(paths, key=os.fsencode)


def test_a_written_file_object_may_be_any_binary_file(tmp_path: Path) -> None:
    folder = write_tree(tmp_path / "c", TREE)

    def packed(into: IO[bytes]) -> str:
        with into:
            return pack(folder, into).digest

    assert packed((tmp_path / "p").open("wb")) == packed(io.BytesIO())
