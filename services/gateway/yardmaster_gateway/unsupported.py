"""Options that the schemas have and no policy reads yet: refused, so that no user relies on them.

Logs of earlier versions contain them, and fold as before.
"""

from collections.abc import Iterator, Mapping

from yardmaster_gateway.bodies import invalid_body
from yardmaster_schemas.api import DepartmentConfig, FieldError, Quota


def refuse_quota(quota: Quota) -> None:
    """Refuse what does not work yet in a quota.

    Raises:
        InvalidBody: naming each key.
    """
    _refuse(_in_quota(quota, ""))


def refuse_quotas(quotas: Mapping[str, Quota]) -> None:
    """Refuse what does not work yet in a project's quotas.

    Raises:
        InvalidBody: naming each key.
    """
    _refuse(_in_quotas(quotas))


def refuse_department(config: DepartmentConfig) -> None:
    """Refuse what does not work yet in a department: its quotas' keys, and its weight.

    Raises:
        InvalidBody: naming each key.
    """
    found = list(_in_quotas(config.quotas))
    if config.weight != DepartmentConfig().weight:
        found.insert(0, _error("/weight", "a department's weight"))
    _refuse(found)


def _in_quotas(quotas: Mapping[str, Quota]) -> Iterator[FieldError]:
    for pool, quota in quotas.items():
        yield from _in_quota(quota, f"/quotas/{pool}")


def _in_quota(quota: Quota, place: str) -> Iterator[FieldError]:
    if quota.deserved_milli:
        yield _error(f"{place}/deserved_milli", "a deserved share")
    if quota.over_quota_weight != Quota().over_quota_weight:
        yield _error(f"{place}/over_quota_weight", "an over-quota weight")


def _error(pointer: str, what: str) -> FieldError:
    detail = f"{what} is not supported yet: no policy reads it; leave it out"
    return FieldError(pointer=pointer, code="not_supported", detail=detail)


def _refuse(found: Iterator[FieldError] | list[FieldError]) -> None:
    if errors := list(found):
        raise invalid_body(errors)
