"""Parts of the gateway on their own: ids, digests, the request writer, token files."""

import asyncio
import json
from hashlib import sha256
from pathlib import Path

import pytest

from tests.support.gateway import CALLERS
from tests.support.toy_cell import until
from tests.support.views import telemetry
from yardmaster_eventlog.codec import decode
from yardmaster_eventlog.errors import AppendOutcomeUnknown, LogUnavailable
from yardmaster_eventlog.memory import MemoryLog
from yardmaster_eventlog.port import Partition, Record
from yardmaster_gateway import request_writer
from yardmaster_gateway.errors import Busy, TokenFileRefused
from yardmaster_gateway.identity.authentication import digest_of, read_token_file
from yardmaster_gateway.request_writer import RequestOrigin, RequestWriter
from yardmaster_gateway.submissions.submission import body_digest, job_id
from yardmaster_runtime.chance import SeededChance
from yardmaster_runtime.clock import ManualClock, SystemClock
from yardmaster_schemas.api import parse_job
from yardmaster_schemas.events.requests import NodeUncordonRequestedV1
from yardmaster_schemas.events.users import RoleInScope, RoleName, Scope
from yardmaster_schemas.job_file import JobSpec
from yardmaster_schemas.topics import DAY_MS, TOPICS

LOG_ID = "0123456789abcdef" * 2
ORIGIN = RequestOrigin(CALLERS["nlp"], None)


def test_a_job_id_never_changes_for_its_inputs() -> None:
    assert job_id(LOG_ID, "nlp", "nina", "k") == "k847r88635zh"


def test_a_job_id_depends_on_the_boundaries_of_its_parts() -> None:
    ids = {
        job_id(LOG_ID, "nlp", "nina", "k"),
        job_id(LOG_ID, "nl", "pnina", "k"),
        job_id(LOG_ID, "nlp", "ninak", ""),
        job_id("f" * 32, "nlp", "nina", "k"),
    }
    assert len(ids) == 4


def test_a_body_digest_depends_on_content_and_not_on_format() -> None:
    def digest(body: str, key: str = "k") -> str:
        return body_digest(parse_job(body), key)

    one = digest('{"project":"nlp","run":{"command":["a"]},"resources":{"gpus":1}}')
    assert one == digest(
        '{"run":{"command":["a"]}, "resources":{"gpus":1.0}, "project":"nlp", "priority":null}'
    )
    assert one != digest('{"project":"nlp","run":{"command":["b"]},"resources":{"gpus":1}}')
    assert one != digest('{"project":"nlp","run":{"command":["a"]},"resources":{"gpus":1}}', "l")


def test_a_body_digest_stays_the_same_when_the_job_file_gets_new_fields() -> None:
    class LaterJobSpec(JobSpec):
        more: int | None = None

    body = '{"project":"nlp","run":{"command":["a"]}}'
    one = body_digest(parse_job(body), "k")
    assert body_digest(LaterJobSpec.model_validate_json(body), "k") == one
    assert body_digest(parse_job(body[:-1] + ',"avoid_nodes":[]}'), "k") == one
    for said in (
        '"avoid_nodes":["n1"]',
        '"runtime_estimate":"2h"',
        '"resources":{"gpu_memory":"1Gi"}',
    ):
        assert body_digest(parse_job(f"{body[:-1]},{said}}}"), "k") != one


def test_a_body_digest_distinguishes_zero_cpus_from_the_default() -> None:
    def digest(cpus: str) -> str:
        body = f'{{"project":"nlp","run":{{"command":["a"]}},"resources":{{"gpus":1{cpus}}}}}'
        return body_digest(parse_job(body), "k")

    assert digest("") == digest(',"cpus":1') == digest(',"cpus":1.0')
    assert len({digest(""), digest(',"cpus":0'), digest(',"cpus":2')}) == 3


# --- the writer ---------------------------------------------------------------------------------


