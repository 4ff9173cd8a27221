"""The calls of `Client` for jobs, tasks, the output of tasks, and requests."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from yardmaster import defaults
from yardmaster.connection import Connection, Filter, all_items, quoted
from yardmaster.errors import ApiError
from yardmaster.job_file.read import JobSource, read_job
from yardmaster.retry import Params
from yardmaster.transport import event_lines, parse_events
from yardmaster_schemas.api import (
    Accepted,
    Attempt,
    CancelBody,
    EventRecord,
    Explain,
    Job,
    JobPatch,
    List,
    PauseBody,
    Phase,
    Request,
    Submitted,
    Task,
    TaskGroups,
)
from yardmaster_schemas.job_file import with_context
from yardmaster_schemas.job_folders import JobContext

#: A complete id of a job or task, or an answer that contains one.
JobOrTask = str | Submitted | Job | Task


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of one replica's output; `seq` numbers the pieces of a replica in an attempt."""

    attempt: int
    replica: int
    seq: int
    text: str


class JobCalls(Connection):
    """Calls for jobs, tasks and requests; see `Client`."""

    # --- jobs -----------------------------------------------------------------------------------

    def submit(self, job: JobSource, *, idempotency_key: str | None = None) -> Submitted:
        """Submit a job: its keys as a dict, a YAML or JSON text, the path of a job file, a JobSpec.

        A submission with the same idempotency key and job returns the same answer, however often
        it is sent. Without a key, the client creates a key that all retries of this call use. A
        job that names no project gets the `project` of the client.

        If the cluster runs on this machine (`from_env`), a relative `run.working_dir` is relative
        to the folder of the job file, or without a job file to the current folder. For another
        cluster, the path is sent unchanged.

        A folder that `run.context` names is uploaded first (`upload_context`); a relative path is
        relative to the folder of the job file, or without a job file to the current folder.

        Raises:
            InputError: the job is wrong; the message has all problems, each with its line and key.
                Or the folder of its context cannot be uploaded.
            ApiError: after the code `outcome_unknown`, submit again with the same key.
        """
        folder = defaults.current_folder() if self._shares_files else None
        spec = read_job(job, project=self._project, folder=folder)
        if isinstance(spec.run.context, str):
            context = self.upload_context(spec.run.context, project=spec.project)
            spec = with_context(spec, context)
        content = spec.model_dump_json(exclude_unset=True).encode()
        key = idempotency_key or self._new_key()
        return self._write("POST", "/v1/jobs", Submitted, content, {"Idempotency-Key": key})

    def upload_context(
        self,
        folder: str | Path,
        *,
        project: str,
        on_sent: Callable[[int, int], None] | None = None,
    ) -> JobContext:
        """Upload a folder for jobs of a project, unless it is stored already.

        What `.yardignore` in the folder excludes, with the rules of gitignore, is left out, and so
        is `.git`. The result is the value of `run.context` of a job.

        Args:
            on_sent: is called with the bytes of the archive that were sent, and with all bytes.

        Raises:
            InputError: the folder is missing, too large, or contains what no package may contain.
            ApiError: with the code `no_packages`, the gateway stores no packages.
        """
        from yardmaster.context_upload import upload

        return upload(self._transport, Path(folder), project, on_sent)

    def jobs(self, **filters: Filter) -> List[Job]:
        """One page of jobs. The filters are those of `tasks` without node and job_id."""
        return self._get("/v1/jobs", List[Job], filters)

    def all_jobs(self, **filters: Filter) -> Iterator[Job]:
        """The jobs of all pages."""
        return all_items(self.jobs, filters)

    def job(self, job_id: str, *, min_position: str | None = None) -> Job:
        """One job."""
        return self._get(f"/v1/jobs/{quoted(job_id)}", Job, {"min_position": min_position})

    def patch_job(
        self, job_id: str, *, if_match: str | None = None, **changes: int | float | None
    ) -> Accepted:
        """Change `priority`, `weight` or `max_slots` of a job.

        `if_match` is the ETag of the version to change; None changes the current version.
        """
        content = JobPatch.model_validate(changes).model_dump_json(exclude_unset=True).encode()
        return self._patch(f"/v1/jobs/{quoted(job_id)}", content, if_match)

    def cancel(
        self, ref: JobOrTask, *, reason: str | None = None, immediate: bool = False
    ) -> Accepted:
        """Cancel a job or task; `ref` is its complete id, or an answer that contains it."""
        content = CancelBody(reason=reason, immediate=immediate).model_dump_json().encode()
        return self._write("POST", f"{_job_or_task(ref)}/cancel", Accepted, content)

    def pause(self, ref: JobOrTask, *, reason: str | None = None) -> Accepted:
        """Pause a job or task until it is resumed."""
        content = PauseBody(reason=reason).model_dump_json().encode()
        return self._write("POST", f"{_job_or_task(ref)}/pause", Accepted, content)

    def resume(self, ref: JobOrTask) -> Accepted:
        """Resume a paused job or task."""
        return self._write("POST", f"{_job_or_task(ref)}/resume", Accepted, b"{}")

    def erase(self, job_id: str) -> Accepted:
        """Permanently delete the name, labels, command, environment and notes of an ended job."""
        return self._write("POST", f"/v1/jobs/{quoted(job_id)}/erase", Accepted, None)

    def request(self, request_id: str, *, wait_s: float = 0) -> Request:
        """The state of a request; waits up to `wait_s` seconds (at most 30) for the decision."""
        params = {"wait_s": _whole(wait_s)}
        return self._get(f"/v1/requests/{quoted(request_id)}", Request, params, wait_s)

    # --- tasks ----------------------------------------------------------------------------------

    def tasks(self, **filters: Filter) -> List[Task]:
        """One page of tasks.

        Filters: phase (one or several), project, pool, node, user, kind, name, job_id, ref (the
        start of an id), since (RFC 3339), label (`key=value`, one or several), sort
        (`-submitted_at` or `submitted_at`), limit (up to 1000), cursor, min_position.
        """
        return self._get("/v1/tasks", List[Task], filters)

    def task_groups(self, **filters: Filter) -> TaskGroups:
        """One page of tasks, grouped by job and phase, and the number of tasks in each phase.

        The filters are those of `tasks` without pool, node and ref; `limit` counts jobs.
        """
        return self._get("/v1/task-groups", TaskGroups, filters)

    def all_tasks(self, **filters: Filter) -> Iterator[Task]:
        """The tasks of all pages."""
        return all_items(self.tasks, filters)

    def task(
        self,
        task_id: str,
        *,
        min_position: str | None = None,
        wait_for: str | None = None,
        timeout_s: float | None = None,
    ) -> Task:
        """Return one task; with `wait_for`, wait until the task has reached this state.

        `wait_for` is `admitted`, `ended` or a phase. The call waits up to `timeout_s` seconds (at
        most 60), and then returns the task in its present state.
        """
        params: Params = {
            "min_position": min_position,
            "wait_for": wait_for,
            "timeout_s": None if timeout_s is None else _whole(timeout_s),
        }
        return self._get(f"/v1/tasks/{quoted(task_id)}", Task, params, timeout_s or 30.0)

    def attempts(self, task_id: str, *, min_position: str | None = None) -> List[Attempt]:
        """The attempts of a task, the newest first."""
        path = f"/v1/tasks/{quoted(task_id)}/attempts"
        return self._get(path, List[Attempt], {"min_position": min_position})

    def task_events(self, task_id: str, *, min_position: str | None = None) -> List[EventRecord]:
        """The log records about a task and its job, in the order in which they took effect."""
        path = f"/v1/tasks/{quoted(task_id)}/events"
        return self._get(path, List[EventRecord], {"min_position": min_position})

    def explain(self, task_id: str, *, min_position: str | None = None) -> Explain:
        """Why a task is pending, was stopped or ended."""
        path = f"/v1/tasks/{quoted(task_id)}/explain"
        return self._get(path, Explain, {"min_position": min_position})

    # --- output ---------------------------------------------------------------------------------

    def logs(
        self,
        task_id: str,
        *,
        follow: bool = False,
        attempt: int | None = None,
        replica: int | None = None,
        tail: int | None = None,
    ) -> Iterator[str]:
        """Yield the text of a task's output; with `follow`, also new text until the task ends."""
        if follow:
            found = self.output(task_id, follow=True, attempt=attempt, replica=replica, tail=tail)
            yield from (piece.text for piece in found)
            return
        params = {"attempt": attempt, "replica": replica, "tail": tail}
        with self._transport.stream(_logs(task_id), params, {}) as response:
            yield from response.iter_text()

    def output(
        self,
        task_id: str,
        *,
        follow: bool = False,
        attempt: int | None = None,
        replica: int | None = None,
        tail: int | None = None,
    ) -> Iterator[Piece]:
        """Yield each piece of a task's output once; with `follow`, also new pieces until its end.

        With `follow`, the stream is resumed if the gateway closes it, and after an outage of at
        most `longest_outage_s` seconds.
        """
        params: Params = {
            "follow" if follow else "pieces": True,
            "attempt": attempt,
            "replica": replica,
            "tail": tail,
        }
        newest: dict[tuple[int, int], int] = {}
        after: str | None = None
        reconnection = self._transport.reconnection(self._transport.deadline(None))
        while True:
            headers = {} if after is None else {"Last-Event-ID": after}
            try:
                with self._transport.stream(_logs(task_id), params, headers) as response:
                    for event in parse_events(event_lines(response)):
                        if event.event == "end" and Phase(event.data["phase"]).final:
                            return
                        after = event.id or after
                        if event.event != "output":
                            continue
                        piece = _piece(event.data)
                        replica_of_attempt = (piece.attempt, piece.replica)
                        if piece.seq <= newest.get(replica_of_attempt, -1):
                            continue  # the agent wrote this piece more than once
                        newest[replica_of_attempt] = piece.seq
                        reconnection.record_answer()
                        yield piece
                if not follow:
                    return
            except ApiError as error:
                if not follow:
                    raise
                reconnection.pause(error)
            else:
                reconnection.pause()


def _logs(task_id: str) -> str:
    return f"/v1/tasks/{quoted(task_id)}/logs"


def _piece(data: Mapping[str, Any]) -> Piece:
    return Piece(data["attempt"], data["replica"], data["seq"], data["text"])


def _job_or_task(ref: JobOrTask) -> str:
    match ref:
        case Task():
            return f"/v1/tasks/{quoted(ref.task_id)}"
        case Job() | Submitted():
            return f"/v1/jobs/{quoted(ref.job_id)}"
        case _:
            name = quoted(ref)
            return f"/v1/tasks/{name}" if "." in name else f"/v1/jobs/{name}"


def _whole(seconds: float) -> int:
    return max(0, round(seconds))
