"""`yard demo`: a small cluster at work, from the first job to the proof of its log.

It brings a cluster of its own, the embedded mode as a process; with `--running` it plays on one
that runs: that of `yard up`, or the one that `--server` or `--context` names. Everything shown is
real: the commands are the ones a user types, the tasks are processes that train. It ends with exit
code 0 only if what it tells was observed.
"""

import shutil
import tempfile
from pathlib import Path

import click

from yardmaster_cli.demo.cluster import RunningStage, Stage
from yardmaster_cli.demo.walk import Walk
from yardmaster_cli.errors import Exit
from yardmaster_cli.session import Session, command


@command("demo")
@click.option("--keep", is_flag=True, help="Keep the folder, to look around in it.")
@click.option("--running", is_flag=True, help="Play on the cluster that runs: of yard up, say.")
def demo(session: Session, keep: bool, running: bool) -> int:
    """Watch a small cluster at work: jobs make room for gangs, resume from checkpoints, finish."""
    folder = Path(tempfile.mkdtemp(prefix="yard-demo-"))
    stage: Stage
    if running:
        session.export()
        stage = RunningStage(folder, color=session.out.color)
    else:
        stage = Stage.in_folder(folder, color=session.out.color)
    walk = Walk(stage)
    good = False
    try:
        with stage.cluster():
            walk.play()
        good = walk.judge()
    finally:
        if good and not keep:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            click.echo(f"the data is kept in {folder}", err=True)
    return int(Exit.DONE if good else Exit.CHECK_FAILED)
