"""`yard dev`: everything in one process on this machine."""

import shutil
from pathlib import Path

import click

from yardmaster.cli.devdata import (
    DEFAULT_SLOTS,
    Cluster,
    DataFolder,
    PolicySpec,
    plain_cluster,
    read_cluster,
)
from yardmaster.cli.errors import BadUsage
from yardmaster.cli.session import Session, command
from yardmaster.cli.yamltree import scalar


@command("dev")
@click.option("--nodes", type=click.IntRange(1, 64), metavar="N", help="Nodes (default: 1).")
@click.option("--slots", type=click.IntRange(0, 1024), metavar="N", help="Slots (GPUs) a node.")
@click.option("--cluster", "file", metavar="FILE", help="Nodes and policy from a YAML file.")
@click.option("--port", type=click.IntRange(0, 65_535), default=0, help="0: a free one.")
@click.option("--policy", default=None, metavar="NAME", help="Of the pool default, in a new log.")
@click.option("--policy-option", multiple=True, metavar="K=V", help="preemption=false, ...")
def dev(
    session: Session,
    nodes: int | None,
    slots: int | None,
    file: str | None,
    port: int,
    policy: str | None,
    policy_option: tuple[str, ...],
) -> int:
    """Run gateway, quota, scheduler, views and agents in one process over one SQLite file.

    Runs until Ctrl-C. Started again on the same data folder it goes on where it was; tasks live on
    meanwhile. Slots are declared: no GPU needs to be there.
    """
    from yardmaster.cli.embedded import Options, serve

    folder = DataFolder.take(session.config.data_dir)
    cluster = _cluster(folder, nodes, slots, file, _policy(policy, policy_option))
    folder.keep_cluster(cluster)
    out = session.out

    def ready(server: str) -> None:
        out.say(f"yard dev: {server}, data in {folder.path}")
        for node in cluster.nodes:
            out.say(f"  {node.name}: {node.slots} slots, pool {node.pool}")
        out.note("hint: in another terminal: yard submit -- COMMAND; Ctrl-C stops, tasks live on")

    return serve(folder, Options(cluster=cluster, port=port, quiet=not out.verbose), ready)


def _policy(name: str | None, options: tuple[str, ...]) -> PolicySpec:
    found: dict[str, bool | int | str] = {}
    for item in options:
        key, equals, value = item.partition("=")
        if not equals:
            raise BadUsage(f"--policy-option {item}: KEY=VALUE was expected")
        found[key.replace("-", "_")] = scalar(value)
    return PolicySpec(name=name or "priority", options=found)


def _cluster(
    folder: DataFolder, nodes: int | None, slots: int | None, file: str | None, policy: PolicySpec
) -> Cluster:
    if file is not None:
        if nodes is not None or slots is not None:
            raise BadUsage("give either --cluster or --nodes and --slots")
        return read_cluster(Path(file))
    before = folder.cluster()
    if nodes is None and slots is None and before is not None:
        return before
    count = slots if slots is not None else _slots_here()
    return plain_cluster(nodes or 1, count, policy)


def _slots_here() -> int:
    """As many slots as this machine has GPUs, and some when it has none."""
    if shutil.which("nvidia-smi") is None:
        return DEFAULT_SLOTS
    from yardmaster.cli.doctor import gpu_names

    return len(gpu_names()) or DEFAULT_SLOTS
