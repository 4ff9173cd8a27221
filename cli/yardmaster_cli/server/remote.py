"""The gateway as commands see it: references resolved, verdicts awaited, answers as plain JSON."""

import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from yardmaster.errors import ApiError
from yardmaster.retry import OutageListener
from yardmaster_cli.config import DEV, Config, server_url
from yardmaster_cli.errors import BadUsage, CliError, Exit, problem_error
from yardmaster_cli.output.cells import span
from yardmaster_cli.output.describe import refusal_words
from yardmaster_cli.output.formats import Output, Row
from yardmaster_cli.server.reader import Json, Reader

if TYPE_CHECKING:
    from pydantic import BaseModel

    from yardmaster.client import Client
    from yardmaster_schemas.api import Accepted, Refusal, Task

_JOB: Final = re.compile(r"^[0-9a-z]{12}$")
#: An id of a job or task, or the beginning of one.
REF: Final = re.compile(r"^([0-9a-z]{1,12})(?:\.(0|[1-9][0-9]{0,3}))?$")
REF_HINT: Final = "like 4kq7w2mz9c1f, 4kq7w2mz9c1f.0 or 4kq7"
#: How long a command waits for quota's verdict before it leaves it at "recorded", in seconds.
VERDICT_S: Final = 5.0
#: The refusals that mean "there is no such thing"; all others are conflicts.
_UNKNOWN: Final = frozenset(
    {
        "job_unknown",
        "task_unknown",
        "project_unknown",
        "department_unknown",
        "pool_unknown",
        "node_unknown",
    }
)


@dataclass(frozen=True, slots=True)
class Ref:
    """A job, or one task of it."""

    job_id: str
    index: int | None = None

    @property
    def id(self) -> str:
        """The whole id."""
        return self.job_id if self.index is None else f"{self.job_id}.{self.index}"


def connect(config: Config) -> "Remote":
    """The server that the settings name.

    Raises:
        CliError: none is named, and no embedded mode runs; or its URL or the token is not valid.
    """
    if config.server.value is None:
        hint = "name one with --server or YARD_SERVER"
        if config.context.value == DEV:
            hint = f"start one with: yard dev   (data folder {config.data_dir})"
        raise CliError("no server is running here", exit_code=Exit.UNREACHABLE, hint=hint)
    return Remote(server_url(config.server.value), config.bearer(), config.ca.value)


def api_error(error: ApiError) -> CliError:
    """What to show for a failed call."""
    problem = error.document
    if error.status == 0 and problem["code"] == "unreachable":
        return CliError(
            problem["detail"],
            exit_code=Exit.UNREACHABLE,
            hint="is it running? yard dev starts one here; yard config shows which is asked",
        )
    return problem_error(error.status, problem)


def refusal_error(refusal: "Refusal", subject: str, *, admission: bool = False) -> CliError:
    """What to show for what quota refused."""
    plain = refusal.model_dump(mode="json")
    code = Exit.NOT_FOUND if refusal.code in _UNKNOWN else Exit.CONFLICT
    return CliError(
        f"{subject}: refused: {refusal_words(plain)}",
        exit_code=Exit.REFUSED if admission else code,
        hint=_HINTS.get(refusal.code),
    )


_HINTS: Final[Mapping[str, str]] = {
    "project_unknown": "yard projects lists them; yard projects create NAME makes one",
    "department_unknown": "yard departments lists them; yard departments create NAME makes one",
    "pool_unknown": "yard pools lists them; yard pools create NAME makes one",
    "pool_not_allowed": "the project may not use this pool; see yard projects show",
    "priority_not_allowed": "too urgent for this project; see yard projects show",
    "kind_not_allowed": "the project may not run jobs of this kind; see yard projects show",
    "limit_exceeded": "it asks for more than its project may ever use; see yard projects show",
    "allocation_too_large": "one record could not hold its allocation; ask for fewer replicas",
    "version_mismatch": "it was modified by someone else; review it and try again",
    "in_use": "something still refers to it",
}


