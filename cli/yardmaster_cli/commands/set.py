"""`yard set priority|weight|max-slots REF N`: change an active job."""

from math import isfinite

import click

from yardmaster_cli.errors import BadUsage, first_error
from yardmaster_cli.session import Session, YardGroup


@click.group("set", cls=YardGroup)
def set_group() -> None:
    """Change a job's priority, weight or limit of slots."""


def _change(
    session: Session, ref: str, if_match: str | None, key: str, value: int | float | None
) -> None:
    remote = session.remote
    found = remote.resolve(ref)
    if found.index is not None:
        raise BadUsage(
            f"{ref} is a task, and {key} belongs to a whole job",
            hint=f"yard set {key.replace('_', '-')} {found.job_id} N",
        )
    # Imported here: help needs no models.
    from pydantic import ValidationError

    try:
        accepted = remote.client.patch_job(found.job_id, if_match=if_match, **{key: value})
    except ValidationError as error:
        raise BadUsage(first_error(error)) from None
    remote.await_verdict(accepted, found.job_id, session.out)
    session.out.say(found.job_id)


@set_group.command("priority")
@click.argument("ref", metavar="REF")
@click.argument("n", type=click.IntRange(1, 99), metavar="N")
@click.option("--if-match", metavar="ETAG", help="Only if it was not modified since.")
def priority(session: Session, ref: str, n: int, if_match: str | None) -> None:
    """Set a job's priority: 1 to 99, a smaller number is a higher priority."""
    _change(session, ref, if_match, "priority", n)


@set_group.command("weight")
@click.argument("ref", metavar="REF")
@click.argument("n", type=click.IntRange(1), metavar="N")
@click.option("--if-match", metavar="ETAG", help="Only if it was not modified since.")
def weight(session: Session, ref: str, n: int, if_match: str | None) -> None:
    """Set a job's weight in fair sharing."""
    _change(session, ref, if_match, "weight", n)


@set_group.command("max-slots")
@click.argument("ref", metavar="REF")
@click.argument("n", metavar="N|none")
@click.option("--if-match", metavar="ETAG", help="Only if it was not modified since.")
def max_slots(session: Session, ref: str, n: str, if_match: str | None) -> None:
    """Limit a job's running GPUs; none removes the limit."""
    try:
        value = None if n == "none" else float(n)
        if value is not None and not isfinite(value):
            raise ValueError(n)
    except ValueError:
        raise BadUsage(f"{n} is not a number of GPUs", hint="give a number, or none") from None
    _change(session, ref, if_match, "max_slots", value)
