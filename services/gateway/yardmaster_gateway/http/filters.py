"""Query parameters that filter lists: comma-separated values, and `label.NAME` parameters."""

import re
from dataclasses import replace
from typing import Annotated, Final

from fastapi import Depends, Query, Request

from yardmaster_gateway import errors
from yardmaster_projections.queries import Filters
from yardmaster_schemas.api import NodeState, Phase
from yardmaster_schemas.events.requests import Kind
from yardmaster_schemas.instants import parse_rfc3339

_NAME: Final = r"[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?"
MAX_LABEL_FILTERS: Final = 16


def _comma_separated(item: str) -> str:
    return rf"^({item})(,({item})){{0,63}}$"


Phases = Annotated[str | None, Query(pattern=_comma_separated("|".join(Phase)), max_length=1000)]
Kinds = Annotated[str | None, Query(pattern=_comma_separated("|".join(Kind)), max_length=1000)]
States = Annotated[
    str | None, Query(pattern=_comma_separated("|".join(NodeState)), max_length=1000)
]
Names = Annotated[str | None, Query(pattern=_comma_separated(_NAME), max_length=4096)]
Users = Annotated[str | None, Query(pattern=r"^[^\x00-\x1f\x7f]+$", max_length=1000)]
#: A job's whole name, which may contain commas.
JobName = Annotated[str | None, Query(pattern=r"^[^\x00-\x1f\x7f]+$", max_length=128)]
Ref = Annotated[str | None, Query(pattern=r"^[0-9a-z]{1,12}(\.[0-9]{0,4})?$")]
JobIdQuery = Annotated[str | None, Query(pattern=r"^[0-9a-z]{12}$")]
Since = Annotated[
    str | None,
    Query(
        pattern=r"^[12][0-9]{3}-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?"
        r"(Z|[+-][01][0-9]:[0-5][0-9])$",
        max_length=40,
    ),
]
Sort = Annotated[str, Query(pattern=r"^-?submitted_at$")]
Limit = Annotated[int, Query(ge=1, le=1000)]
Cursor = Annotated[str | None, Query(pattern=r"^[A-Za-z0-9_-]+$", max_length=400)]


def split_values(text: str | None) -> frozenset[str]:
    """The values of a comma-separated parameter; empty if it is missing."""
    return frozenset(text.split(",")) if text else frozenset()


def since_ms(text: str | None) -> int:
    """The time of the parameter `since` in milliseconds; 0 if it is missing.

    Raises:
        Malformed: the date does not exist.
    """
    if text is None:
        return 0
    try:
        return parse_rfc3339(text)
    except ValueError as error:
        raise errors.Malformed(found=f"since: {error}") from None


def labels(request: Request) -> dict[str, frozenset[str]]:
    """The label filters of a request (`label.team=x`): the allowed values by label.

    Raises:
        Malformed: a label name or value is invalid, or there are too many filters.
    """
    found: dict[str, set[str]] = {}
    for name, value in request.query_params.multi_items():
        if not name.startswith("label."):
            continue
        key = name.removeprefix("label.")
        if re.fullmatch(_NAME, key) is None or len(value) > 256:
            raise errors.Malformed(found=f"{name[:80]!r} is not a valid label filter")
        found.setdefault(key, set()).add(value)
    if sum(map(len, found.values())) > MAX_LABEL_FILTERS:
        raise errors.Malformed(found=f"there are more than {MAX_LABEL_FILTERS} label filters")
    return {key: frozenset(values) for key, values in found.items()}


async def _common_filters(
    request: Request,
    phase: Phases = None,
    project: Names = None,
    user: Users = None,
    kind: Kinds = None,
    name: JobName = None,
    since: Since = None,
    sort: Sort = "-submitted_at",
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Filters:
    return Filters(
        phases=frozenset(Phase(one) for one in split_values(phase)),
        projects=split_values(project),
        users=split_values(user),
        kinds=split_values(kind),
        names=frozenset({name}) if name else frozenset(),
        labels=labels(request),
        since_ms=since_ms(since),
        newest_first=sort.startswith("-"),
        limit=limit,
        cursor=cursor,
    )


_CommonFilters = Annotated[Filters, Depends(_common_filters)]


async def job_filters(common: _CommonFilters, pool: Names = None, ref: Ref = None) -> Filters:
    """The filters of jobs; a job matches `phase` if one of its tasks is in that phase."""
    return replace(common, pools=split_values(pool), ref=ref or "")


async def group_filters(common: _CommonFilters, job_id: JobIdQuery = None) -> Filters:
    """The filters of task groups: those that all tasks of a job share."""
    return replace(common, job_id=job_id)


async def task_filters(
    of_jobs: Annotated[Filters, Depends(job_filters)],
    node: Names = None,
    job_id: JobIdQuery = None,
) -> Filters:
    """The filters of tasks: the filters of jobs, and also `node` and `job_id`."""
    return replace(of_jobs, nodes=split_values(node), job_id=job_id)
