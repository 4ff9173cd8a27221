"""The gateway for commands: resolves references, waits for verdicts, returns plain JSON."""

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from yardmaster.configuration import Config
from yardmaster.errors import ApiError
from yardmaster.retry import SLOW_S, OutageListener
from yardmaster_cli.errors import BadUsage, CliError, Exit, list_hint, problem_error
from yardmaster_cli.output.cells import span
from yardmaster_cli.output.describe import refusal_words
from yardmaster_cli.output.formats import Output, Row
from yardmaster_cli.server.reader import Json, Reader

if TYPE_CHECKING:
    from pydantic import BaseModel

    from yardmaster.client import Client
    from yardmaster_schemas.api import Accepted, Refusal

_JOB: Final = re.compile(r"^[0-9a-z]{12}$")
#: The id of a job or task, or a prefix of one.
REF: Final = re.compile(r"^([0-9a-z]{1,12})(?:\.(0|[1-9][0-9]{0,3}))?$")
#: The label of a group of tasks in a list.
_GROUP: Final = re.compile(r"^([0-9a-z]{12})\.\[[0-9.,-]+\]$")
REF_HINT: Final = "like 4kq7w2mz9c1f, 4kq7w2mz9c1f.0 or 4kq7"
#: The longest wait for the verdict of the quota service, in seconds. A request without a verdict is
#: then reported as recorded.
VERDICT_S: Final = 5.0
#: The refusals of unknown names; all other refusals are conflicts.
_UNKNOWN: Final = frozenset(
    {
        "job_unknown",
        "task_unknown",
        "project_unknown",
        "department_unknown",
        "pool_unknown",
        "node_unknown",
        "cell_unknown",
        "user_unknown",
        "role_unknown",
        "token_unknown",
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


def connect(config: Config, out: Output) -> "Remote":
    """Create the connection to the server that the settings name; nothing is sent yet.

    On a terminal, slow calls are reported.

    Raises:
        InputError: no server is named or runs here, or its URL or the token is not valid.
    """
    server = config.address()

    def report(call: str) -> None:
        out.note(f"no answer for {span(SLOW_S)}; waiting for {server} ({call})")

    return Remote(server, config.bearer(), config.ca.value, report if out.progress else None)


def api_error(error: ApiError) -> CliError:
    """The error to show for a failed call."""
    problem = error.document
    if error.status == 0 and problem["code"] == "unreachable":
        return CliError(
            problem["detail"],
            exit_code=Exit.UNREACHABLE,
            hint="check that it runs; yard config shows the address, yard dev starts a server here",
        )
    return problem_error(error.status, problem)


class Refused(CliError):
    """A request was recorded and refused."""

    def __init__(self, refusal: "Refusal", subject: str, *, admission: bool = False) -> None:
        plain = refusal.model_dump(mode="json")
        if plain["about"] == subject:
            plain["about"] = None
        code = Exit.NOT_FOUND if refusal.code in _UNKNOWN else Exit.CONFLICT
        super().__init__(
            f"{subject}: refused: {refusal_words(plain)}",
            exit_code=Exit.REFUSED if admission else code,
            hint=_HINTS.get(refusal.code),
        )
        self.code = refusal.code


_HINTS: Final[Mapping[str, str]] = {
    "repeated": "the record of the request was refused, not the job: submit it again",
    "epoch_ahead": "the record of the request was refused, not the job: submit it again",
    "project_unknown": "list them with yard projects, or create it with yard projects create NAME",
    "department_unknown": "list them with yard departments; departments create NAME creates one",
    "department_cycle": "choose a parent that is not below it; see yard departments",
    "department_too_deep": "departments have at most 8 levels; see yard departments",
    "quota_invalid": "set deserved to a number or to unlimited, not both",
    "pool_unknown": "list them with yard pools, or create it with yard pools create NAME",
    "pool_not_allowed": "the project may not use this pool; see yard projects show",
    "priority_not_allowed": "the priority is too high for this project; see yard projects show",
    "checkpoint_not_allowed": "the project allows other prefixes; see yard projects show",
    "image_not_allowed": "use an allowed image (yard projects|pools show), or ask an operator",
    "mount_not_allowed": "use an allowed folder (yard projects|pools show), or ask an operator",
    "user_not_allowed": "an operator allows it: yard projects set PROJECT users=UID:GID",
    "mount_read_only": "mount it with read_only: true, or ask an operator to allow NAME:rw",
    "git_host_not_allowed": "use an allowed host (yard projects|pools show), or ask an operator",
    "kind_not_allowed": "the project may not run jobs of this kind; see yard projects show",
    "limit_exceeded": "it requests more than the limit of its project; see yard projects show",
    "project_full": "wait until tasks end, cancel some, or have an operator run yard projects set",
    "user_full": "wait until tasks end, cancel some, or have an operator run yard cell set",
    "allocation_too_large": "its allocation exceeds the size of a record; request fewer replicas",
    "version_mismatch": "it was modified by someone else; review it and try again",
    "unknown_type": "quota runs an older version; upgrade it first",
    "unknown_version": "quota or the cell's rules are older; upgrade it, then yard upgrade finish",
    "in_use": "another object still refers to it",
    "user_unknown": "list them with yard users, or add it with yard users add NAME",
    "user_exists": "give it another role with yard users grant, a new token with yard users rotate",
    "role_unknown": "yard users shows the roles of each user",
    "token_unknown": "yard users shows the tokens of each user",
    "not_allowed": "only operators of the cell change users; a user changes its own tokens",
    "last_operator": "add another operator with a token first",
    "lifetime_too_long": "choose a shorter --expires, or ask an operator to rotate your token",
}


class Remote:
    """The two clients of a gateway, and the operations that several commands share."""

    def __init__(
        self,
        server: str,
        token: str | None,
        ca: str | None,
        on_slow: Callable[[str], None] | None = None,
    ) -> None:
        self._server = server
        self._token = token
        self._ca = ca
        self._on_slow = on_slow
        self._outages: OutageListener | None = None

    def outlast(self, outages: OutageListener | None) -> None:
        """Make reads wait for the end of an outage and notify `outages`; None: make reads fail."""
        self._outages = outages
        if "client" in self.__dict__:
            self.client.wait_out_outages(outages)
        if "reader" in self.__dict__:
            self.reader.tolerance.listener = outages

    @cached_property
    def client(self) -> "Client":
        """The client of all calls, with typed answers; `reader` starts faster, but only reads."""
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
        made.report_slow_calls(self._on_slow)
        return made

    @cached_property
    def reader(self) -> Reader:
        """The reader with plain JSON answers; it imports neither models nor httpx."""
        made = Reader(self._server, self._token, sleep=time.sleep, ca=self._ca)
        made.tolerance.listener = self._outages
        made.tolerance.on_slow = self._on_slow
        return made

    def second_reader(self) -> Reader:
        """A reader for another thread; it tries once, and reports neither outages nor slowness."""
        return Reader(self._server, self._token, sleep=time.sleep, ca=self._ca, max_tries=1)

    def resolve(self, text: str) -> Ref:
        """The job or task with the id or prefix `text`.

        Raises:
            CliError: no job, or more than one job, has this prefix.
        """
        match = REF.match(text)
        if match is None and (label := _GROUP.match(text)):
            raise BadUsage(
                f"{text} stands for several tasks in a list; it is not an id",
                hint=f"yard show {label[1]} --all lists the ids; {label[1]} means all tasks",
            )
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
                f"no job id starts with {prefix}",
                exit_code=Exit.NOT_FOUND,
                hint=list_hint("job"),
            )
        if len(found) > 1:
            raise CliError(
                f"{prefix} is ambiguous: {', '.join(sorted(found))}",
                exit_code=Exit.NOT_FOUND,
                hint="give a longer prefix of the id",
            )
        return Ref(found[0], None if index is None else int(index))

    def one_task(self, text: str) -> str:
        """The id of the task that `text` refers to; a job with one task stands for it.

        Raises:
            CliError: the job has several tasks.
        """
        ref = self.resolve(text)
        if ref.index is not None:
            return ref.id
        count = self.reader.job(ref.job_id)["tasks"]
        if count > 1:
            raise BadUsage(
                f"{ref.id} has {count} tasks", hint=f"name one of them, such as {ref.id}.0"
            )
        return f"{ref.job_id}.0"

    def rows_of(self, ref: Ref) -> list[Json]:
        """The tasks of a reference as plain JSON, in the order of their index."""
        if ref.index is not None:
            return [self.reader.task(ref.id)]
        rows = sorted(self.reader.all_tasks(job_id=ref.job_id), key=lambda row: row["index"])
        if not rows:
            raise CliError(
                f"there is no job {ref.job_id}", exit_code=Exit.NOT_FOUND, hint=list_hint("job")
            )
        return rows

    def await_verdict(self, accepted: "Accepted", subject: str, out: Output) -> None:
        """Wait for the verdict of the quota service on a change; print a note when it is late.

        Raises:
            Refused: the change was refused.
        """
        from yardmaster_schemas.api import RequestState

        deadline = time.monotonic() + VERDICT_S
        # This read waits until the views have reached the position: only then do they contain the
        # request.
        self.client.pools(limit=1, min_position=accepted.position)
        for request_id in accepted.request_ids:
            left = max(0.0, deadline - time.monotonic())
            request = self.client.request(request_id, wait_s=left)
            if request.state is RequestState.REFUSED and request.refusal is not None:
                raise Refused(request.refusal, subject)
            if request.state is RequestState.RECORDED:
                out.note(f"{subject}: recorded; no verdict after {span(VERDICT_S)}")


@contextmanager
def creating(what: str, name: str) -> Iterator[None]:
    """Explain errors of a call in this context that creates `name`, an object of the kind `what`.

    Raises:
        CliError: the object already exists.
        BadUsage: no object can have this name.
    """
    try:
        yield
    except ApiError as error:
        if error.document["code"] == "not_found":
            rule = str(error.document["detail"]).partition(": ")[2]
            raise BadUsage(f"{name!r} is not a valid name of a {what}: {rule}") from None
        if error.document["code"] not in ("already_exists", "version_mismatch"):
            raise
        raise CliError(
            f"{what} {name} already exists",
            exit_code=Exit.CONFLICT,
            hint=f"change it with: yard {what}s set {name} KEY=VALUE",
        ) from None


def plain(model: "BaseModel") -> dict[str, Any]:
    """An answer as plain JSON."""
    return model.model_dump(mode="json")


def rows(models: "Iterable[BaseModel]") -> list[Row]:
    """Answers as table rows."""
    return [plain(model) for model in models]
