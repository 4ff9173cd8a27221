"""The service: the admission machine on a log, over restarts, faults and unbelievable records."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

import pytest

from tests.support.audit import assert_audit_clean
from tests.support.memory_cell import CELL
from tests.support.toy_cell import DEADLINE_S, ToyCell, until
from tests.unit.core.admission.admission_cell import (
    CELL_SETUP,
    LOG,
    OTHER_BODY,
    envelope,
    job,
    pool,
)
from yardmaster_core.admission.machine import QuotaMachine
from yardmaster_core.errors import ImpossibleEvent
from yardmaster_core.scheduling.policies import check
from yardmaster_eventlog.codec import encode
from yardmaster_eventlog.port import EventLog, Partition
from yardmaster_eventlog.snapshots import SnapshotStore
from yardmaster_eventlog.testing import Fault, FaultKind, FaultPlan, FaultyLog
from yardmaster_quota.main import Ports, Settings, main, run
from yardmaster_runtime.fence import Fence, Mark
from yardmaster_runtime.replay.verify import verify
from yardmaster_runtime.settings import SnapshotLimits
from yardmaster_runtime.telemetry.port import Telemetry
from yardmaster_schemas.envelope import Event
from yardmaster_schemas.events import admissions as a
from yardmaster_schemas.events import requests as r
from yardmaster_schemas.events.details import JobDetailedV1, Run
from yardmaster_schemas.events.machine import CycleCommittedV1, SnapshotTakenV1, TermStartedV1
from yardmaster_schemas.reasons import AdmissionCode, RefusalCode

SHELL = (CycleCommittedV1, TermStartedV1, SnapshotTakenV1)


class QuotaServiceCell(ToyCell):
    """A log with a cell that works, and a gateway that numbers what it asks."""

    def __init__(self) -> None:
        super().__init__()
        self.seq = 0

    async def create(self) -> Self:
        await super().create()
        await self.put("requests", [envelope(LOG, source="setup/dev")])
        return self

    async def asks(self, *events: Event, source: str = "gateway/gw-1") -> None:
        for event in events:
            await self.put("requests", [envelope(event, source=source, seq=self.seq)])
            self.seq += 1

    async def submits(self, *jobs: r.TaskSubmittedV1) -> None:
        """As a gateway does: first the details, then the job that names them."""
        for submitted in jobs:
            detailed = JobDetailedV1(
                job_id=submitted.job_id,
                salt=f"{await self.log.end(Partition('details')):032x}",
                name="t",
                user="ada",
                run=Run(command=("t",)),
            )
            about = replace(envelope(detailed), subject=submitted.job_id)
            record = encode(about, f"{submitted.job_id}.{detailed.salt}")
            offset = await self.log.append(Partition("details"), [record])
            digest = sha256(record.value or b"").hexdigest()
            await self.asks(replace(submitted, details=r.DetailsRef(offset=offset, digest=digest)))

    async def verdicts(self) -> list[Any]:
        return [e for e in await self.events("admissions") if not isinstance(e, SHELL)]

    async def commits(self) -> list[CycleCommittedV1]:
        return [e for e in await self.events("admissions") if isinstance(e, CycleCommittedV1)]

    async def has(self, count: int) -> None:
        """Wait until `count` verdicts are in the log."""
        # Snapshots are read in a thread, whose time is not the clock's.
        deadline = time.monotonic() + DEADLINE_S
        while (found := len(await self.verdicts())) < count:
            assert time.monotonic() < deadline, f"{found} of {count} verdicts"
            self.clock.advance(0.05)
            await asyncio.sleep(0.001)

    async def derived(self) -> None:
        """Every verdict follows from the log again, byte by byte."""
        report = await verify(self.log, [QuotaMachine(check)], CELL, promises=False)
        assert report.ok, [str(each) for each in report.findings]

    async def proved(self) -> None:
        """Every verdict follows from the log again, and no promise is broken."""
        report = await verify(self.log, [QuotaMachine(check)], CELL)
        assert report.ok, [str(each) for each in (*report.findings, *report.promises)]
        await assert_audit_clean(self.log)

    @asynccontextmanager
    async def served(
        self,
        *,
        log: EventLog | None = None,
        snapshots: SnapshotStore | None = None,
        **settings: Any,
    ) -> AsyncIterator[asyncio.Task[Any]]:
        """The service runs within the block; it is killed at its end."""
        ports = Ports(
            log=log or self.log,
            clock=self.clock,
            chance=self.chance,
            telemetry=Telemetry("quota", now_ms=self.clock.now_ms, stream=self.lines),
            snapshots=snapshots,
        )
        async with asyncio.TaskGroup() as group:
            task = group.create_task(run(ports, Settings(cell=CELL, **settings)))
            yield task
            task.cancel()


@pytest.fixture
async def cell() -> QuotaServiceCell:
    return await QuotaServiceCell().create()


def job_id(number: int) -> str:
    return f"{number:012d}"


async def test_a_submitted_job_is_admitted_and_the_log_proves_it(cell: QuotaServiceCell) -> None:
    async with cell.served():
        await cell.asks(*CELL_SETUP)
        await cell.submits(job())
        await cell.has(4)
    verdict = (await cell.verdicts())[-1]
    assert isinstance(verdict, a.TaskAdmittedV1)
    assert verdict.submitted_at_ms == (await cell.commits())[-1].now_ms
    await cell.proved()


async def test_pools_are_checked_with_the_schedulers_policies(cell: QuotaServiceCell) -> None:
    async with cell.served():
        await cell.asks(
            pool("a", policy=r.PolicyRef(name="no-such-policy")),
            pool("b", policy=r.PolicyRef(name="priority", options={"no_such_option": 1})),
            pool("c", placement="no-such-placement"),
            pool("d"),
        )
        await cell.has(4)
    unknown, options, placement, fine = await cell.verdicts()
    assert unknown.code is AdmissionCode.POLICY_UNKNOWN
    assert options.code is AdmissionCode.POLICY_OPTIONS_INVALID
    assert placement.code is AdmissionCode.POLICY_OPTIONS_INVALID
    assert isinstance(fine, a.PoolConfiguredV1)
    await cell.proved()


async def test_a_killed_service_continues_where_it_was(cell: QuotaServiceCell) -> None:
    await cell.asks(*CELL_SETUP)
    for life in range(3):
        async with cell.served():
            await cell.submits(job(job_id(life)))
            await cell.has(4 + life)
    assert [type(v) for v in (await cell.verdicts())[3:]] == [a.TaskAdmittedV1] * 3
    await cell.proved()


async def test_a_killed_service_continues_from_a_snapshot(
    cell: QuotaServiceCell, tmp_path: Path
) -> None:
    store = SnapshotStore(str(tmp_path))
    limits = SnapshotLimits(every_cycles=1)
    await cell.asks(*CELL_SETUP)
    for life in range(3):
        async with cell.served(snapshots=store, snapshot=limits):
            await cell.submits(job(job_id(life)))
            await cell.has(4 + life)
            await until(lambda: any(tmp_path.rglob("*")), cell.clock)
    await cell.proved()
    assert not cell.logged("snapshot_unusable"), cell.lines.getvalue()


@pytest.mark.parametrize("wrong", ["another machine", "a changed bit", "an empty file"])
async def test_a_request_is_judged_although_the_fence_of_the_service_is_wrong(
    cell: QuotaServiceCell, tmp_path: Path, wrong: str
) -> None:
    store = SnapshotStore(str(tmp_path))
    fence = tmp_path / "quota" / CELL / "fence.json"
    await cell.asks(*CELL_SETUP)
    async with cell.served(snapshots=store):
        await cell.submits(job())
        await cell.has(4)
        await until(fence.exists, cell.clock)
    whole = fence.read_bytes()
    fence.write_bytes(
        {
            "another machine": await fence_of_the_scheduler(cell, tmp_path / "other"),
            "a changed bit": whole.replace(b'"generation": 0', b'"generation": 4'),
            "an empty file": b"",
        }[wrong]
    )
    assert fence.read_bytes() != whole
    await cell.submits(job(job_id(1)))
    async with cell.served(snapshots=store):
        await cell.has(5)
        said = "fence_foreign" if wrong == "another machine" else "fence_unreadable"
        # Each write of the fence reads it first, until it is whole again.
        assert {line["path"] for line in cell.logged(said)} == {str(fence)}
        await until(lambda: b'"machine": "quota"' in fence.read_bytes(), cell.clock)
    async with cell.served(snapshots=store):
        await cell.submits(job(job_id(2)))
        await cell.has(6)
    assert [type(v) for v in (await cell.verdicts())[3:]] == [a.TaskAdmittedV1] * 3
    await cell.proved()


async def fence_of_the_scheduler(cell: QuotaServiceCell, folder: Path) -> bytes:
    """The fence that the scheduler of the same cell and log wrote."""
    telemetry = Telemetry("scheduler", now_ms=cell.clock.now_ms, stream=cell.lines)
    own = Fence(
        SnapshotStore(str(folder)), "scheduler", CELL, Partition("decisions"), cell.clock, telemetry
    )
    await own.check(cell.log)
    await own.write({Partition("admissions"): Mark(4_711, "0" * 64)})
    return (folder / "scheduler" / CELL / "fence.json").read_bytes()


async def test_invalid_requests_are_refused_and_recorded_and_the_others_are_decided(
    cell: QuotaServiceCell,
) -> None:
    cordon = r.NodeCordonRequestedV1(node="gpu-07")
    await cell.put(
        "requests",
        [
            envelope(cordon, source="node/gpu-07"),
            envelope(replace(LOG, log_id="1" * 32), source="setup/dev", seq=1),
            envelope(cordon),
            envelope(cordon),
            envelope(a.NodeCordonedV1(node="gpu-07"), seq=1),
        ],
    )
    async with cell.served():
        await cell.has(1)
    assert await cell.verdicts() == [a.NodeCordonedV1(node="gpu-07")]
    codes = [(x.first, x.code) for commit in await cell.commits() for x in commit.refused]
    assert codes == [
        (1, RefusalCode.NOT_ITS_AUTHOR),
        (2, RefusalCode.CONTRADICTION),
        (4, RefusalCode.REPEATED),
        (5, RefusalCode.WRONG_TOPIC),
    ]
    await cell.proved()


async def test_a_large_batch_is_decided_in_cycles_of_the_limit(cell: QuotaServiceCell) -> None:
    await cell.asks(*CELL_SETUP)
    await cell.submits(*(job(job_id(n)) for n in range(20)))
    async with cell.served(cycle={"max_decisions": 3}):
        await cell.has(23)
    commits = await cell.commits()
    assert max(commit.decisions for commit in commits) == 3
    assert [commit.complete for commit in commits] == [False] * 7 + [True]
    await cell.proved()


@pytest.mark.parametrize("kind", [FaultKind.LOST, FaultKind.LANDED, FaultKind.LATE])
@pytest.mark.parametrize("nth", range(1, 5))
async def test_an_append_of_unknown_outcome_loses_no_request_and_decides_none_twice(
    cell: QuotaServiceCell, kind: FaultKind, nth: int
) -> None:
    fault = Fault(topic="admissions", nth=nth, kind=kind, after_operations=2 * nth)
    plan = FaultPlan(cell.clock, [fault])
    async with cell.served(log=FaultyLog(cell.log, plan)):
        await cell.asks(*CELL_SETUP)
        for number in range(3):
            await cell.submits(job(job_id(number)))
            await until_admitted(cell, number + 1)
        for _ in range(50):  # and what the service makes of its last append
            cell.clock.advance(0.1)
            await asyncio.sleep(0)
    await plan.write_late()
    assert plan.happened
    assert await admitted(cell) == [job_id(n) for n in range(3)]
    await cell.proved()


async def admitted(cell: QuotaServiceCell) -> list[str]:
    """Jobs that count as admitted: a fenced leader's verdicts do not."""
    fold = await cell.fold(QuotaMachine(check))
    return [name for name, _ in fold.state.jobs.items()]


