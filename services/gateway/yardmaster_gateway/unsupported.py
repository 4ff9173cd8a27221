"""Refuses options that the schemas define but no policy reads yet, so that no user relies on them.

The schemas keep them because logs of earlier versions contain them.
"""

from collections.abc import Iterator, Mapping, Sequence

from yardmaster_gateway.bodies import invalid_body
from yardmaster_schemas.api import DepartmentConfig, FieldError, Quota


def refuse_quota(quota: Quota) -> None:
    """Refuse unsupported options of a quota.

    Raises:
        InvalidBody: with one error per option.
    """
    _refuse(list(_quota_errors(quota, "")))


def refuse_quotas(quotas: Mapping[str, Quota]) -> None:
    """Refuse unsupported options of a project's quotas.

    Raises:
        InvalidBody: with one error per option.
    """
    _refuse(list(_quotas_errors(quotas)))


def refuse_department(config: DepartmentConfig) -> None:
    """Refuse unsupported options of a department: those of its quotas, and its weight.

    Raises:
        InvalidBody: with one error per option.
    """
    found = list(_quotas_errors(config.quotas))
    if config.weight != DepartmentConfig().weight:
        found.insert(0, _unsupported("/weight", "a department's weight"))
    _refuse(found)


def _quotas_errors(quotas: Mapping[str, Quota]) -> Iterator[FieldError]:
    for pool, quota in quotas.items():
        yield from _quota_errors(quota, f"/quotas/{pool}")


def _quota_errors(quota: Quota, pointer: str) -> Iterator[FieldError]:
    if quota.deserved_milli:
        yield _unsupported(f"{pointer}/deserved_milli", "a deserved share")
    if quota.over_quota_weight != Quota().over_quota_weight:
        yield _unsupported(f"{pointer}/over_quota_weight", "an over-quota weight")


def _unsupported(pointer: str, what: str) -> FieldError:
    detail = f"{what} is not supported yet, because no policy reads it; omit it"
    return FieldError(pointer=pointer, code="not_supported", detail=detail)


def _refuse(errors: Sequence[FieldError]) -> None:
    if errors:
        raise invalid_body(errors)
