"""`yard submit`: submit a job file or a command."""

import re
import secrets
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from yardmaster.configuration import DEV
from yardmaster.errors import ApiError, InputError, WaitTimeout
from yardmaster.waiting import ADMITTED
from yardmaster.yaml_tree import NotAMapping
from yardmaster_cli.commands.logs import follow_all
from yardmaster_cli.commands.wait import wait_for_end
from yardmaster_cli.errors import BadUsage, CliError, Exit
from yardmaster_cli.input_file import text_of
from yardmaster_cli.job_file.flags import build, flag_options
from yardmaster_cli.output.cells import span
from yardmaster_cli.output.formats import Output
from yardmaster_cli.progress import reporting, uploading
from yardmaster_cli.server.remote import VERDICT_S, Refused, Remote, api_error, rows
from yardmaster_cli.session import Detached, Session, YardCommand
from yardmaster_cli.waiting import interruptible, timeout_s
from yardmaster_schemas.api import Phase, Submitted
from yardmaster_schemas.job_file import JobSpec, with_context
from yardmaster_schemas.reasons import RefusalCode

#: The longest working directory of a job file; for a longer one the agent chooses.
MAX_FOLDER: Final = 128


#: The most records of one job: each refused record is followed by another one.
MAX_RECORDS: Final = 3
#: Refusals that concern the number of the record and not the job: a further record may succeed.
_RECORD_REFUSED: Final = frozenset({RefusalCode.REPEATED, RefusalCode.EPOCH_AHEAD})
#: An idempotency key, as the API takes it.
_KEY: Final = re.compile(r"[\x21-\x7e]{1,255}")
#: The interpreter of a script, by the suffix of its name.
_RUN_WITH: Final = {".py": "python3", ".sh": "sh"}


class _SubmitCommand(YardCommand):
    """Passes all words after `--` to the job, also words that look like options."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        command: list[str] = []
        if "--" in args:
            at = args.index("--")
            args, command = args[:at], args[at + 1 :]
            if not command:
                raise click.UsageError(
                    "There is no command after --. Write: yard submit -- COMMAND", ctx
                )
        try:
            rest = super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if command:
                raise
            error.message += ". The options of a command come after --: yard submit -- COMMAND"
            raise
        ctx.params["command"] = tuple(command)
        return rest


@click.command("submit", cls=_SubmitCommand)
@click.argument("files", nargs=-1, metavar="FILE|-")
@flag_options
@click.option(
    "--set",
    "sets",
    multiple=True,
    metavar="KEY=VALUE",
    help="Set a key of the job file: resources.gpus=4.",
)
@click.option(
    "--idempotency-key", metavar="KEY", help="Return the same id for the same key and job."
)
@click.option("--no-wait", is_flag=True, help="Do not wait for admission.")
@click.option(
    "--wait", is_flag=True, help="Wait for the end; exit with the exit code of the tasks."
)
@click.option("--follow", is_flag=True, help="Print the output until the end.")
@click.option(
    "--timeout", metavar="TIME", help="Stop waiting after this long; needs --wait or --follow."
)
def submit(session: Session, files: tuple[str, ...], command: tuple[str, ...], **given: Any) -> int:
    """Submit a job: a YAML file, - for a file on stdin, or -- COMMAND.

    Options and a command override the keys of the file. Prints the id of the job once the job is
    recorded. Then waits up to 5 s for admission, so that a refusal is reported at once.
    """
    if len(files) > 1:
        raise BadUsage(
            f"expected one job file, not {len(files)} words",
            hint=f"put -- before a command: yard submit -- {shlex.join(files)}",
        )
    file = files[0] if files else None
    text, source = _text(file, bool(command or given["script"]))
    here = session.config.context.value == DEV
    folder = str(Path.cwd())
    file_folder = str(Path(file).absolute().parent) if file not in (None, "-") else folder
    dev = session.config.dev
    contained = dev is not None and dev.programs is not None
    try:
        spec = build(
            text,
            source,
            flags=given,
            sets=given["sets"],
            command=command,
            project=session.config.default_project,
            # On this machine a task sees the files of its user; in a container it does not.
            folder=folder if here and not contained and len(folder) <= MAX_FOLDER else None,
            file_folder=file_folder if here and not contained else None,
            context_base=file_folder,
            server_contexts=session.config.contexts.keys(),
        )
    except (BadUsage, InputError) as error:
        raise _not_a_job_file(file, error) or error from None
    limit_s = timeout_s(given["timeout"])
    if limit_s is not None and not (given["wait"] or given["follow"]):
        raise BadUsage("--timeout needs --wait or --follow")
    remote, out = session.remote, session.out
    key = _key(given["idempotency_key"])
    spec = _with_uploaded_context(spec, session)
    try:
        answer = remote.client.submit(spec, idempotency_key=key)
    except KeyboardInterrupt:
        out.note(
            f"\nit is unknown whether the job was recorded; repeat with --idempotency-key {key}"
        )
        raise
    except ApiError as error:
        raise _not_acknowledged(error, key) or error from None
    out.detail(f"recorded at {answer.position}, idempotency key {key}")
    for warning in answer.warnings:
        out.note(f"warning: it can never fit: {warning}")
    again = partial(remote.client.submit, spec, idempotency_key=key)
    if not (given["follow"] or given["wait"]):
        with _detaching(answer, session):
            _print_id(answer, out)
            if not given["no_wait"]:
                _report_verdict(remote, answer, out, again)
        return int(Exit.DONE)
    words = ("logs", "-f") if given["follow"] else ("wait",)
    with interruptible(session, session.command(*words, answer.job_id), limit_s):
        _print_id(answer, out)
        with reporting(remote, out, [answer.job_id]):
            if not given["no_wait"]:
                answer = _report_verdict(remote, answer, out, again)
            return _to_the_end(session, answer, follow=given["follow"])


def _with_uploaded_context(spec: JobSpec, session: Session) -> JobSpec:
    """Upload the folder of the job's context, if it names one; return the job that names it."""
    folder, out = spec.run.context, session.out
    if not isinstance(folder, str):
        return spec
    sent = False
    with uploading(out) as bar:

        def on_sent(so_far: int, total: int) -> None:
            nonlocal sent
            sent = True
            bar(so_far, total)

        context = session.remote.client.upload_context(
            folder, project=spec.project, on_sent=on_sent
        )
    how = "uploaded" if sent else "stored already"
    out.detail(f"context {context.digest}: {context.packed_bytes} bytes, {how}")
    return with_context(spec, context)