class SlowLog(MemoryLog):
    """A log whose appends wait for an event."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.gate = asyncio.Event()
        self.batches: list[int] = []
        #: The number of appends that have begun.
        self.begun = 0
        self.error: Exception | None = None
        self.one_only = False

    async def append(self, partition, batch):
        self.begun += 1
        await self.gate.wait()
        if self.one_only:
            self.gate.clear()
        self.batches.append(len(batch))
        if self.error is not None:
            raise self.error
        return await super().append(partition, batch)


async def slow() -> tuple[SlowLog, RequestWriter]:
    log = SlowLog()
    await log.create_topics(tuple(TOPICS.values()))
    made = RequestWriter(
        log,
        SystemClock(),
        telemetry("gateway"),
        cell="main",
        partition=0,
        instance="gw-1",
        chance=SeededChance(1),
    )
    return log, made


def event(number: int) -> tuple[NodeUncordonRequestedV1, str]:
    return NodeUncordonRequestedV1(node=f"n{number}"), f"n{number}"


async def test_the_epoch_is_the_logs_time_whatever_the_clock_of_the_gateway_shows() -> None:
    log_clock = ManualClock()
    log = MemoryLog(log_clock)
    await log.create_topics(tuple(TOPICS.values()))
    await log.append(Partition("requests"), [Record(b"main", b"{}")])
    appended_ms = log_clock.now_ms()
    log_clock.advance(60)
    writer = RequestWriter(
        log,
        ManualClock(appended_ms + 365 * DAY_MS),
        telemetry("gateway"),
        cell="main",
        partition=0,
        instance="gw-1",
        chance=SeededChance(1),
    )
    await asyncio.gather(*(writer.record([event(i)], ORIGIN) for i in range(3)))
    stored = await log.read(Partition("requests"), 1)
    assert [decode(each.record).epoch for each in stored] == [appended_ms] * 3


async def test_concurrent_requests_are_one_batch_in_order() -> None:
    log, writer = await slow()
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(writer.record([event(i)], ORIGIN)) for i in range(20)]
        await asyncio.sleep(0)
        log.gate.set()
    assert log.batches == [1, 19], "the others wait while the first is appended"
    assert [task.result() for task in tasks] == list(range(20))
    stored = await log.read(Partition("requests"), 0)
    envelopes = [decode(each.record) for each in stored]
    assert [one.seq for one in envelopes] == list(range(20)), "quota accepts only ascending numbers"
    assert [one.subject for one in envelopes] == [f"n{i}" for i in range(20)]


async def test_events_of_one_request_are_adjacent() -> None:
    log, writer = await slow()
    log.gate.set()
    offsets = await asyncio.gather(*(writer.record([event(i), event(i)], ORIGIN) for i in range(5)))
    stored = await log.read(Partition("requests"), 0)
    subjects = [decode(each.record).subject for each in stored]
    for number, offset in enumerate(offsets):
        assert subjects[offset : offset + 2] == [f"n{number}"] * 2


async def test_all_requests_of_a_batch_get_its_result() -> None:
    log, writer = await slow()
    log.error = LogUnavailable(found="gone")
    log.gate.set()
    results = await asyncio.gather(
        *(writer.record([event(i)], ORIGIN) for i in range(3)), return_exceptions=True
    )
    assert all(isinstance(one, LogUnavailable) for one in results)
    log.error = None
    assert await writer.record([event(9)], ORIGIN) == 0


async def test_a_cancelled_append_leaves_the_batch_with_an_unknown_outcome() -> None:
    log, writer = await slow()
    loop = asyncio.get_running_loop()
    first, second, third = (
        loop.create_task(writer.record([event(number)], ORIGIN)) for number in range(3)
    )
    await asyncio.sleep(0)
    log.one_only = True
    log.gate.set()
    assert await first == 0
    await until(lambda: log.begun == 2)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    with pytest.raises(AppendOutcomeUnknown):
        await third
    log.gate.set()
    assert await writer.record([event(3)], ORIGIN) == 1


async def test_requests_beyond_the_limit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_writer, "MAX_WAITING", 2)
    log, writer = await slow()
    async with asyncio.TaskGroup() as group:
        group.create_task(writer.record([event(0)], ORIGIN))
        await asyncio.sleep(0)  # this one is being appended, the next two wait
        for number in (1, 2):
            group.create_task(writer.record([event(number)], ORIGIN))
        await asyncio.sleep(0)
        with pytest.raises(Busy):
            await writer.record([event(3)], ORIGIN)
        log.gate.set()


async def test_details_are_found_by_offset_and_digest() -> None:
    log, writer = await slow()
    log.gate.set()
    from yardmaster_schemas.events.details import RequestNotedV1

    note = RequestNotedV1(salt="0" * 32, subject="n1", text="fan")
    ref = await writer.record_detail(note, "note.1", "n1", ORIGIN)
    stored = (await log.read(Partition("details"), ref.offset))[0]
    assert sha256(stored.record.value or b"").hexdigest() == ref.digest


# --- tokens -------------------------------------------------------------------------------------


def token_file(path: Path, *tokens: str, mode: int = 0o600) -> Path:
    entries = [
        {
            "id": f"t{number}",
            "digest": digest_of(token),
            "user": f"user{number}",
            "roles": [{"role": "user", "scope": "project", "name": "nlp"}],
        }
        for number, token in enumerate(tokens)
    ]
    path.write_text(json.dumps({"version": 1, "tokens": entries}))
    path.chmod(mode)
    return path


def test_the_file_names_users_with_roles_and_digests_of_tokens(tmp_path: Path) -> None:
    (user,) = read_token_file(token_file(tmp_path / "tokens.json", "s3cret"))
    role = RoleInScope(role=RoleName.USER, scope=Scope.PROJECT, name="nlp")
    assert (user.name, user.roles) == ("user0", (role,))
    assert [(one.id, one.digest) for one in user.tokens] == [("t0", digest_of("s3cret"))]


def test_the_group_may_read_the_file(tmp_path: Path) -> None:
    """A Secret that Kubernetes mounts belongs to root and the pod's group."""
    assert read_token_file(token_file(tmp_path / "tokens.json", "s3cret", mode=0o440))