class Remote:
    """The gateway by its two clients, and what several commands do with it."""

    def __init__(self, server: str, token: str | None, ca: str | None) -> None:
        self._server = server
        self._token = token
        self._ca = ca
        self._outages: OutageListener | None = None

    def outlast(self, outages: OutageListener | None) -> None:
        """Let reads wait for the end of the gateway's outages; None: fail as others do."""
        self._outages = outages
        if "client" in self.__dict__:
            self.client.wait_out_outages(outages)
        if "reader" in self.__dict__:
            self.reader.tolerance.listener = outages

    @cached_property
    def client(self) -> "Client":
        """Every call, with typed answers; commands that only read start faster with `reader`."""
        import secrets

        from yardmaster.client import Client

        made = Client(
            self._server,
            self._token,
            sleep=time.sleep,
            new_key=lambda: secrets.token_hex(16),
            ca=self._ca,
        )
        made.wait_out_outages(self._outages)
        return made

    @cached_property
    def reader(self) -> Reader:
        """Reads alone, answered as plain JSON; imports neither models nor httpx."""
        made = Reader(self._server, self._token, sleep=time.sleep, ca=self._ca)
        made.tolerance.listener = self._outages
        return made

    def resolve(self, text: str) -> Ref:
        """The job or task that `text` names: an id, or the beginning of one.

        Raises:
            CliError: nothing or more than one job begins so.
        """
        match = REF.match(text)
        if match is None:
            raise BadUsage(
                f"{text} is not a valid id of a job or task",
                hint=REF_HINT,
            )
        prefix, index = match[1], match[2]
        if _JOB.match(prefix):
            return Ref(prefix, None if index is None else int(index))
        found = [job["job_id"] for job in self.reader.jobs(ref=prefix, limit=10)["items"]]
        if not found:
            raise CliError(
                f"no job begins with {prefix}",
                exit_code=Exit.NOT_FOUND,
                hint="yard ls -A lists all",
            )
        if len(found) > 1:
            raise CliError(
                f"{prefix} is ambiguous: {', '.join(sorted(found))}",
                exit_code=Exit.NOT_FOUND,
                hint="give more of the id",
            )
        return Ref(found[0], None if index is None else int(index))

    def one_task(self, text: str) -> str:
        """The id of the only task that `text` can mean.

        Raises:
            CliError: it means a job with several.
        """
        ref = self.resolve(text)
        if ref.index is not None:
            return ref.id
        count = self.reader.job(ref.job_id)["tasks"]
        if count > 1:
            raise BadUsage(f"{ref.id} has {count} tasks", hint=f"name one: {ref.id}.0")
        return f"{ref.job_id}.0"

    def tasks_of(self, ref: Ref, min_position: str | None = None) -> "list[Task]":
        """The tasks that a reference means, in order of their index."""
        if ref.index is not None:
            return [self.client.task(ref.id, min_position=min_position)]
        found = self.client.all_tasks(job_id=ref.job_id, min_position=min_position)
        tasks = sorted(found, key=lambda task: task.index)
        if not tasks:
            raise CliError(f"there is no job {ref.job_id}", exit_code=Exit.NOT_FOUND)
        return tasks

    def rows_of(self, ref: Ref) -> list[Json]:
        """The tasks that a reference means as plain JSON, in order of their index."""
        if ref.index is not None:
            return [self.reader.task(ref.id)]
        rows = sorted(self.reader.all_tasks(job_id=ref.job_id), key=lambda row: row["index"])
        if not rows:
            raise CliError(f"there is no job {ref.job_id}", exit_code=Exit.NOT_FOUND)
        return rows

    def settle(self, accepted: "Accepted", subject: str, out: Output) -> None:
        """Wait until quota has judged a change; say so when it takes longer.

        Raises:
            CliError: it was refused.
        """
        from yardmaster_schemas.api import RequestState

        deadline = time.monotonic() + VERDICT_S
        # A request is known once the views have got to it.
        self.client.pools(limit=1, min_position=accepted.position)
        for request_id in accepted.request_ids:
            left = max(0.0, deadline - time.monotonic())
            request = self.client.request(request_id, wait_s=left)
            if request.state is RequestState.REFUSED and request.refusal is not None:
                raise refusal_error(request.refusal, subject)
            if request.state is RequestState.RECORDED:
                out.note(f"{subject}: recorded, not judged after {span(VERDICT_S)}")


@contextmanager
def creating(what: str, name: str) -> Iterator[None]:
    """Inside, an object is created that must not exist; `what`: `project`, say.

    Raises: CliError when it exists.
    """
    try:
        yield
    except ApiError as error:
        if error.document["code"] not in ("already_exists", "version_mismatch"):
            raise
        raise CliError(
            f"{what} {name} exists already",
            exit_code=Exit.CONFLICT,
            hint=f"change it with: yard {what}s set {name} KEY=VALUE",
        ) from None


def plain(model: "BaseModel") -> dict[str, Any]:
    """An answer as the JSON it was."""
    return model.model_dump(mode="json")


def rows(models: "Iterable[BaseModel]") -> list[Row]:
    """Answers as rows of a table."""
    return [plain(model) for model in models]
