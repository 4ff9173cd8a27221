"""The users of a cell, folded from quota's verdicts in `admissions`, and the callers they become.

Every gateway reads this topic from quota's newest usable snapshot on (see beginning.py), and then
as the topic grows. A change of a user applies here as soon as its record is read. This happens at
once while the log is reachable; `follow` checks the end of the topic at least every `WAIT_S`
seconds. A gateway that could not read the end of the topic for `access_age_s` seconds refuses every
request, because it cannot know which tokens were revoked.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NoReturn

from yardmaster_core.access import User, is_valid, user_after
from yardmaster_core.admission.state import Log
from yardmaster_core.commit import CommitReader
from yardmaster_eventlog.errors import LogUnavailable, OffsetGone, UnknownTopic
from yardmaster_eventlog.port import EventLog, Partition
from yardmaster_eventlog.reader import Cursor
from yardmaster_eventlog.snapshots import SnapshotStore
from yardmaster_gateway.errors import NotReady, Unauthenticated
from yardmaster_gateway.identity.authentication import digest_of
from yardmaster_gateway.identity.authorization import Binding, Caller
from yardmaster_gateway.identity.beginning import QUOTA, newest_beginning
from yardmaster_runtime.clock import Clock
from yardmaster_runtime.cycle_reader import CycleReader
from yardmaster_runtime.errors import LogBeginsLater
from yardmaster_runtime.machine.beginning import needs_snapshot
from yardmaster_runtime.telemetry.port import Telemetry
from yardmaster_schemas.events.users import ACCESS_CHANGES, AccessChange, TokenRecord
from yardmaster_schemas.topics import ADMISSIONS, REQUESTS

#: Records per read; the longest wait for a record, and the pause after a failed read, in seconds.
MAX_READ: Final = 1_000
WAIT_S: Final = 1.0
PAUSE_S: Final = 0.5


class Access:
    """The users of the cell, as of the last record of quota that was read."""

    def __init__(
        self,
        log: EventLog,
        clock: Clock,
        telemetry: Telemetry,
        *,
        cell: str,
        partition: int,
        max_age_s: float,
        snapshots: SnapshotStore | None = None,
    ) -> None:
        self._log = log
        self._clock = clock
        self._telemetry = telemetry
        self._snapshots = snapshots
        self._cell = cell
        self._partition = Partition(ADMISSIONS.name, partition)
        self._requests = (REQUESTS.name, partition)
        self._max_age_s = max_age_s
        self._cycles = self._from(CommitReader("quota", cell, ADMISSIONS.name))
        self._begun = False
        self._log_of_snapshot: Log | None = None
        self._unusable: Sequence[str] = ()
        self._lock = asyncio.Lock()
        self._users: dict[str, User] = {}
        #: The number of users that were not removed.
        self._present = 0
        #: The user of each token, by the token's digest.
        self._owners: dict[str, str] = {}
        #: When the end of the topic was read last, in monotonic seconds; None: not yet.
        self._read_s: float | None = None
        #: Called with the name of each user that changed, or whose token may have ended (None).
        self.on_change: Callable[[str | None], None] = lambda _: None
        self._age = telemetry.gauge(
            "access_age_seconds", "Time since the newest record of users was read"
        )
        self._size = telemetry.gauge("users", "Users of the cell")

    @property
    def users(self) -> Mapping[str, User]:
        """The users by name, also those that were removed."""
        return self._users

    @property
    def complete(self) -> bool:
        """Whether the topic was read to its end at least once."""
        return self._read_s is not None

    @property
    def now_ms(self) -> int:
        """The time at which tokens are checked: the host's, or quota's last time if it is later."""
        return max(self._clock.now_ms(), self._cycles.reader.now_ms)

    @property
    def offset(self) -> int:
        """The offset in `admissions` up to which the users are folded."""
        return self._cycles.reader.boundary

    @property
    def judged(self) -> int:
        """The offset in `requests` up to which quota has judged."""
        return self._cycles.reader.inputs.get(self._requests, 0)

    async def catch_up(self) -> None:
        """Read the topic to its end.

        Raises:
            LogUnavailable, LogTruncated, LogCorrupt, UnknownTopic: the log cannot be read.
            ForeignRecord, ChainBroken: quota did not write the records of the topic, or not in this
                order.
            LogBeginsLater: the log has lost its first records, and no snapshot is usable.
        """
        async with self._lock:
            if not self._begun:
                await self._begin()
            try:
                while (counted := await self._cycles.next()) is not None:
                    for _, envelope in counted.decisions:
                        if isinstance(envelope.data, ACCESS_CHANGES):
                            self._apply(envelope.data, counted.commit.now_ms)
            except OffsetGone:
                if self._cycles.reader.next:
                    raise
                raise await self._needs_snapshot() from None
            self._read_s = self._clock.monotonic_s()

    async def log_of_snapshot(self) -> Log:
        """The identity of the log from quota's snapshot, for a log that has lost its first record.

        Raises: as `catch_up`.
        """
        await self.catch_up()
        if self._log_of_snapshot is None:
            raise await self._needs_snapshot()
        return self._log_of_snapshot

    async def _needs_snapshot(self) -> LogBeginsLater:
        return await needs_snapshot(
            *(self._log, QUOTA, self._cell, self._partition.number),
            *(self._snapshots, self._unusable),
        )

    async def _begin(self) -> None:
        # Check first that the log is available: otherwise each try would load a snapshot in vain.
        await self._log.end(self._partition)
        found = await newest_beginning(
            *(self._log, self._snapshots, self._telemetry),
            cell=self._cell,
            partition=self._partition.number,
        )
        self._cycles = self._from(found.reader)
        for name, user in found.users.items():
            self._put(name, user)
        self._log_of_snapshot, self._unusable = found.log, found.unusable
        self._begun = True

    def _from(self, reader: CommitReader) -> CycleReader:
        return CycleReader(Cursor(self._log, self._partition, reader.next, ahead=MAX_READ), reader)

    async def wait(self) -> None:
        """Wait until the topic has grown, for at most `WAIT_S` seconds.

        Raises: LogUnavailable, LogTruncated, UnknownTopic.
        """
        await self._log.wait({self._partition: self._cycles.cursor.end}, WAIT_S)

    def _apply(self, event: AccessChange, now_ms: int) -> None:
        name = event.principal
        self._put(name, user_after(self._users.get(name), event, now_ms))
        self.on_change(name)

    def _put(self, name: str, user: User) -> None:
        before = self._users.get(name)
        if before is not None:
            for token in before.tokens:
                del self._owners[token.digest]
            self._present -= not before.removed
        self._users[name] = user
        for token in user.tokens:
            self._owners[token.digest] = name
        self._present += not user.removed
        self._size.set(self._present)

    async def follow(self) -> NoReturn:
        """Read the topic as it grows.

        Raises: as `catch_up`, but waits while the log is unavailable.
        """
        while True:
            try:
                await self.catch_up()
                self._age.set(0)
                await self.wait()
            except (LogUnavailable, UnknownTopic):
                if self._read_s is not None:
                    self._age.set(self._clock.monotonic_s() - self._read_s)
                await self._clock.sleep(PAUSE_S)
            self.on_change(None)

    def check_age(self) -> None:
        """Check that the users are known well enough to authenticate callers.

        Raises:
            NotReady: the topic was not read to its end, or not for `access_age_s` seconds.
        """
        if self._read_s is None:
            raise NotReady(found="the users of the cell are not read from the log yet")
        age_s = self._clock.monotonic_s() - self._read_s
        if age_s > self._max_age_s:
            raise NotReady(
                found=f"the log could not be read for {age_s:.0f} s, so tokens that were revoked "
                "meanwhile are not known"
            )

    def token(self, digest: str) -> tuple[str, TokenRecord] | None:
        """The user and the record of a token by its digest, even if the token has expired."""
        name = self._owners.get(digest)
        if name is None:
            return None
        return name, next(one for one in self._users[name].tokens if one.digest == digest)

    def valid(self, digest: str) -> bool:
        """Whether a token is valid now."""
        found = self.token(digest)
        return found is not None and is_valid(found[1], self.now_ms)


class LogUsers:
    """Authenticates the users of the log.

    Until the users of the token file are recorded (`imported` returns true), an unknown token may
    belong to a user of this file.
    """

    def __init__(self, access: Access, imported: Callable[[], bool]) -> None:
        self._access = access
        self._imported = imported

    async def identify(self, token: str) -> Caller | None:
        """The caller of a token; None if the token is unknown or was revoked.

        Raises:
            Unauthenticated: the token has expired.
            NotReady: see `Access.check_age`; or the token is unknown, and the users of the token
                file are not recorded yet.
        """
        self._access.check_age()
        found = self._access.token(digest_of(token))
        if found is None:
            if not self._imported():
                raise NotReady(found="the users of the token file are not recorded in the log yet")
            return None
        name, record = found
        if not is_valid(record, self._access.now_ms):
            raise Unauthenticated(found=f"token {record.id} of user {name} has expired")
        roles = self._access.users[name].roles
        return Caller(
            user=name,
            method="token",
            issuer="log",
            credential_id=record.id,
            bindings=tuple(Binding(role.role, role.scope, role.name) for role in roles),
        )
