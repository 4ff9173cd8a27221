"""`yard demo`: a small cluster at work, from the first job to the proof of its log.

The command starts its own cluster in the embedded mode. With `--running` it uses a running cluster:
the cluster of `yard up`, or the cluster that `--server` or `--context` names. All output is real:
the demo runs the commands that a user runs, and the tasks are training processes. With
`--executor docker` the gangs run in containers. The exit code is 0 only if the demo observed every
claim that it makes.
"""

import shutil
import tempfile
from pathlib import Path
from typing import Final

import click

from yardmaster_cli.demo.cluster import (
    ContainerCluster,
    DemoCluster,
    RunningCluster,
    remembered_interrupts,
)
from yardmaster_cli.demo.run import DemoRun
from yardmaster_cli.errors import BadUsage, Exit
from yardmaster_cli.session import Session, command

#: The image of the gangs in containers.
IMAGE: Final = "python:3.12"


@command("demo")
@click.option("--keep", is_flag=True, help="Keep the data directory.")
@click.option("--running", is_flag=True, help="Use a running cluster, such as that of yard up.")
@click.option(
    "--executor",
    type=click.Choice(["process", "docker"]),
    default="process",
    help="How the gangs run: as processes (the default), or in containers of Docker.",
)
@click.option(
    "--image",
    metavar="IMAGE",
    help=f"Image with Python 3.11 or newer, for --executor docker (default: {IMAGE}).",
)
def demo(session: Session, keep: bool, running: bool, executor: str, image: str | None) -> int:
    """Watch a small cluster at work: jobs are preempted for gangs, resume and finish."""
    contained = executor == "docker"
    if contained and running:
        raise BadUsage("--executor docker starts a cluster of its own: leave out --running")
    if image and not contained:
        raise BadUsage("--image needs --executor docker")
    folder = Path(tempfile.mkdtemp(prefix="yard-demo-"))
    cluster: DemoCluster
    if contained:
        cluster = ContainerCluster(folder, image or IMAGE, color=session.out.color)
    elif running:
        session.export()
        cluster = RunningCluster(folder, color=session.out.color)
    else:
        cluster = DemoCluster.in_folder(folder, color=session.out.color)
    run = DemoRun(cluster)
    good = False
    try:
        with remembered_interrupts(), cluster.running():
            run.run()
        good = run.judge()
    finally:
        if good and not keep:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            click.echo(f"the data directory is kept: {folder}", err=True)
    return int(Exit.DONE if good else Exit.CHECK_FAILED)
