"""Commits of git repositories, as packages for the working folders of replicas.

Nothing in a repository runs here, and the machine's configuration of git is not used: without it
there are no filters, hooks, other transports or redirects, and no credentials but the secret that
a job names.
"""

import asyncio
import hashlib
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final, TypeVar
from urllib.parse import urlsplit

from yardmaster_node_agent.errors import CommitMissing, CommitRefused, CommitUnusable, GitFailed
from yardmaster_node_agent.executors.secrets import Secrets
from yardmaster_node_agent.git_login import DESCRIPTOR, GitLogin, login_of, options
from yardmaster_packages.archive import pack
from yardmaster_packages.errors import ContextUnusable
from yardmaster_packages.limits import MIB, PackageLimits
from yardmaster_schemas.events.details import GitCommit

T = TypeVar("T")

#: Seconds without any byte of the server after which a fetch fails; it has no limit in total.
IDLE_S: Final = 60
#: The variables of the agent that git gets: its program, the proxy, and trusted certificates.
_PASSED: Final = ("PATH", "https_proxy", "HTTPS_PROXY", "no_proxy", "NO_PROXY", "GIT_SSL_CAINFO")
_SAFE: Final = (
    *("-c", "http.followRedirects=false", "-c", "http.lowSpeedLimit=1"),
    *("-c", f"http.lowSpeedTime={IDLE_S}", "-c", "fetch.unpackLimit=1"),
    *("-c", "core.hooksPath=/dev/null", "-c", "credential.helper=", "-c", "gc.auto=0"),
)
# git exits with 128 for each failure and tells no HTTP status, so its messages are all that tells
# them apart; in the locale C they are those of its source.
#: Messages with which git fails because the server has no such commit or repository.
_MISSING: Final = ("not our ref", "unadvertised object", "remote ref", "' not found")
#: The message with which git fails because of the name of a file.
_INVALID_PATH: Final = "invalid path"
#: Messages with which git fails because the server does not let it read the repository.
_NO_LOGIN: Final = ("could not read Username", "could not read Password", "Authentication failed")
_FORBIDDEN: Final = "returned error: 403"
_LOGIN_NEEDED: Final = (
    "it asks for a login, so the repository is private or does not exist; for a private one, name "
    "a secret in run.git.secret"
)
_MAX_MESSAGE: Final = 300
#: The most bytes of the list of one file, on average.
_LISTED_BYTES: Final = 512


class GitCommits:
    """Fetches commits from the hosts that the node allows."""

    def __init__(self, hosts: Collection[str], limits: PackageLimits, secrets: Secrets) -> None:
        self._hosts = frozenset(hosts)
        self._limits = limits
        self._secrets = secrets

    def login(self, source: GitCommit, project: str) -> GitLogin | None:
        """Return the login of a commit's secret; None: it names none.

        Raises: SecretMissing.
        """
        return login_of(self._secrets, source, project)

    async def pack(
        self, source: GitCommit, login: GitLogin | None, scratch: Path, into: Path
    ) -> str:
        """Write the files of a commit as a package to `into`; return its digest.

        Raises:
            GitFailed: `failure` says whether another node may have it.
            OSError.
        """
        host = urlsplit(source.url).netloc
        if host not in self._hosts:
            raise GitFailed(found=f"{host} is not in this node's YARD_AGENT_GIT_HOSTS")
        folder = Path(tempfile.mkdtemp(dir=scratch))
        try:
            return await self._packed(source, login, folder, into)
        finally:
            await _in_thread(lambda: shutil.rmtree(folder, ignore_errors=True))

    async def _packed(
        self, source: GitCommit, login: GitLogin | None, folder: Path, into: Path
    ) -> str:
        largest, commit = self._limits.unpacked_bytes, source.commit
        tree = folder / "tree"
        os.mkdir(tree)
        await _git(folder, MIB, "init", "--quiet", "--bare", "--template=", "repository")
        fetch = ("fetch", "--quiet", "--depth=1", "--no-tags", "--no-recurse-submodules")
        asked = () if login is None else options(source)
        await _git(folder, largest, *asked, *fetch, source.url, commit, login=login)
        kind = await _git(folder, MIB, "cat-file", "-t", commit)
        if kind != b"commit\n":
            raise CommitMissing(found=f"{commit} is not a commit")
        listed = self._limits.files * _LISTED_BYTES
        entries = await _git(folder, listed, "ls-tree", "-r", "-t", "-l", "-z", commit)
        await _in_thread(lambda: self._check(entries))
        checkout = ("checkout", "--quiet", "--force", "--detach", commit)
        await _git(folder, largest, *checkout)

        def write() -> str:
            with into.open("xb") as file:
                return pack(tree, file, limits=self._limits).digest

        try:
            return await _in_thread(write)
        except ContextUnusable as error:
            raise CommitUnusable(found=str(error).replace(str(tree), "of the commit")) from error

    def _check(self, listed: bytes) -> None:
        """Check the sizes before anything is written: a small repository can have huge files."""
        entries = listed.split(b"\0")[:-1]
        sizes = (entry.split(b"\t")[0].split()[3] for entry in entries)
        total = sum(int(size) for size in sizes if size != b"-")
        if len(entries) > self._limits.files or total > self._limits.unpacked_bytes:
            raise CommitUnusable(
                found=f"the commit has {len(entries)} files of {total} bytes; allowed are "
                f"{self._limits.files} files of {self._limits.unpacked_bytes} bytes"
            )