async def until_admitted(cell: QuotaServiceCell, count: int) -> None:
    for _ in range(500):
        if len(await admitted(cell)) >= count:
            return
        cell.clock.advance(0.1)
        await asyncio.sleep(0)
    raise AssertionError(f"{await admitted(cell)}, {count} expected")


async def test_two_services_fit_in_one_process_and_one_of_them_counts(
    cell: QuotaServiceCell,
) -> None:
    await cell.asks(*CELL_SETUP)
    async with cell.served(), cell.served():
        await cell.submits(job())
        await until_admitted(cell, 1)
        await cell.submits(job(job_id(1)))
        await until_admitted(cell, 2)
    await cell.proved()


async def test_a_repeated_submission_is_refused_and_the_job_stays_admitted(
    cell: QuotaServiceCell,
) -> None:
    await cell.asks(*CELL_SETUP)
    await cell.submits(job(), job(), job(body=OTHER_BODY))
    async with cell.served():
        await cell.has(6)
    verdicts = await cell.verdicts()
    assert [v.code for v in verdicts[4:]] == [AdmissionCode.DUPLICATE_ID] * 2
    assert all(isinstance(v, a.RequestRefusedV1) for v in verdicts[4:])
    await cell.proved()


async def test_an_admission_that_contradicts_the_log_stops_the_service(
    cell: QuotaServiceCell,
) -> None:
    """A verdict without a request, in a batch that counts: as a quota with a fault would write."""

    class Faulty(QuotaMachine):
        def decide(self, state: Any, **kwargs: Any) -> Any:
            verdict = super().decide(state, **kwargs)
            return replace(verdict, decisions=[*verdict.decisions, *verdict.decisions])

    await cell.asks(r.NodeCordonRequestedV1(node="gpu-07"))
    leader = cell.leader(Faulty())
    await leader.take_term()
    with pytest.raises(ImpossibleEvent):
        await leader.step()
    with pytest.raises(ExceptionGroup) as stopped:
        async with cell.served() as task:
            await until(task.done, cell.clock)
    assert stopped.group_contains(ImpossibleEvent)
    assert cell.logged("machine_stopped")


