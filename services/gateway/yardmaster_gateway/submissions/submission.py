"""The records of a submitted job: its id, the request, the details, and the digest of its body."""

import hmac
from dataclasses import dataclass
from typing import Final, Self

from pydantic_core import to_json

from yardmaster_schemas.events.details import JobDetailedV1
from yardmaster_schemas.events.requests import DetailsRef, SubmittedSpec, TaskSubmittedV1
from yardmaster_schemas.job_file import JobSpec, parts_of

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
    which no log contains: without the key, a guess of an erased description cannot be verified. A
    field with its default value does not count, so the digest stays the same if a later version of
    the job file has more fields.
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


@dataclass(frozen=True, slots=True)
class Submission:
    """A job as a user submits it under an idempotency key, in the types of the log."""

    job_id: str
    project: str
    body_digest: str
    #: The job's details, which no decision reads.
    details: JobDetailedV1
    #: The part of the job that decisions need.
    requested: SubmittedSpec

    @classmethod
    def of(cls, spec: JobSpec, key: str, *, log_id: str, user: str, salt: str) -> Self:
        """The submission of a job description; `salt` makes the key of its details unique."""
        id_, parts = job_id(log_id, spec.project, user, key), parts_of(spec)
        details = JobDetailedV1(
            job_id=id_,
            salt=salt,
            name=parts.name,
            user=user,
            labels=dict(spec.labels),
            run=parts.run,
            stop_signal=spec.stop.signal,
            params=parts.params,
        )
        return cls(id_, spec.project, body_digest(spec, key), details, parts.requested)

    @property
    def details_key(self) -> str:
        """The record key of the details: `<job>.<salt>`.

        The key is not the job id, because compaction would then replace the details of the first
        submission by the details of a repetition.
        """
        return f"{self.job_id}.{self.details.salt}"

    def request(self, details: DetailsRef) -> TaskSubmittedV1:
        """The request that quota decides on, once the details are recorded."""
        return TaskSubmittedV1(
            job_id=self.job_id,
            project=self.project,
            spec=self.requested,
            body_digest=self.body_digest,
            details=details,
        )