def entry(**other: object) -> dict[str, object]:
    made = {"id": "a", "digest": digest_of("a"), "user": "ana", "roles": []}
    return {**made, **other}


@pytest.mark.parametrize(
    ("other", "word"),
    [
        (
            {
                "id": "b",
                "digest": digest_of("b"),
                "roles": [{"role": "user", "scope": "cell", "name": "main"}],
            },
            "different roles",
        ),
        ({"digest": digest_of("b")}, "the same id"),
    ],
)
def test_entries_of_one_user_that_contradict_each_other_are_refused(
    tmp_path: Path, other: dict[str, object], word: str
) -> None:
    path = tmp_path / "tokens.json"
    path.write_text(json.dumps({"tokens": [entry(), entry(**other)]}))
    path.chmod(0o600)
    with pytest.raises(TokenFileRefused, match=word):
        read_token_file(path)


@pytest.mark.parametrize("mode", [0o604, 0o644, 0o660, 0o602])
def test_a_file_that_other_users_may_access_is_refused(tmp_path: Path, mode: int) -> None:
    path = token_file(tmp_path / "tokens.json", "s3cret", mode=mode)
    with pytest.raises(TokenFileRefused, match="chmod 600"):
        read_token_file(path)


@pytest.mark.parametrize("content", ["", "{}", '{"tokens": [{"id": "a"}]}', '{"tokens": "s3cret"}'])
def test_an_invalid_file_is_refused_without_quoting_it(tmp_path: Path, content: str) -> None:
    path = tmp_path / "tokens.json"
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(TokenFileRefused) as caught:
        read_token_file(path)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("name", ["ana@example.org", "ana smith", "yard_" + "0" * 64])
def test_the_names_in_a_file_have_the_same_form_as_those_of_new_users(
    tmp_path: Path, name: str
) -> None:
    path = tmp_path / "tokens.json"
    path.write_text(json.dumps({"tokens": [entry(user=name)]}))
    path.chmod(0o600)
    with pytest.raises(TokenFileRefused, match="is no email address") as caught:
        read_token_file(path)
    assert name not in str(caught.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TokenFileRefused, match="No such file"):
        read_token_file(tmp_path / "tokens.json")
