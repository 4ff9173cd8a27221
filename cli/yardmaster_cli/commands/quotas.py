"""`yard quotas`: list, set and delete the quotas of projects and departments, pool by pool.

A quota is a part of its project or department. `set` reads the project or department, changes the
keys that its options name, and writes it under the ETag that was read.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import click

from yardmaster_cli.commands.configured import KINDS, everything
from yardmaster_cli.errors import BadUsage, CliError, Exit
from yardmaster_cli.key_values import QUOTA
from yardmaster_cli.output.columns import QUOTAS
from yardmaster_cli.server.remote import Remote, plain
from yardmaster_cli.session import NounGroup, Session, if_match_option

_Command = TypeVar("_Command", bound=Callable[..., Any])

#: Option -> (further spellings, key of the quota, form of its value, help).
_OPTIONS: Final[Mapping[str, tuple[tuple[str, ...], str, str, str]]] = {
    "gpu": (
        ("--deserved",),
        *("deserved", "N|unlimited|none"),
        "GPUs that its tasks get back from others when they need them.",
    ),
    "limit": ((), "limit", "N|none", "Maximum GPUs that its tasks hold in the pool."),
    "over_quota_weight": (
        ("--weight",),
        *("over-quota-weight", "WEIGHT"),
        "Part of the unused capacity, relative to siblings: none, low, medium, high or a number.",
    ),
    "over_quota": (
        (),
        *("over-quota", "on|off"),
        "Whether its tasks may hold more than it deserves.",
    ),
    "cpus": ((), "deserved-cpus", "N|unlimited", "CPUs that it deserves."),
    "memory": ((), "deserved-memory", "SIZE|unlimited", "Memory that it deserves, such as 512Gi."),
    "limit_cpus": ((), "limit-cpus", "N|none", "Maximum CPUs that its tasks hold in the pool."),
    "limit_memory": (
        (),
        *("limit-memory", "SIZE|none"),
        "Maximum memory that its tasks hold in the pool.",
    ),
}

quotas = NounGroup("quotas", help="List quotas of projects and departments; set, delete.")


@quotas.command("ls")
@click.option("--pool", metavar="NAME", help="List the quotas of this pool.")
def ls(session: Session, pool: str | None) -> None:
    """List quotas, with what their projects and departments use.

    USED, PENDING and LIMIT are GPUs. -o wide adds CPUs and memory.
    """
    rows = [
        {"kind": nouns.removesuffix("s"), "name": found.name, **use}
        for nouns in ("departments", "projects")
        for found in everything(session.remote, nouns).values()
        for use in plain(found)["pools"]
        if use["pool"] in found.config.quotas and pool in (None, use["pool"])
    ]
    session.out.items(rows, QUOTAS, name="name")


def _of_owner(change: _Command) -> _Command:
    change = click.option("--pool", required=True, metavar="NAME", help="Pool of the quota.")(
        change
    )
    change = click.option(
        "--department", "is_department", is_flag=True, help="NAME is a department, not a project."
    )(change)
    return click.argument("name")(change)


def _quota_options(change: _Command) -> _Command:
    for name, (further, _, metavar, about) in reversed(list(_OPTIONS.items())):
        spellings = (f"--{name.replace('_', '-')}", *further)
        change = click.option(*spellings, name, metavar=metavar, help=about)(change)
    return change


@quotas.command("set")
@_of_owner
@_quota_options
@if_match_option("Change", "project or department")
def change(
    session: Session,
    name: str,
    pool: str,
    is_department: bool,
    if_match: str | None,
    **given: str | None,
) -> None:
    """Change a quota of a project or department.

    What is not given keeps its value. The policy quota reads all options; other policies enforce
    --limit alone.
    """
    fields: dict[str, Any] = {}
    for option, text in given.items():
        if text is None:
            continue
        try:
            value = QUOTA[_OPTIONS[option][1]].read(text)
        except ValueError as error:
            raise BadUsage(f"--{option.replace('_', '-')}: {error}") from None
        (field,) = QUOTA[_OPTIONS[option][1]].path
        fields |= value if isinstance(value, dict) else {field: value}
    if not fields:
        raise BadUsage(
            "there is nothing to change",
            hint=f"yard quotas set {name} --pool {pool} --gpu N --limit N",
        )

    def changed(quotas: dict[str, Any]) -> dict[str, Any]:
        return {**quotas, pool: quotas.get(pool, {}) | fields}

    _write(session, name, is_department, if_match, changed)


@quotas.command("delete")
@_of_owner
@if_match_option("Change", "project or department")
def delete(
    session: Session, name: str, pool: str, is_department: bool, if_match: str | None
) -> None:
    """Delete a quota of a project or department.

    Without a quota it deserves nothing and has no limit in the pool.
    """
    noun = _noun(is_department)

    def changed(quotas: dict[str, Any]) -> dict[str, Any]:
        if pool not in quotas:
            raise CliError(
                f"{noun} {name} has no quota in pool {pool}",
                exit_code=Exit.NOT_FOUND,
                hint="list all quotas with: yard quotas",
            )
        return {key: value for key, value in quotas.items() if key != pool}

    _write(session, name, is_department, if_match, changed)


def _noun(is_department: bool) -> str:
    return "department" if is_department else "project"


def _write(
    session: Session,
    name: str,
    is_department: bool,
    if_match: str | None,
    changed: Callable[[dict[str, Any]], dict[str, Any]],
) -> None:
    remote: Remote = session.remote
    noun = _noun(is_department)
    # The ETag is read before the configuration: the server then refuses this write if another
    # change came in between.
    tag = if_match or remote.client.etag(f"/v1/{noun}s/{name}")
    body = plain(getattr(remote.client, noun)(name))["config"]
    config = KINDS[f"{noun}s"].parse(body | {"quotas": changed(body["quotas"])}, ())
    accepted = getattr(remote.client, f"put_{noun}")(name, config, if_match=tag)
    remote.await_verdict(accepted, name, session.out)
    session.out.say(name)
