"""The pools and node types of jobs that name none."""

import json

import pytest

from tests.unit.core.admission.admission_cell import (
    CELL,
    JOB,
    OTHER,
    AdmissionCell,
    department,
    job,
    pool,
    project,
)
from yardmaster_schemas.events import admissions as a
from yardmaster_schemas.events import requests as r
from yardmaster_schemas.events.requests import Kind
from yardmaster_schemas.reasons import AdmissionCode

POOLS = (pool("default"), pool("h100"), pool("a100"), department())
THIRD = "x7t1v9ga3wde"


def cell(**config):
    return r.CellChangeRequestedV1(config=r.CellConfig(**config))


def pools_of(quota, request=None):
    verdict = quota.one(request or job())
    assert isinstance(verdict, a.TaskAdmittedV1), verdict
    return verdict.spec.pools


def refused(verdict, code, about):
    assert isinstance(verdict, a.RequestRefusedV1), verdict
    assert (verdict.code, verdict.about) == (code, about)


@pytest.mark.parametrize(
    ("of_project", "of_cell", "expected"),
    [
        ({"default_pools": ("h100", "a100")}, (), ("h100", "a100")),
        ({"default_pools": ("h100",)}, ("a100",), ("h100",)),
        ({"default_pools": ("a100",), "pools": ("h100", "a100")}, (), ("a100",)),
        ({}, ("h100", "default", "h100"), ("h100", "default")),
        ({"pools": ("h100", "a100")}, ("default", "a100"), ("a100",)),
        ({"pools": ("h100", "a100")}, ("default",), ("h100", "a100")),
        ({"pools": ("h100", "a100")}, (), ("h100", "a100")),
        ({}, (), ("default", "a100", "h100")),
    ],
    ids=[
        "of the project",
        "of the project, not of the cell",
        "a part of the allowed pools",
        "of the cell",
        "those of the cell that the project may use",
        "the project may use none of the cell",
        "no default: all that the project may use",
        "no list: all pools",
    ],
)
def test_a_job_that_names_no_pools_gets_the_default_ones(of_project, of_cell, expected):
    quota = AdmissionCell(*POOLS, project(**of_project))
    quota.one(cell(default_pools=of_cell))
    assert pools_of(quota) == expected


def test_a_job_may_name_other_pools_than_the_default_ones():
    quota = AdmissionCell(*POOLS, project(default_pools=("h100",)), cell(default_pools=("a100",)))
    assert pools_of(quota, job(pools=("default", "a100"))) == ("default", "a100")


def test_the_default_priority_is_that_of_the_first_default_pool():
    quota = AdmissionCell(
        *POOLS, pool("a100", default_priority=7), project(default_pools=("a100", "h100"))
    )
    assert quota.one(job()).spec.priority == 7


def test_a_change_of_the_default_pools_does_not_affect_admitted_jobs():
    quota = AdmissionCell(*POOLS, project(default_pools=("h100",)), job())
    quota.ask(project(default_pools=("a100",)))
    admitted = quota.state.jobs.get(JOB)
    assert admitted is not None
    assert admitted.pools == ("h100",)
    assert pools_of(quota, job(OTHER)) == ("a100",)


def test_the_default_pools_of_a_project_exist_and_are_allowed():
    quota = AdmissionCell(*POOLS, project(pools=("h100", "a100"), default_pools=("a100",)))
    unknown = project(default_pools=("h100", "moon"))
    refused(quota.one(unknown), AdmissionCode.POOL_UNKNOWN, "moon")
    other = project(pools=("h100",), default_pools=("h100", "default"))
    refused(quota.one(other), AdmissionCode.POOL_NOT_ALLOWED, "default")
    smaller = project(pools=("h100",), default_pools=("a100",))
    refused(quota.one(smaller), AdmissionCode.POOL_NOT_ALLOWED, "a100")
    both = quota.one(project(pools=("h100",), default_pools=("h100",)))
    assert isinstance(both, a.EntitlementsChangedV1)


def test_the_default_pools_of_the_cell_exist():
    quota = AdmissionCell(*POOLS)
    refused(quota.one(cell(default_pools=("h100", "moon"))), AdmissionCode.POOL_UNKNOWN, "moon")
    assert isinstance(quota.one(cell(default_pools=("h100",))), a.CellConfiguredV1)


@pytest.mark.parametrize(
    ("user", "freed"),
    [
        (cell(default_pools=("h100",)), cell()),
        (project(default_pools=("h100",)), project()),
        (project(default_pools=("h100",), pools=("h100",)), project(pools=("default",))),
        (project(default_pools=("h100",)), r.ProjectDeletionRequestedV1(project="nlp")),
    ],
    ids=["of the cell", "of a project", "also an allowed pool", "of a deleted project"],
)
def test_a_default_pool_cannot_be_deleted(user, freed):
    quota = AdmissionCell(*POOLS, user)
    deletion = r.PoolDeletionRequestedV1(pool="h100")
    verdict = quota.one(deletion)
    refused(verdict, AdmissionCode.IN_USE, "h100")
    assert verdict.numbers == {"uses": 1}
    quota.state = quota.machine.load(CELL, json.loads(quota.dumped()))
    refused(quota.one(deletion), AdmissionCode.IN_USE, "h100")
    quota.one(freed)
    assert isinstance(quota.one(deletion), a.PoolDeletedV1)


def test_jobs_of_a_kind_use_only_the_node_types_of_that_kind():
    types = {Kind.TRAINING: ("sxm", "pcie"), Kind.INTERACTIVE: ()}
    quota = AdmissionCell(*POOLS, project(node_types=("nvl",), kind_node_types=types))
    verdict = quota.one(job(node_types=("sxm", "nvl")))
    assert isinstance(verdict, a.TaskRejectedV1)
    assert (verdict.code, verdict.about) == (AdmissionCode.NODE_TYPE_NOT_ALLOWED, "nvl")
    assert quota.one(job(OTHER, node_types=("pcie",))).spec.node_types == ("pcie",)
    assert quota.one(job(THIRD)).spec.node_types == ("sxm", "pcie")


@pytest.mark.parametrize(
    ("kind", "named", "expected"),
    [
        (Kind.INFERENCE, (), ("nvl",)),
        (Kind.INFERENCE, ("nvl",), ("nvl",)),
        (Kind.INTERACTIVE, (), ()),
        (Kind.INTERACTIVE, ("any",), ("any",)),
    ],
)
def test_other_kinds_follow_the_list_of_the_project_and_an_empty_list_allows_all(
    kind, named, expected
):
    types = {Kind.TRAINING: ("sxm",), Kind.INTERACTIVE: ()}
    quota = AdmissionCell(*POOLS, project(node_types=("nvl",), kind_node_types=types))
    assert quota.one(job(kind=kind, node_types=named)).spec.node_types == expected


def test_a_kind_without_a_list_may_not_use_the_types_of_another():
    quota = AdmissionCell(
        *POOLS, project(node_types=("nvl",), kind_node_types={Kind.TRAINING: ("sxm",)})
    )
    verdict = quota.one(job(kind=Kind.INFERENCE, node_types=("sxm",)))
    assert (verdict.code, verdict.about) == (AdmissionCode.NODE_TYPE_NOT_ALLOWED, "sxm")
