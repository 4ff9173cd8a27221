"""Explain a task from a log at any time, as a gateway would have explained it at that time."""

import re
from typing import Any, Final

from yardmaster.errors import NoServer
from yardmaster_cli.errors import CliError, Exit
from yardmaster_cli.log.moments import parse_moment
from yardmaster_cli.log.source import log_source, needing_every_record, on_log
from yardmaster_cli.server.remote import plain
from yardmaster_cli.session import Session
from yardmaster_cli.times import now_ms
from yardmaster_eventlog.port import EventLog
from yardmaster_projections import queries
from yardmaster_projections.one_job import fold_of
from yardmaster_projections.presenter import Presenter
from yardmaster_runtime.errors import UnknownTask
from yardmaster_schemas.api import Explain
from yardmaster_views.past import views_at

_WHOLE: Final = re.compile(r"^[0-9a-z]{12}(\.[0-9]{1,4})?$")


def explain_from_log(
    session: Session, ref: str, moment: str | None, file: str | None, cell: str | None
) -> dict[str, Any]:
    """Explain a task as of `moment`; None: as of the end of the log."""
    where = log_source(session, file, cell)
    if _WHOLE.match(ref):
        task_id = ref if "." in ref else f"{ref}.0"
    else:
        try:
            task_id = session.remote.one_task(ref)
        except NoServer as error:
            raise CliError(
                f"{ref} is not a whole id, and {error.problem}",
                exit_code=Exit.UNREACHABLE,
                hint="a whole id, such as 4kq7w2mz9c1f.0, needs no server",
            ) from None
    bound, bounds = None, {}
    if moment is not None:
        bound = parse_moment(moment, now_ms(), "--at")
        bounds = bound.bounds

    async def work(log: EventLog) -> Explain:
        return await explain_at(log, where.cell, task_id, partition=where.partition, **bounds)

    here = session.command("explain", task_id)
    hint = (
        f"{here} asks the server about the present; yard replay at T shows the cluster at a time "
        "from the oldest snapshot on"
    )
    with needing_every_record("an explanation from the log", hint):
        found = plain(on_log(where, work))
    if bound is not None and (missed := bound.missed(found["cycle"] or 0, now_ms())):
        session.out.note(missed)
    return found


async def explain_at(log: EventLog, cell: str, task_id: str, **bounds: Any) -> Explain:
    """Explain a task at a moment of the log; `bounds` as in `views_at`.

    Raises:
        UnknownTask: the task was not submitted by then.
        and the errors of `views_at`.
    """
    fold = fold_of(task_id.partition(".")[0])
    views = await views_at(log, fold, cell, **bounds)
    row = await queries.task(views.store, task_id)
    if row is None:
        raise UnknownTask(task_id=task_id, where=f"cycle {views.cycle}")
    return await Presenter(views.store, views.now_ms).explain(row, cell)
