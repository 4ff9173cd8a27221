"""`yard set priority|weight|max-slots REF N`: change an active job."""

from math import isfinite

import click

from yardmaster_cli.errors import BadUsage, first_error
from yardmaster_cli.session import Session, YardGroup, if_match_option


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
@if_match_option("Change", "job")
def priority(session: Session, ref: str, n: int, if_match: str | None) -> None:
    """Set a job's priority, from 1 to 99.

    A smaller number is a higher priority. It applies to pending and running tasks from the next
    scheduling cycle on.
    """
    _change(session, ref, if_match, "priority", n)


@set_group.command("weight")
@click.argument("ref", metavar="REF")
@click.argument("n", type=click.IntRange(1), metavar="N")
@if_match_option("Change", "job")
def weight(session: Session, ref: str, n: int, if_match: str | None) -> None:
    """Set a job's weight in fair sharing.

    The policy fair_share divides a pool among jobs by their weights; other policies ignore them.
    """
    _change(session, ref, if_match, "weight", n)


@set_group.command("max-slots")
@click.argument("ref", metavar="REF")
@click.argument("n", metavar="N|none")
@if_match_option("Change", "job")
def max_slots(session: Session, ref: str, n: str, if_match: str | None) -> None:
    """Limit the GPUs that a job's tasks hold.

    The value `none` removes the limit.
    """
    try:
        value = None if n == "none" else float(n)
        if value is not None and not isfinite(value):
            raise ValueError(n)
    except ValueError:
        raise BadUsage(f"{n} is not a number of GPUs", hint="give a number, or none") from None
    _change(session, ref, if_match, "max_slots", value)
