"""`yard dev`: all services in one process on this machine."""

import os
import shutil
from pathlib import Path
from typing import Final

import click
from pydantic import ValidationError

from yardmaster.yaml_tree import scalar
from yardmaster_cli.dev.data_directory import (
    DEFAULT_SLOTS,
    Cluster,
    DataDirectory,
    plain_cluster,
    read_cluster,
)
from yardmaster_cli.errors import BadUsage, bad_setting
from yardmaster_cli.hints import yard_for
from yardmaster_cli.policy_spec import DEFAULT_POLICY, PolicySpec
from yardmaster_cli.session import Session, command
from yardmaster_localcluster.process import path_with_python
from yardmaster_runtime.telemetry.level import LogLevel
from yardmaster_schemas.counts import count_of

#: The policies for the help text; `checked_policy` reads the registry.
POLICY_NAMES: Final = (
    *("priority", "fair_share", "quota", "starved_first", "fitgpp", "fifo", "lrtp", "rand"),
)


@command("dev")
@click.option(
    "--nodes", type=click.IntRange(1, 64), metavar="N", help="Number of nodes (default: 1)."
)
@click.option("--slots", type=click.IntRange(0, 1024), metavar="N", help="Slots (GPUs) per node.")
@click.option("--cluster", "file", metavar="FILE", help="Read nodes and policy from a YAML file.")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=None,
    metavar="PORT",
    help="Port of the gateway; 0: any free port. Default: the port of the last start, or the first "
    "free port from 7450.",
)
@click.option(
    "--policy",
    default=None,
    metavar="NAME",
    help=f"Policy of the pool default, for a new log: {', '.join(POLICY_NAMES)}.",
)
@click.option(
    "--policy-option",
    multiple=True,
    metavar="K=V",
    help="Option of the policy, for a new log: preemption=false.",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="File with tokens of further users; see docs/how-to/users.md.",
)
def dev(
    session: Session,
    nodes: int | None,
    slots: int | None,
    file: str | None,
    port: int | None,
    policy: str | None,
    policy_option: tuple[str, ...],
    token_file: Path | None,
) -> int:
    """Run gateway, quota, scheduler, views and agents in one process.

    The log is one SQLite file in the data directory; the next start with the same directory
    continues with it. Ctrl-C ends the process, but tasks keep running. A node may declare any
    number of slots, so no GPU is needed.
    """
    if file is not None and (nodes is not None or slots is not None):
        raise BadUsage(
            "--cluster excludes --nodes and --slots", hint="set nodes and slots in the file"
        )
    # All options are checked before anything is written.
    log_level = _log_level(verbose=session.out.verbose)
    requested = _policy(policy, policy_option)
    given = None if file is None else read_cluster(Path(file))
    if given is not None and "policy" in given.model_fields_set:
        if requested is not None:
            raise BadUsage(f"{file} has a policy: leave out --policy and --policy-option")
        requested = given.policy
    if requested is not None:
        _check(requested)
    folder = DataDirectory.take(session.config.data_dir)
    cluster = given or _cluster(folder, nodes, slots)
    if requested is not None:
        cluster = cluster.model_copy(update={"policy": requested})
    out = session.out
    # Tasks find the Python and the SDK of this command.
    yard = yard_for(folder.path.absolute(), os.environ)
    os.environ["PATH"] = path_with_python(os.environ)

    def ready(server: str) -> None:
        out.say(f"yard dev: {server}, data in {folder.path}")
        for node in cluster.nodes:
            out.say(f"  {node.name}: {count_of(node.slots, 'slot')}, pool {node.pool}")
        out.note(f"hint: in another terminal: {yard} submit -- COMMAND")
        out.note("Ctrl-C stops this process; tasks keep running")

    services = "gateway, quota, scheduler, views and agents"
    out.note(f"starting {services} in one process")
    # Imported here: this module imports all services, which takes long.
    from yardmaster_cli.dev.embedded import Options, serve

    options = Options(
        cluster=cluster,
        port=port,
        policy=requested,
        log_level=log_level,
        token_file=token_file,
    )
    code = serve(folder, options, ready)
    out.note(
        f"\nyard dev stopped; its tasks keep running. {yard} dev continues with the log in "
        f"{folder.path}"
    )
    return code


def _log_level(*, verbose: bool) -> LogLevel:
    """The level of the services' log lines: info with -v, else YARD_LOG_LEVEL, else warning.

    Raises: BadUsage.
    """
    from yardmaster_runtime.settings import LogSettings

    try:
        settings = LogSettings()
    except ValidationError as error:
        raise bad_setting(error) from None
    if verbose:
        return "info"
    return settings.log_level if "log_level" in settings.model_fields_set else "warning"


def _policy(name: str | None, options: tuple[str, ...]) -> PolicySpec | None:
    """The policy that the flags request; None without flags."""
    if name is None and not options:
        return None
    found: dict[str, bool | int | str] = {}
    for item in options:
        key, equals, value = item.partition("=")
        if not equals:
            raise BadUsage(f"--policy-option {item}: expected KEY=VALUE")
        found[key.replace("-", "_")] = scalar(value)
    try:
        return PolicySpec(name=name or DEFAULT_POLICY, options=found)
    except ValidationError:
        raise BadUsage(f"--policy {name}: not a valid name") from None


def _check(policy: PolicySpec) -> None:
    """Raises: BadUsage when the policy does not exist, or does not have these options."""
    from yardmaster_cli.policy_spec import checked_policy

    checked_policy(policy)


def _cluster(folder: DataDirectory, nodes: int | None, slots: int | None) -> Cluster:
    """The nodes that the flags request; without flags, the nodes of the last start."""
    before = folder.cluster()
    if nodes is None and slots is None and before is not None:
        return before
    count = slots if slots is not None else _slots_here()
    return plain_cluster(nodes or 1, count, PolicySpec())


def _slots_here() -> int:
    """The number of GPUs of this machine; without a GPU, the default number of slots."""
    if shutil.which("nvidia-smi") is None:
        return DEFAULT_SLOTS
    from yardmaster_cli.commands.doctor import gpu_names

    return len(gpu_names()) or DEFAULT_SLOTS
