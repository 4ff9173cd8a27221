"""The calls of `Client` for artifacts: files of tasks that were kept."""

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote

from yardmaster.connection import Connection, quoted
from yardmaster.errors import ApiError, InputError, no_answer
from yardmaster.retry import Params
from yardmaster_schemas.api import ArtifactList, KeptArtifact


class ArtifactCalls(Connection):
    """Calls for artifacts; see `Client`."""

    def artifacts(
        self,
        task_id: str,
        *,
        attempt: int | None = None,
        replica: int | None = None,
        limit: int | None = None,
        cursor: str | None = None,
        min_position: str | None = None,
    ) -> ArtifactList:
        """One page of the kept files of an attempt, by default of the newest one with any."""
        params: Params = {
            **{"attempt": attempt, "replica": replica, "limit": limit},
            **{"cursor": cursor, "min_position": min_position},
        }
        return self._get(f"/v1/tasks/{quoted(task_id)}/artifacts", ArtifactList, params)

    def artifact_pages(
        self, task_id: str, *, attempt: int | None = None, replica: int | None = None
    ) -> Iterator[ArtifactList]:
        """All pages of the kept files of one attempt."""
        cursor: str | None = None
        while True:
            page = self.artifacts(
                task_id, attempt=attempt, replica=replica, limit=1000, cursor=cursor
            )
            yield page
            attempt, cursor = page.attempt, page.next_cursor
            if cursor is None:
                return

    def save_artifact(
        self, task_id: str, artifact: KeptArtifact, path: Path, *, attempt: int
    ) -> None:
        """Write a kept file of an attempt to a path; its folder is created.

        The content is verified before the file gets its name, so an interrupted call leaves
        nothing.

        Raises:
            ApiError: also with the code `artifact_damaged`, if the content has another digest.
            InputError: the file cannot be written.
        """
        url = f"/v1/tasks/{quoted(task_id)}/artifacts/{quote(artifact.path)}"
        params: Params = {"attempt": attempt, "replica": artifact.replica}
        draft = path.with_name(f".{path.name[:200]}.new")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                digest = self._write_to(draft, url, params)
                if digest != artifact.digest:
                    found = f"the content of {artifact.path} has another digest than it was kept"
                    raise ApiError(no_answer("artifact_damaged", found))
                draft.replace(path)
            finally:
                draft.unlink(missing_ok=True)
        except OSError as error:
            raise InputError(f"{path} cannot be written: {error.strerror}") from error

    def _write_to(self, draft: Path, url: str, params: Params) -> str:
        """Write the content at a URL to a file; return its SHA-256."""
        digest = sha256()
        with draft.open("wb") as file, self._transport.stream(url, params, {}) as response:
            for piece in response.iter_bytes():
                digest.update(piece)
                file.write(piece)
        return digest.hexdigest()
