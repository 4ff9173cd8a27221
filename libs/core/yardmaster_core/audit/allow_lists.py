"""Check that what an admitted job uses is in the allow-lists in force at its admission (S8)."""

from collections.abc import Iterator

from yardmaster_schemas.envelope import Event
from yardmaster_schemas.events.admissions import (
    EntitlementsChangedV1,
    Level,
    PoolConfiguredV1,
    PoolDeletedV1,
    TaskAdmittedV1,
)
from yardmaster_schemas.events.requests import PoolConfig, ProjectConfig, SubmittedSpec
from yardmaster_schemas.image_names import is_allowed

WRITABLE = ":rw"


class AllowLists:
    """The lists of pools and projects after the decisions of quota so far."""

    def __init__(self) -> None:
        self._pools: dict[str, PoolConfig] = {}
        self._projects: dict[str, ProjectConfig] = {}

    def decide(self, body: Event) -> None:
        """Apply a decision of quota."""
        match body:
            case PoolConfiguredV1():
                self._pools[body.pool] = body.config
            case PoolDeletedV1():
                self._pools.pop(body.pool, None)
            case EntitlementsChangedV1(level=Level.PROJECT, project=None):
                self._projects.pop(body.name, None)
            case EntitlementsChangedV1(level=Level.PROJECT, project=config) if config is not None:
                self._projects[body.name] = config
            case _:
                pass

    def faults(self, spec: SubmittedSpec, admitted: TaskAdmittedV1) -> list[str]:
        """Return what a job may not use, with the owner of each list."""
        owners: list[tuple[str, PoolConfig | ProjectConfig]] = []
        project = self._projects.get(admitted.project)
        if project is not None:
            owners.append((f"project {admitted.project}", project))
        owners += [
            (f"pool {name}", self._pools[name])
            for name in admitted.spec.pools
            if name in self._pools
        ]
        return [
            f"{what} is not in the list of {owner}"
            for owner, config in owners
            for what in _outside(spec, config)
        ]


def _outside(spec: SubmittedSpec, config: PoolConfig | ProjectConfig) -> Iterator[str]:
    """Yield what a job uses that the lists of `config` do not allow."""
    of_pool = isinstance(config, PoolConfig)
    if spec.image is not None and config.images and not is_allowed(spec.image, config.images):
        yield f"image {spec.image}"
    if spec.git_host is not None and config.git_hosts and spec.git_host not in config.git_hosts:
        yield f"git host {spec.git_host}"
    if config.mounts or not of_pool:
        readable = {grant.removesuffix(WRITABLE) for grant in config.mounts}
        writable = {grant for grant in config.mounts if grant.endswith(WRITABLE)}
        for mount in spec.mounts:
            if mount not in (writable if mount.endswith(WRITABLE) else readable):
                yield f"mount {mount}"
    user = spec.run_as
    if user is not None and (config.users or not of_pool) and str(user) not in config.users:
        yield f"user {user}"