# Settings and the process ----------------------------------------------------------------------


def test_quotas_own_settings_override_those_of_all_services(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("YARD_CELL", "east")
    monkeypatch.setenv("YARD_LOG", "memory:")
    monkeypatch.setenv("YARD_QUOTA_LOG", "sqlite:///x")
    monkeypatch.setenv("YARD_CYCLE__MAX_INPUTS", "7")
    monkeypatch.setenv("YARD_QUOTA_CYCLE__MAX_DECISIONS", "9")
    settings = Settings()
    assert (settings.cell, settings.log_url) == ("east", "sqlite:///x")
    assert (settings.cycle.max_inputs, settings.cycle.max_decisions) == (7, 9)


@pytest.mark.parametrize(
    ("name", "value", "code", "said"),
    [
        ("YARD_QUOTA_CELL", "Not A Name", 2, "YARD_QUOTA_CELL"),
        ("YARD_QUOTA_LOG", "gopher://x", 100, "gopher://x"),
    ],
)
def test_a_process_that_cannot_start_reports_the_cause(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    name: str,
    value: str,
    code: int,
    said: str,
) -> None:
    monkeypatch.setenv("YARD_DATA", str(tmp_path))
    monkeypatch.setenv(name, value)
    assert main() == code
    assert said in capsys.readouterr().err


def test_the_service_needs_no_more_than_its_ports() -> None:
    called: Callable[..., Any] = run
    assert called.__code__.co_varnames[:2] == ("ports", "settings")