def _key(given: str | None) -> str:
    """The idempotency key of the request: `given`, or a random one."""
    if given is None:
        return secrets.token_hex(16)
    if not _KEY.fullmatch(given):
        raise BadUsage("--idempotency-key: expected 1 to 255 printable ASCII characters, no spaces")
    return given


def _print_id(answer: Submitted, out: Output) -> None:
    """Print the id before any slow step, because the job exists even if a later step fails."""
    out.one(answer.model_dump(mode="json"), lambda: [answer.job_id], "job_id")
    sys.stdout.flush()


def _not_acknowledged(error: ApiError, key: str) -> CliError | None:
    """The error for a job that may be recorded although no answer came; None: it is not."""
    if not error.transient:
        return None
    shown = api_error(error)
    return CliError(
        shown.message,
        exit_code=shown.exit_code,
        hint=f"repeat with --idempotency-key {key}; if the job was recorded, that returns its id",
    )


@contextmanager
def _detaching(answer: Submitted, session: Session) -> Iterator[None]:
    """Turn Ctrl-C during the wait for the verdict into an error that names `yard show JOB`."""
    try:
        yield
    except KeyboardInterrupt:
        raise Detached(
            session.command("show", answer.job_id), message=f"{answer.job_id} is recorded"
        ) from None


def _to_the_end(session: Session, answer: Submitted, *, follow: bool) -> int:
    """Wait for the end of the job and return its exit code; with `follow`, print its output.

    Raises:
        CliError: 105 when the job can never fit.
    """
    remote, out = session.remote, session.out

    def ended(out: Output) -> int:
        return wait_for_end(session, [answer], out, hints=not follow)

    if follow:
        tasks = remote.client.all_tasks(job_id=answer.job_id, min_position=answer.position)
        listed = sorted(rows(tasks), key=lambda row: int(row["index"]))
        # A task that can never fit writes no output, so a second thread looks for it meanwhile.
        follow_all(remote, listed, out, meanwhile=lambda: ended(replace(out, quiet=True)))
    return ended(out)


def _not_a_job_file(file: str | None, error: Exception) -> BadUsage | None:
    """The error for a program that was given instead of a job file; None: it may be a job file."""
    if file is None or file == "-":
        return None
    program = _RUN_WITH.get(Path(file).suffix)
    if program is None and not isinstance(error, NotAMapping):
        return None
    words = shlex.join([program, file] if program else [f"./{file}" if "/" not in file else file])
    return BadUsage(
        f"{file} is not a job file", hint=f"put -- before a command: yard submit -- {words}"
    )


def _text(file: str | None, runs: bool) -> tuple[str | None, str]:
    """The text of the job file (None: no file), and its name in messages.

    `runs`: the flags contain a command, so `file` cannot be the command.
    """
    if file is None:
        if not runs:
            raise BadUsage("no job given", hint="give a job file, or -- COMMAND")
        return None, "command line"
    # A name with the suffix of a job file, or of a folder, is not a command.
    runs = runs or Path(file).suffix in (".yaml", ".yml") or Path(file).is_dir()
    hint = None if runs else f"put -- before a command: yard submit -- {shlex.quote(file)}"
    return text_of(file, hint)


def _report_verdict(
    remote: Remote, answer: Submitted, out: Output, submit_again: Callable[[], Submitted]
) -> Submitted:
    """Wait at most `VERDICT_S` seconds for the verdict of the quota service on a job.

    If quota refused the record of the request and not the job, `submit_again` sends the request
    again. That is safe, because the same idempotency key means the same job. Return the answer to
    the last request.

    Raises:
        Refused: the job was refused, or each of `MAX_RECORDS` records of it.
    """
    for left in reversed(range(MAX_RECORDS)):
        try:
            # One task stands for the job: all of its tasks are admitted or refused together.
            task = remote.client.wait(answer.task_ids[0], for_=ADMITTED, timeout_s=VERDICT_S)[0]
        except WaitTimeout:
            out.note(f"{answer.job_id}: recorded; no verdict after {span(VERDICT_S)}")
            return answer
        if task.phase is not Phase.REJECTED or task.refusal is None:
            return answer
        if left == 0 or task.refusal.code not in _RECORD_REFUSED:
            raise Refused(task.refusal, answer.job_id, admission=True)
        answer = submit_again()
    raise AssertionError("the last round returns or raises")
