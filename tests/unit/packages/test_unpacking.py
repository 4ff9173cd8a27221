"""A package as a folder: only what is verified, inside its folder, within its limits."""

import gzip
import hashlib
import io
import os
import random
import resource
import signal
import stat
import tarfile
import tracemalloc
import zlib
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.packages import (
    Package,
    directory,
    entry,
    file,
    link,
    package_of,
    package_of_tar,
    read_tree,
    tar_of,
    write_tree,
)
from yardmaster_packages.errors import ArchiveRefused, WrongDigest, WrongSize
from yardmaster_packages.limits import MIB, PackageLimits
from yardmaster_packages.unpacking import unpack

USTAR: Final = 0
GNU: Final = 1
PAX: Final = 2
TREE: dict[str, bytes | str] = {
    "train.py": b"print('hello')\n",
    "lib/": b"",
    "lib/model.py": b"class Model: ...\n" * 40_000,
    "lib/exact.bin": b"x" * 1024,
    "lib/latest": "-> ../current/model.py",
    "current": "-> lib",
    "empty/": b"",
    "ünïcode/": b"",
    "ünïcode/文件.txt": b"",
    "/".join(["d" * 100] * 3) + "/": b"",
}


@pytest.fixture(autouse=True, params=sorted({False, hasattr(tarfile, "data_filter")}))
def filters(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether Python has the filters of `tarfile`, which Debian 12 does not have."""
    monkeypatch.setattr("yardmaster_packages.unpacking._HAS_FILTERS", request.param)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    folder = tmp_path / "cache"
    folder.mkdir()
    return folder


def unpacked(package: Package, cache: Path, limits: PackageLimits | None = None) -> Path:
    into = cache / package.digest
    unpack(
        io.BytesIO(package.content),
        into,
        digest=package.digest,
        packed_bytes=package.size,
        limits=limits,
    )
    return into


def refused(package: Package, cache: Path, limits: PackageLimits | None = None) -> str:
    """The error of a package, which must leave nothing in the cache or next to it."""
    before = read_tree(cache.parent)
    with pytest.raises(ArchiveRefused) as caught:
        unpacked(package, cache, limits)
    assert read_tree(cache.parent) == before
    assert str(caught.value).isprintable()
    return str(caught.value)


def test_what_was_packed_is_unpacked(tmp_path: Path, cache: Path) -> None:
    folder = write_tree(tmp_path / "context", TREE)
    (folder / "train.py").chmod(0o750)
    into = unpacked(package_of(folder), cache)
    assert read_tree(into) == read_tree(folder)
    assert [path.name for path in cache.iterdir()] == [into.name]
    for path in (into, *into.rglob("*")):
        status = path.lstat()
        if not stat.S_ISLNK(status.st_mode):
            executable = path.is_dir() or path.name == "train.py"
            assert stat.S_IMODE(status.st_mode) == (0o755 if executable else 0o644)
        assert (status.st_uid, status.st_gid) == (os.geteuid(), os.getegid())
    assert package_of(into).digest == into.name


def test_the_modes_do_not_depend_on_the_umask(tmp_path: Path, cache: Path) -> None:
    package = package_of(write_tree(tmp_path / "context", {"sub/a": b""}))
    mask = os.umask(0o077)
    try:
        into = unpacked(package, cache)
    finally:
        os.umask(mask)
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (into, into / "sub", into / "sub/a")]
    assert modes == [0o755, 0o755, 0o644]


def test_files_have_the_time_of_the_unpacking(tmp_path: Path, cache: Path) -> None:
    """With one time for ever, Python would take compiled files of another version for current."""
    into = unpacked(package_of(write_tree(tmp_path / "context", {"a.py": b""})), cache)
    assert (into / "a.py").stat().st_mtime > 1_700_000_000


def test_an_empty_package_is_an_empty_folder(tmp_path: Path, cache: Path) -> None:
    into = unpacked(package_of(write_tree(tmp_path / "context", {})), cache)
    assert list(into.iterdir()) == []


def test_a_folder_that_another_process_has_unpacked_is_kept(tmp_path: Path, cache: Path) -> None:
    package = package_of(write_tree(tmp_path / "context", {"a": b""}))
    first = unpacked(package, cache)
    (first / "mark").write_bytes(b"")
    assert (unpacked(package, cache) / "mark").exists()
    assert [path.name for path in cache.iterdir()] == [package.digest]


@pytest.mark.parametrize("form", [USTAR, PAX], ids=["ustar", "pax"])
def test_a_tar_of_another_program_is_accepted(cache: Path, form: int) -> None:
    package = package_of_tar(tar_of(directory("sub"), file("sub/a"), link("l", "sub/a"), form=form))
    assert read_tree(unpacked(package, cache)) == {"sub/": b"", "sub/a": b"x", "l": "-> sub/a"}


# --- paths that leave (zip slip) ----------------------------------------------------------------

PATHS = [
    "../evil",
    "../../evil",
    "sub/../../evil",
    "/evil",
    "/etc/evil",
    "//evil",
    "./evil",
    "sub/./evil",
    "sub//evil",
    "..",
    ".",
    "sub/..",
    "../" * 40 + "etc/evil",
    "x" * 256,
    "/".join(["d" * 200] * 20),
]


@pytest.mark.parametrize("form", [PAX, GNU], ids=["pax", "gnu"])
@pytest.mark.parametrize("path", PATHS, ids=[path[:20] for path in PATHS])
def test_a_path_that_leaves_or_is_not_plain_is_refused(cache: Path, path: str, form: int) -> None:
    tar = tar_of(directory("sub"), file(path), form=form)
    assert "it contains" in (found := refused(package_of_tar(tar), cache)) or "neither" in found


def test_a_folder_that_leaves_is_refused(cache: Path) -> None:
    assert ".." in refused(package_of_tar(tar_of(directory("../evil"))), cache)


@pytest.mark.parametrize("path", ["../evil", "/evil", "sub/../../evil"])
def test_a_path_of_an_extended_header_is_checked(cache: Path, path: str) -> None:
    info = tarfile.TarInfo("harmless")
    info.pax_headers = {"path": path}
    assert repr(path) in refused(package_of_tar(tar_of((info, b"x"))), cache)


def test_a_zero_byte_in_a_path_is_refused(cache: Path) -> None:
    info = tarfile.TarInfo("harmless")
    info.pax_headers = {"path": "a\0b"}
    assert "zero byte" in refused(package_of_tar(tar_of((info, b"x"))), cache)


# --- links and special files ---------------------------------------------------------------------

TARGETS = ["/etc/passwd", "..", "../x", "sub/../../x", "/", "../" * 30, "sub/../sub"]


@pytest.mark.parametrize("target", TARGETS)
def test_a_symbolic_link_that_leaves_is_refused(cache: Path, target: str) -> None:
    tar = tar_of(directory("sub"), link("evil", target))
    assert "'evil': it is a symbolic link" in refused(package_of_tar(tar), cache)


def test_a_symbolic_link_may_not_climb_above_the_folder_of_its_depth(cache: Path) -> None:
    inside = tar_of(directory("a"), directory("a/b"), link("a/b/l", "../../x"))
    assert read_tree(unpacked(package_of_tar(inside), cache))["a/b/l"] == "-> ../../x"
    outside = tar_of(directory("a"), directory("a/b"), link("a/b/l", "../../../x"))
    assert "leaves the folder" in refused(package_of_tar(outside), cache)


def test_nothing_is_written_through_a_symbolic_link(cache: Path) -> None:
    for tar in (
        tar_of(directory("sub"), link("l", "sub"), file("l/a")),
        tar_of(directory("sub"), link("l", "sub"), directory("l/a")),
        tar_of(link("l", "."), file("l/a")),
    ):
        assert "its folder is not part of the package" in refused(package_of_tar(tar), cache)


def test_a_link_is_not_replaced_by_a_file_or_folder(cache: Path) -> None:
    for tar in (
        tar_of(link("l", "x"), file("l")),
        tar_of(link("l", "x"), directory("l")),
        tar_of(directory("l"), link("l", "x"), file("l/a")),
        tar_of(file("a", b"1"), file("a", b"2")),
        tar_of(directory("a"), directory("a")),
        tar_of(directory("a"), directory("a/")),
    ):
        assert "occurs twice" in refused(package_of_tar(tar), cache)


def test_the_chain_of_links_that_misled_tarfile_is_refused(cache: Path) -> None:
    """CVE-2025-4517: a link whose resolved path is too long for the check of its target."""
    parts = [directory("a")]
    long = "d" * 247
    path = ""
    for step in "abcdefghijklmnop":
        parts += [directory(f"{path}{long}"), link(f"{path}{step}", long)]
        path += f"{long}/"
    short = "/".join("abcdefghijklmnop")
    parts.append(link(f"{short}/{'l' * 254}", "../" * 16))
    parts.append(link("escape", f"{short}/{'l' * 254}/../../../../etc"))
    refused(package_of_tar(tar_of(*parts)), cache)


@pytest.mark.parametrize(
    "kind",
    [tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, tarfile.CONTTYPE, b"S"],
    ids=["hard link", "character device", "block device", "pipe", "contiguous", "sparse"],
)
def test_other_kinds_of_entries_are_refused(cache: Path, kind: bytes) -> None:
    tar = tar_of(file("a"), entry("evil", kind, "a"))
    assert "'evil': it is neither a file" in refused(package_of_tar(tar), cache)


def test_a_hard_link_out_of_the_folder_is_refused(cache: Path) -> None:
    tar = tar_of(entry("evil", tarfile.LNKTYPE, "/etc/passwd"))
    assert "neither a file" in refused(package_of_tar(tar), cache)


def test_a_socket_has_no_kind_in_a_tar_and_an_unknown_kind_is_refused(cache: Path) -> None:
    assert "neither" in refused(package_of_tar(tar_of(entry("evil", b"Z"))), cache)


def test_modes_of_the_archive_give_no_rights(cache: Path) -> None:
    info, content = file("a")
    info.mode, info.uid, info.uname = 0o6777, 0, "root"
    folder = directory("sub")
    folder.mode = 0
    into = unpacked(package_of_tar(tar_of((info, content), folder)), cache)
    assert stat.S_IMODE((into / "a").stat().st_mode) == 0o755
    assert stat.S_IMODE((into / "sub").stat().st_mode) == 0o755


def test_paths_that_differ_only_in_case_are_refused(cache: Path) -> None:
    for first, second in (("A", "a"), ("caf\u00e9", "cafe\u0301"), ("ss", "ß")):
        tar = tar_of(file(first), file(second))
        assert "only in case" in refused(package_of_tar(tar), cache)


def test_a_file_without_its_folder_is_refused(cache: Path) -> None:
    assert "its folder is not" in refused(package_of_tar(tar_of(file("sub/a"))), cache)
    tar = tar_of(file("sub"), file("sub/a"))
    assert "its folder is not" in refused(package_of_tar(tar), cache)


# --- limits ---------------------------------------------------------------------------------------


def test_a_package_at_the_limits_is_unpacked(cache: Path) -> None:
    package = package_of_tar(tar_of(file("a", b"x" * 600), file("b", b"y" * 400)))
    exact = {"packed_bytes": package.size, "unpacked_bytes": 1000, "files": 2}
    for name, smaller in exact.items():
        refused(package, cache, PackageLimits(**{**exact, name: smaller - 1}))
    assert (unpacked(package, cache, PackageLimits(**exact)) / "b").read_bytes() == b"y" * 400


def test_one_file_above_the_number_is_refused(cache: Path) -> None:
    assert PackageLimits().files == 100_000
    files = [file(f"f{number}", b"") for number in range(101)]
    limits = PackageLimits(files=100)
    assert "more than 100 files" in refused(package_of_tar(tar_of(*files)), cache, limits)
    unpacked(package_of_tar(tar_of(*files[:100])), cache, limits)


def test_a_compression_bomb_ends_at_the_limit(cache: Path) -> None:
    """1 GiB of zeros in 1 MiB: refused after 2 MiB, with flat memory."""
    limits = PackageLimits(unpacked_bytes=MIB, files=100)
    info = tarfile.TarInfo("bomb")
    info.size = 1024 * MIB
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    zeros = bytes(MIB)
    content = packer.compress(info.tobuf(PAX))
    content += b"".join(packer.compress(zeros) for _ in range(256)) + packer.flush()
    tracemalloc.start()
    try:
        found = refused(Package("ab" * 32, content), cache, limits)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert "files have more than" in found
    assert peak < 4 * MIB


def test_zeros_after_the_end_of_the_tar_are_limited(cache: Path) -> None:
    limits = PackageLimits(unpacked_bytes=MIB, files=10)
    package = package_of_tar(tar_of(file("a")) + bytes(4 * MIB), level=9)
    assert "unpacks to more than" in refused(package, cache, limits)


def test_a_folder_and_a_link_have_no_content(cache: Path) -> None:
    for one in (directory("a"), link("a", "b")):
        one.size = 512
        tar = one.tobuf(USTAR) + bytes(512) + bytes(1024)
        assert "has content" in refused(package_of_tar(tar), cache)


def test_an_extended_header_of_any_size_is_not_read_into_memory(cache: Path) -> None:
    info = tarfile.TarInfo("././@PaxHeader")
    info.type, info.size = tarfile.XHDTYPE, 512 * MIB
    package = package_of_tar(info.tobuf(USTAR) + bytes(MIB))
    tracemalloc.start()
    try:
        assert "extended header of its tar has" in refused(package, cache)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * MIB


@pytest.mark.parametrize("key", ["size", "mtime", "uid", "GNU.sparse.size", "SCHILY.xattr.user"])
def test_an_extended_header_with_another_key_is_refused(cache: Path, key: str) -> None:
    info = tarfile.TarInfo("a")
    info.pax_headers = {key: "1"}
    assert f"the key {key!r}" in refused(package_of_tar(tar_of((info, b"x"))), cache)


def extended(content: bytes) -> bytes:
    info = tarfile.TarInfo("././@PaxHeader")
    info.type, info.size = tarfile.XHDTYPE, len(content)
    return info.tobuf(USTAR) + content + bytes(-len(content) % 512)


@pytest.mark.parametrize(
    "content",
    [
        b"x",
        b"8 path=",
        b"9 path=a\n\n",
        b"99999 path=a\n",
        b"0 path=a\n",
        b"-9 path=a\n",
        b"9 path:a\n",
        b"11 path=\xff\xfe\n",
        b"999999999999999999 path=a\n",
        b"9path=ab\n",
    ],
)
def test_a_damaged_extended_header_is_refused(cache: Path, content: bytes) -> None:
    tar = extended(content) + tar_of(file("a"))
    assert "damaged extended header" in refused(package_of_tar(tar), cache)


def test_an_extended_header_without_its_entry_is_refused(cache: Path) -> None:
    refused(package_of_tar(extended(b"9 path=a\n") + bytes(1024)), cache)
    tar = extended(b"9 path=a\n") * 2 + tar_of(file("a"))
    assert "two extended headers" in refused(package_of_tar(tar), cache)


def test_a_global_header_is_refused(cache: Path) -> None:
    info = tarfile.TarInfo("g")
    info.type = tarfile.XGLTYPE
    assert "neither a file" in refused(package_of_tar(info.tobuf(USTAR) + bytes(1024)), cache)


# --- damaged and other packages ------------------------------------------------------------------


@pytest.fixture
def package(tmp_path: Path) -> Package:
    return package_of(write_tree(tmp_path / "context", TREE))


def test_a_package_truncated_anywhere_leaves_nothing(package: Package, cache: Path) -> None:
    for size in (0, 1, 9, 10, 100, package.size // 2, package.size - 8, package.size - 1):
        cut = package.content[:size]
        with pytest.raises(ArchiveRefused):
            unpack(
                io.BytesIO(cut),
                cache / package.digest,
                digest=package.digest,
                packed_bytes=package.size,
            )
        refused(Package(package.digest, cut), cache)
    assert list(cache.iterdir()) == []


def test_a_tar_truncated_anywhere_is_refused(package: Package, cache: Path) -> None:
    tar = gzip.decompress(package.content)
    for size in (0, 1, 511, 512, 513, 1024, len(tar) // 2):
        assert "tar" in refused(package_of_tar(tar[:size]), cache)


def test_a_tar_without_its_end_is_refused(cache: Path) -> None:
    tar = tar_of(file("a", b"x" * 512))
    assert "its tar is truncated" in refused(package_of_tar(tar[:1024]), cache)


def test_another_digest_leaves_nothing(package: Package, cache: Path) -> None:
    other = Package("00" * 32, package.content)
    with pytest.raises(WrongDigest, match=package.digest):
        unpacked(other, cache)
    assert list(cache.iterdir()) == []


def test_another_size_leaves_nothing(package: Package, cache: Path) -> None:
    for size in (package.size - 1, package.size + 1):
        with pytest.raises(WrongSize):
            unpack(
                io.BytesIO(package.content),
                cache / "x",
                digest=package.digest,
                packed_bytes=size,
            )
    assert list(cache.iterdir()) == []


def test_the_size_is_refused_before_anything_is_read(package: Package, cache: Path) -> None:
    class Unread(io.BytesIO):
        def read(self, *_) -> bytes:
            raise AssertionError

    with pytest.raises(WrongSize, match="the limit is"):
        unpack(Unread(), cache / "x", digest=package.digest, packed_bytes=101 * MIB)


def test_bytes_after_the_end_are_refused(package: Package, cache: Path) -> None:
    for more in (b"\0", b"more", gzip.compress(b"more")):
        longer = Package(package.digest, package.content + more)
        assert "bytes follow its end" in refused(longer, cache)


def test_bytes_after_the_end_of_the_tar_are_refused(cache: Path) -> None:
    tar = tar_of(file("a"))
    assert "bytes follow the end of its tar" in refused(package_of_tar(tar + b"x" * 512), cache)
    hidden = tar + tar_of(file("../evil"))
    assert "bytes follow the end of its tar" in refused(package_of_tar(hidden), cache)


def test_bytes_after_a_file_are_refused(cache: Path) -> None:
    tar = bytearray(tar_of(file("a")))
    tar[600] = 1
    assert "bytes follow a file" in refused(package_of_tar(bytes(tar)), cache)


def test_what_is_not_gzip_is_refused(cache: Path) -> None:
    tar = tar_of(file("a"))
    digest = hashlib.sha256(tar).hexdigest()
    for content in (tar, zlib.compress(tar), b"PK\x03\x04", os.urandom(1000)):
        assert "not gzip" in refused(Package(digest, content), cache)


def test_a_negative_size_is_refused(cache: Path) -> None:
    header = bytearray(tarfile.TarInfo("a").tobuf(USTAR))
    header[124:136] = b"\xff" * 12
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    assert "damaged header" in refused(package_of_tar(bytes(header) + bytes(1024)), cache)


def test_an_error_of_the_disk_leaves_nothing(package: Package, cache: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            unpacked(package, cache)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert list(cache.iterdir()) == []


def test_a_path_that_is_too_long_below_the_cache_is_refused(tmp_path: Path) -> None:
    cache = tmp_path / "/".join(["c" * 250] * 5)
    cache.mkdir(parents=True)
    names = ["d" * 250] * 12
    parts = [directory("/".join(names[:number])) for number in range(1, 13)]
    assert "too long" in refused(package_of_tar(tar_of(*parts)), cache)


@given(st.integers(0, 2**32))
def test_a_damaged_package_is_refused_and_leaves_nothing(tmp_path_factory, seed: int) -> None:
    """Flipped bytes in the tar, with the digest of the damaged tar."""
    chance = random.Random(seed)
    tar = bytearray(tar_of(directory("sub"), file("sub/a", b"x" * 700), link("l", "sub/a")))
    for _ in range(chance.randint(1, 4)):
        tar[chance.randrange(len(tar))] = chance.randrange(256)
    folder = tmp_path_factory.mktemp("d")
    cache = folder / "cache"
    cache.mkdir()
    try:
        unpacked(package_of_tar(bytes(tar)), cache)
    except ArchiveRefused:
        assert list(cache.iterdir()) == []
    assert [path.name for path in folder.iterdir()] == ["cache"]


def test_memory_does_not_depend_on_the_size_of_files(tmp_path: Path, cache: Path) -> None:
    context = tmp_path / "context"
    context.mkdir()
    with (context / "large").open("wb") as large:
        large.truncate(32 * MIB)
    package = package_of(context)
    tracemalloc.start()
    try:
        into = unpacked(package, cache)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (into / "large").stat().st_size == 32 * MIB
    assert peak < 4 * MIB
