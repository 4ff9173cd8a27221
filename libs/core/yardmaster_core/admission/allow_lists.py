"""The allow-lists of projects and pools: the images, mounts, users and git hosts of jobs.

An empty list of a pool, and an empty list of images or git hosts, allows all; a project without a
list of mounts or users allows none. So a job mounts a folder, or runs as a user that it names, only
after an operator allowed it to its project.
"""

from yardmaster_schemas.events.admissions import ListOwner, TaskRejectedV1
from yardmaster_schemas.events.requests import PoolConfig, ProjectConfig, TaskSubmittedV1
from yardmaster_schemas.image_names import is_allowed
from yardmaster_schemas.reasons import AdmissionCode

_WRITABLE = ":rw"


def not_listed(
    request: TaskSubmittedV1, owner: ListOwner, name: str, config: PoolConfig | ProjectConfig
) -> TaskRejectedV1 | None:
    """Return the rejection of a job that uses what a list of `config` does not allow, or None.

    `config` is that of the pool or project `name`.
    """
    found = (
        _image(request, config)
        or _mount(request, config, owner)
        or _user(request, config, owner)
        or _git(request, config)
    )
    if found is None:
        return None
    code, what = found
    return TaskRejectedV1(
        job_id=request.job_id, code=code, about=name, not_listed=what, list_owner=owner
    )


def _image(
    request: TaskSubmittedV1, config: PoolConfig | ProjectConfig
) -> tuple[AdmissionCode, str] | None:
    image = request.spec.image
    if image is None or not config.images or is_allowed(image, config.images):
        return None
    return AdmissionCode.IMAGE_NOT_ALLOWED, image


def _mount(
    request: TaskSubmittedV1, config: PoolConfig | ProjectConfig, owner: ListOwner
) -> tuple[AdmissionCode, str] | None:
    if owner is ListOwner.POOL and not config.mounts:
        return None
    for mount in request.spec.mounts:
        source = mount.removesuffix(_WRITABLE)
        if mount in config.mounts or f"{source}{_WRITABLE}" in config.mounts:
            continue
        if source in config.mounts:
            return AdmissionCode.MOUNT_READ_ONLY, source
        return AdmissionCode.MOUNT_NOT_ALLOWED, source
    return None


def _user(
    request: TaskSubmittedV1, config: PoolConfig | ProjectConfig, owner: ListOwner
) -> tuple[AdmissionCode, str] | None:
    user = request.spec.run_as
    if user is None or (owner is ListOwner.POOL and not config.users):
        return None
    return None if str(user) in config.users else (AdmissionCode.USER_NOT_ALLOWED, str(user))


def _git(
    request: TaskSubmittedV1, config: PoolConfig | ProjectConfig
) -> tuple[AdmissionCode, str] | None:
    host = request.spec.git_host
    if host is None or not config.git_hosts or host in config.git_hosts:
        return None
    return AdmissionCode.GIT_HOST_NOT_ALLOWED, host