async def _in_thread(work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(None, work)


def archive_key(source: GitCommit, project: str) -> str:
    """Return the name under which a commit is cached: by project, if it needs a secret."""
    private = () if source.secret is None else (project, source.secret)
    return hashlib.sha256(" ".join((source.url, source.commit, *private)).encode()).hexdigest()


async def _git(folder: Path, max_bytes: int, *words: str, login: GitLogin | None = None) -> bytes:
    """Run git in a folder; return its output. No file that it writes exceeds `max_bytes`.

    Raises:
        GitFailed, OSError.
    """
    limit = f"ulimit -f {-(-max_bytes // 512)}"
    start = f'{limit}; exec "$@" {DESCRIPTOR}<&0 </dev/null'
    limited = ("sh", "-c", start, "sh", "git", *_SAFE)
    where = () if words[0] == "init" else ("--git-dir=repository", "--work-tree=tree")
    with (
        tempfile.TemporaryFile(dir=folder) as out,
        tempfile.TemporaryFile(dir=folder) as errors,
        _answering(login) as answer,
    ):
        process = await asyncio.create_subprocess_exec(
            *(*limited, *where, *words),
            cwd=folder,
            env=_environment(folder),
            stdin=answer,
            stdout=out,
            stderr=errors,
            start_new_session=True,
        )
        try:
            code = await process.wait()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        out.seek(0)
        errors.seek(0)
        if code == 0:
            return out.read()
        packs = (folder / "repository/objects/pack").glob("tmp_*")
        if any(path.stat().st_size >= max_bytes for path in packs):
            raise CommitUnusable(found=f"the repository sends more than {max_bytes} bytes")
        raise _failure(code, errors.read(MIB), login)


@contextmanager
def _answering(login: GitLogin | None) -> Iterator[BinaryIO]:
    """Open what git reads as the answer to a question for a login."""
    if login is None:
        with open(os.devnull, "rb") as nothing:
            yield nothing
        return
    reader, writer = os.pipe()
    with open(reader, "rb") as answer:
        with open(writer, "wb") as file:
            file.write(login.answer)
        yield answer


def _environment(folder: Path) -> dict[str, str]:
    passed = {name: os.environ[name] for name in _PASSED if name in os.environ}
    return {
        **passed,
        "HOME": str(folder),
        "LC_ALL": "C",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ALLOW_PROTOCOL": "https",
    }


def _failure(code: int, errors: bytes, login: GitLogin | None) -> GitFailed:
    if code == 127:
        return GitFailed(found="this node has no program git")
    text = errors.decode("utf-8", "replace")
    if any(words in text for words in _NO_LOGIN):
        return CommitRefused(found=_LOGIN_NEEDED if login is None else f"it refuses {login.shown}")
    if login is not None and _FORBIDDEN in text:
        return CommitRefused(found=f"it refuses {login.shown} (403)")
    lines = [line for line in text.splitlines() if line.startswith(("fatal:", "error:"))]
    shown = "".join(c for c in " ".join(lines) if c.isprintable())
    if login is not None:
        shown = login.hidden_in(shown)
    found = f"git: {shown[:_MAX_MESSAGE].rstrip('.') or f'exit code {code}'}"
    if _FORBIDDEN in text:
        return CommitRefused(found=found)
    if any(words in text for words in _MISSING):
        return CommitMissing(found=found)
    if code == -signal.SIGXFSZ or _INVALID_PATH in text:
        return CommitUnusable(found=found)
    return GitFailed(found=found)
