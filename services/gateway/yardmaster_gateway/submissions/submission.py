"""The records of a submitted job: its id, the request, the details, and the digest of its body."""

import hmac
from typing import Final

from pydantic_core import to_json

from yardmaster_schemas.events.details import JobDetailedV1
from yardmaster_schemas.events.requests import DetailsRef, TaskSubmittedV1
from yardmaster_schemas.job_file import (
    JobSpec,
    name_of,
    run_of,
    submitted_spec,
    task_params,
)

_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
ID_LENGTH: Final = 12


def job_id(log_id: str, project: str, user: str, key: str) -> str:
    """The id of the job that a user submits to a project under an idempotency key.

    12 characters of [0-9a-z], from an HMAC-SHA256 keyed with the log's id, so that no user can
    choose a key that yields a given id.
    """
    parts = (project, user, key)
    message = b"".join(len(p.encode()).to_bytes(8, "big") + p.encode() for p in parts)
    number = int.from_bytes(hmac.digest(bytes.fromhex(log_id), message, "sha256"), "big")
    digits = []
    for _ in range(ID_LENGTH):
        number, digit = divmod(number, len(_DIGITS))
        digits.append(_DIGITS[digit])
    return "".join(digits)


def body_digest(spec: JobSpec, key: str) -> str:
    """A digest of a job description, 64 hex digits; equal descriptions have equal digests.

    The digest is kept for ever, unlike the description. It is an HMAC with the idempotency key,
    which no log contains; without the key, an erased description cannot be guessed and verified. A
    field with its default does not count, so a later version of the job file with more fields gives
    the same digest.
    """
    plain = to_json(_sorted(spec.model_dump(mode="json", exclude_defaults=True)))
    return hmac.digest(key.encode(), plain, "sha256").hex()


def _sorted(value: object) -> object:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    if isinstance(value, list):
        return [_sorted(inner) for inner in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    return value


def details(spec: JobSpec, id_: str, user: str, salt: str) -> JobDetailedV1:
    """The details of a job, which no decision reads."""
    return JobDetailedV1(
        job_id=id_,
        salt=salt,
        name=name_of(spec),
        user=user,
        labels=dict(spec.labels),
        run=run_of(spec),
        stop_signal=spec.stop.signal,
        params=task_params(spec),
    )


def request(spec: JobSpec, id_: str, key: str, ref: DetailsRef) -> TaskSubmittedV1:
    """The request that quota decides on."""
    return TaskSubmittedV1(
        job_id=id_,
        project=spec.project,
        spec=submitted_spec(spec),
        body_digest=body_digest(spec, key),
        details=ref,
    )
