"""Checks of configurations before they are recorded, with an error for each field that is wrong.

Quota would refuse such a request too, except for the weight of a department: quota would accept it,
although no policy reads it.
"""

from collections.abc import Iterator, Mapping, Sequence

from yardmaster_gateway.http.bodies import invalid_body
from yardmaster_schemas.api import DepartmentConfig, FieldError, Quota


def refuse_quota(quota: Quota) -> None:
    """Refuse a quota that contradicts itself.

    Raises:
        InvalidBody.
    """
    _refuse(list(_quota_errors(quota, "")))


def refuse_quotas(quotas: Mapping[str, Quota]) -> None:
    """Refuse quotas that contradict themselves.

    Raises:
        InvalidBody: with one error per quota.
    """
    _refuse(list(_quotas_errors(quotas)))


def refuse_department(config: DepartmentConfig) -> None:
    """Refuse quotas that contradict themselves, and the weight, which no policy reads.

    Raises:
        InvalidBody: with one error per field.
    """
    found = list(_quotas_errors(config.quotas))
    if config.weight != DepartmentConfig().weight:
        detail = (
            "a department's weight is not supported, because no policy reads it; omit it, or set "
            "over_quota_weight in its quotas"
        )
        found.insert(0, FieldError(pointer="/weight", code="not_supported", detail=detail))
    _refuse(found)


def _quotas_errors(quotas: Mapping[str, Quota]) -> Iterator[FieldError]:
    for pool, quota in quotas.items():
        yield from _quota_errors(quota, f"/quotas/{pool}")


def _quota_errors(quota: Quota, pointer: str) -> Iterator[FieldError]:
    if quota.deserved_unlimited and quota.deserved_milli is not None:
        yield FieldError(
            pointer=f"{pointer}/deserved_unlimited",
            code="contradiction",
            detail="deserved_milli is set too; omit one of them",
        )


def _refuse(errors: Sequence[FieldError]) -> None:
    if errors:
        raise invalid_body(errors)
