"""Departments within departments, and the settings of quotas, ranks and minimum run times."""

import pytest

from tests.unit.core.admission.admission_cell import CELL_SETUP, AdmissionCell, department, project
from yardmaster_core.admission.nesting import MAX_LEVELS, levels_of, path_of
from yardmaster_schemas.events import admissions as a
from yardmaster_schemas.events import requests as r
from yardmaster_schemas.reasons import AdmissionCode


def refused(verdict, code, **numbers):
    assert isinstance(verdict, a.RequestRefusedV1), verdict
    assert (verdict.code, verdict.numbers) == (code, numbers)
    return verdict


def chain(levels):
    """Departments d1 to dN, each the parent of the next one."""
    return [
        department(f"d{level}", parent=f"d{level - 1}" if level > 1 else None)
        for level in range(1, levels + 1)
    ]


def delete(name):
    return r.DepartmentDeletionRequestedV1(department=name)


def test_a_department_may_be_a_part_of_another_one():
    quota = AdmissionCell(*CELL_SETUP)
    verdict = quota.one(department("vision", parent="research", rank=200))
    assert verdict.department == r.DepartmentConfig(parent="research", rank=200)
    assert path_of(quota.state, "vision") == ["vision", "research"]
    assert (levels_of(quota.state, "research"), levels_of(quota.state, "vision")) == (2, 1)


def test_a_parent_must_exist():
    verdict = AdmissionCell(*CELL_SETUP).one(department("vision", parent="ghost"))
    assert refused(verdict, AdmissionCode.DEPARTMENT_UNKNOWN).about == "ghost"


@pytest.mark.parametrize("parent", ["d1", "d2", "d3"])
def test_a_department_is_no_part_of_itself(parent):
    quota = AdmissionCell(*CELL_SETUP, *chain(3))
    verdict = refused(quota.one(department("d1", parent=parent)), AdmissionCode.DEPARTMENT_CYCLE)
    assert verdict.about == parent


def test_a_new_department_is_no_part_of_itself():
    verdict = AdmissionCell(*CELL_SETUP).one(department("new", parent="new"))
    refused(verdict, AdmissionCode.DEPARTMENT_CYCLE)


def test_requests_of_one_cycle_are_judged_one_after_the_other():
    quota = AdmissionCell(*CELL_SETUP, department("a"), department("b"))
    first, second = quota.ask(department("a", parent="b"), department("b", parent="a"))
    assert isinstance(first, a.EntitlementsChangedV1)
    refused(second, AdmissionCode.DEPARTMENT_CYCLE)


def test_departments_have_a_bounded_number_of_levels():
    quota = AdmissionCell(*CELL_SETUP, *chain(MAX_LEVELS))
    deeper = department("d9", parent="d8")
    limits = {"levels": MAX_LEVELS + 1, "limit": MAX_LEVELS}
    verdict = refused(quota.one(deeper), AdmissionCode.DEPARTMENT_TOO_DEEP, **limits)
    assert verdict.about == "d8"


def test_what_is_below_a_department_counts_when_it_moves():
    quota = AdmissionCell(*CELL_SETUP, *chain(MAX_LEVELS - 1), department("top"), department("low"))
    quota.one(department("low", parent="top"))
    limits = {"levels": MAX_LEVELS + 1, "limit": MAX_LEVELS}
    moved = quota.one(department("top", parent="d7"))
    refused(moved, AdmissionCode.DEPARTMENT_TOO_DEEP, **limits)
    assert isinstance(quota.one(department("top", parent="d6")), a.EntitlementsChangedV1)
    refused(
        quota.one(department("d1", parent="research")),
        AdmissionCode.DEPARTMENT_TOO_DEEP,
        **limits,
    )


def test_a_parent_cannot_be_deleted():
    quota = AdmissionCell(*CELL_SETUP, department("vision", parent="research"), department("other"))
    refused(quota.one(delete("research")), AdmissionCode.IN_USE, uses=2)
    quota.one(project(department="other"))
    refused(quota.one(delete("research")), AdmissionCode.IN_USE, uses=1)
    quota.one(department("vision"))
    assert isinstance(quota.one(delete("research")), a.EntitlementsChangedV1)
    refused(
        quota.one(department("vision", parent="research")),
        AdmissionCode.DEPARTMENT_UNKNOWN,
    )


def test_the_uses_of_a_parent_survive_a_snapshot():
    quota = AdmissionCell(*CELL_SETUP, *chain(3))
    quota.state = quota.machine.load("main", quota.machine.dump(quota.state))
    refused(quota.one(delete("d2")), AdmissionCode.IN_USE, uses=1)


@pytest.mark.parametrize("amount", [0, 4000])
@pytest.mark.parametrize("make", [department, project])
def test_a_quota_deserves_a_number_or_everything(make, amount):
    quotas = {"default": r.Quota(deserved_unlimited=True, deserved_milli=amount)}
    verdict = refused(
        AdmissionCell(*CELL_SETUP).one(make(quotas=quotas)), AdmissionCode.QUOTA_INVALID
    )
    assert verdict.about == "default"
