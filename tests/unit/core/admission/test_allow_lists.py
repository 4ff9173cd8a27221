"""The allow-lists of images, mounts, users and git hosts of projects and pools."""

from typing import Any

import pytest

from tests.unit.core.admission.admission_cell import OTHER, AdmissionCell, department, job, pool
from tests.unit.core.admission.admission_cell import project as project_change
from yardmaster_schemas.events.admissions import TaskAdmittedV1, TaskRejectedV1
from yardmaster_schemas.reasons import AdmissionCode as Code
from yardmaster_schemas.run_as import RunAs

PYTHON = "docker.io/library/python"
TRAIN = "registry.example.org/team/train"


def cell(project: dict[str, Any] | None = None, **pools: dict[str, Any]) -> AdmissionCell:
    """A cell with a project `nlp` and pools, each with its lists."""
    names = pools or {"default": {}}
    changes = [pool(name, **lists) for name, lists in names.items()]
    return AdmissionCell(*changes, department(), project_change(**project or {}))


def refusal(verdict: Any) -> tuple[Code, str | None, str | None, str | None]:
    assert isinstance(verdict, TaskRejectedV1)
    return verdict.code, verdict.not_listed, verdict.list_owner, verdict.about


def test_without_lists_any_image_runs_and_no_folder_is_mounted() -> None:
    quota = cell()
    assert isinstance(quota.one(job(image=TRAIN)), TaskAdmittedV1)
    found = refusal(quota.one(job(OTHER, image=TRAIN, mounts=("datasets",))))
    assert found == (Code.MOUNT_NOT_ALLOWED, "datasets", "project", "nlp")


@pytest.mark.parametrize(
    ("project", "pools", "owner", "name"),
    [
        ({"images": ("registry.example.org",)}, {"default": {}}, "project", "nlp"),
        ({}, {"default": {"images": ("registry.example.org",)}}, "pool", "default"),
        (
            {"images": ("python",)},
            {"default": {"images": ("registry.example.org",)}},
            *("pool", "default"),
        ),
    ],
)
def test_project_and_pool_must_both_allow_an_image(
    project: dict[str, Any], pools: dict[str, dict[str, Any]], owner: str, name: str
) -> None:
    found = refusal(cell(project, **pools).one(job(image=PYTHON)))
    assert found == (Code.IMAGE_NOT_ALLOWED, PYTHON, owner, name)


def test_a_job_without_a_container_needs_no_list() -> None:
    quota = cell({"images": ("python",)}, default={"images": ("team/",), "mounts": ("data",)})
    assert isinstance(quota.one(job()), TaskAdmittedV1)


@pytest.mark.parametrize(
    ("listed", "mount", "code"),
    [
        (("datasets",), "datasets", None),
        (("datasets:rw",), "datasets", None),
        (("datasets:rw",), "datasets:rw", None),
        (("datasets",), "datasets:rw", Code.MOUNT_READ_ONLY),
        (("datasets",), "scratch", Code.MOUNT_NOT_ALLOWED),
    ],
)
@pytest.mark.parametrize("owner", ["project", "pool"])
def test_a_list_says_which_folders_are_mounted_and_which_written(
    owner: str, listed: tuple[str, ...], mount: str, code: Code | None
) -> None:
    every = ("datasets:rw", "scratch:rw")
    of_project, of_pool = (listed, ()) if owner == "project" else (every, listed)
    quota = cell({"mounts": of_project}, default={"mounts": of_pool})
    verdict = quota.one(job(image=PYTHON, mounts=(mount,)))
    if code is None:
        assert isinstance(verdict, TaskAdmittedV1)
    else:
        name = "nlp" if owner == "project" else "default"
        assert refusal(verdict) == (code, mount.removesuffix(":rw"), owner, name)


ADA = RunAs(uid=1500, gid=100)


def test_a_job_runs_only_as_a_user_that_its_project_lists() -> None:
    for listed in ((), ("1500:1500",), ("100:1500",)):
        found = refusal(cell({"users": listed}).one(job(run_as=ADA)))
        assert found == (Code.USER_NOT_ALLOWED, "1500:100", "project", "nlp")
    verdict = cell({"users": ("7:7", "1500:100")}).one(job(run_as=ADA))
    assert isinstance(verdict, TaskAdmittedV1)
    assert verdict.spec.run_as == ADA
    verdict = cell({"users": ("7:7",)}).one(job())
    assert isinstance(verdict, TaskAdmittedV1)
    assert verdict.spec.run_as is None


def test_a_pool_that_lists_users_must_list_the_user_too() -> None:
    project = {"users": ("1500:100",)}
    found = refusal(cell(project, default={"users": ("7:7",)}).one(job(run_as=ADA)))
    assert found == (Code.USER_NOT_ALLOWED, "1500:100", "pool", "default")
    verdict = cell(project, default={"users": ("1500:100",)}).one(job(run_as=ADA))
    assert isinstance(verdict, TaskAdmittedV1)
    found = refusal(cell(default={"users": ("1500:100",)}).one(job(run_as=ADA)))
    assert found == (Code.USER_NOT_ALLOWED, "1500:100", "project", "nlp")


def test_every_pool_that_a_job_names_must_allow_it() -> None:
    quota = cell(a100={}, h100={"images": ("team/",)})
    found = refusal(quota.one(job(image=PYTHON, pools=("a100", "h100"))))
    assert found == (Code.IMAGE_NOT_ALLOWED, PYTHON, "pool", "h100")


def test_of_the_pools_by_default_a_job_uses_those_that_allow_it() -> None:
    quota = cell(a100={"images": ("team/",)}, b200={}, h100={"images": ("python",)})
    verdict = quota.one(job(image=PYTHON))
    assert isinstance(verdict, TaskAdmittedV1)
    assert verdict.spec.pools == ("b200", "h100")
    found = refusal(cell(a100={"images": ("team/",)}).one(job(image=PYTHON)))
    assert found == (Code.IMAGE_NOT_ALLOWED, PYTHON, "pool", "a100")


def test_an_admitted_job_stays_when_a_list_changes() -> None:
    quota = cell()
    assert isinstance(quota.one(job(image=PYTHON)), TaskAdmittedV1)
    quota.one(project_change(images=("team/",)))
    assert quota.state.unfinished("project", "nlp") == 1
    assert isinstance(quota.one(job(OTHER, image=PYTHON)), TaskRejectedV1)


@pytest.mark.parametrize(
    ("owner", "hosts", "allowed"),
    [
        ("project", (), True),
        ("project", ("h:8443", "git.example.org"), True),
        ("project", ("example.org",), False),
        ("pool", ("git.example.org:8443",), False),
    ],
)
def test_a_list_says_from_which_hosts_commits_are_fetched(
    owner: str, hosts: tuple[str, ...], allowed: bool
) -> None:
    lists = {"git_hosts": hosts}
    quota = cell(lists) if owner == "project" else cell(default=lists)
    verdict = quota.one(job(git_host="git.example.org"))
    if allowed:
        assert isinstance(verdict, TaskAdmittedV1)
    else:
        name = "nlp" if owner == "project" else "default"
        assert refusal(verdict) == (Code.GIT_HOST_NOT_ALLOWED, "git.example.org", owner, name)
    assert isinstance(quota.one(job(OTHER)), TaskAdmittedV1)
