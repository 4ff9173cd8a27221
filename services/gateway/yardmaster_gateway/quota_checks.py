"""Checks of configurations before they are recorded, with an error for each field that is wrong.

Quota would refuse such a request too, or (a department's weight) accept what no policy reads.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from yardmaster_gateway.bodies import invalid_body
from yardmaster_gateway.context import Gateway, ReadContext
from yardmaster_gateway.rules import rules_in_force
from yardmaster_schemas.api import DepartmentConfig, FieldError, Quota
from yardmaster_schemas.construct import fields_above
from yardmaster_schemas.job_file import JobSpec
from yardmaster_schemas.resources import GPU_MEMORY_RULES


async def refuse_newer_settings(read: ReadContext, config: Any) -> None:
    """Refuse settings that need newer rules than those of the cell.

    Quota refuses such a record without a verdict, because programs of older rules cannot read it.

    Raises:
        InvalidBody: with one error per setting.
    """
    if not any(fields_above(config, 0)):
        return
    rules = await rules_in_force(read.gateway)
    if rules is None:
        return  # a new cell, whose rules are not in the views yet
    _refuse([_needs_newer(path, needed, rules) for path, needed in fields_above(config, rules)])


async def refuse_newer_requests(gateway: Gateway, spec: JobSpec) -> None:
    """Refuse a request for memory of GPUs that needs newer rules than those of the cell.

    Raises:
        InvalidBody, ViewsUnavailable.
    """
    if spec.resources.gpu_memory is None:
        return
    await gateway.wait_for_position(None)
    rules = await rules_in_force(gateway)
    if rules is not None and rules < GPU_MEMORY_RULES:
        _refuse([_needs_newer(("resources", "gpu_memory"), GPU_MEMORY_RULES, rules)])


def _needs_newer(path: Sequence[str], needed: int, rules: int) -> FieldError:
    detail = (
        f"needs rules {needed}, and the cell has rules {rules}; omit it, or upgrade all services "
        "and run yard upgrade finish"
    )
    return FieldError(pointer="/" + "/".join(path), code="needs_newer_rules", detail=detail)


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
