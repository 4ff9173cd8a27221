"""Users that submit jobs of every kind through every gateway, and retry with the same key."""

import random
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.cluster import Cluster
from tests.support.promises import workload
from yardmaster.client import ApiError, Client
from yardmaster_schemas.api import Submitted

#: Pause of a user between two jobs, in seconds.
EVERY_S = 1.5
#: A user sends one submission again until this time is over, in seconds.
LIMIT_S = 600.0
RETRY_S = 0.3
#: A user sends each fifth submission again, after it was acknowledged, through another gateway.
REPEAT_EVERY = 5


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A job that a gateway acknowledged at a position of the log."""

    key: str
    body: dict[str, Any]
    job_id: str
    task_ids: tuple[str, ...]
    position: str


class Users:
    """One user for each gateway.

    Attributes:
        anomalies: answers that break a promise, a sentence each.
        missing: the same by job, where the job was not shown or was made twice: a promise is broken
            unless the log lost the submission.
    """

    def __init__(self, cluster: Cluster, witness: Path, seed: int) -> None:
        self.acknowledged: list[Acknowledged] = []
        self.anomalies: list[str] = []
        self.missing: dict[str, str] = {}
        #: Answers by status; 0: no answer.
        self.answers: Counter[int] = Counter()
        self._cluster = cluster
        self._gateways = [name for name in cluster.names if name.startswith("gateway-")]
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._use, args=(name, witness, f"{seed}-{name}"), daemon=True)
            for name in self._gateways
        ]

    def start(self) -> None:
        """Begin to submit."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End after the present submissions."""
        self._over.set()
        for thread in self._threads:
            thread.join(LIMIT_S + 60)
            if thread.is_alive():
                self.anomalies.append(f"a submission has no answer after {LIMIT_S:.0f} s")

    def _use(self, home: str, witness: Path, seed: str) -> None:
        chance = random.Random(seed)
        clients = {name: self._client(name) for name in self._gateways}
        for number, promise in enumerate(workload(witness, chance)):
            if self._over.wait(EVERY_S):
                return
            key = f"{seed}-{promise.key}"
            answer = self._submit(clients, home, key, promise.body)
            if answer is None:
                continue
            self.acknowledged.append(
                Acknowledged(
                    key, promise.body, answer.job_id, tuple(answer.task_ids), answer.position
                )
            )
            self._read_own_write(clients[home], answer)
            if promise.cancel:
                self._try(lambda: clients[home].cancel(answer.job_id))  # noqa: B023 called at once
            if number % REPEAT_EVERY == 0:
                again = self._submit(clients, chance.choice(self._gateways), key, promise.body)
                if again is not None and again.job_id != answer.job_id:
                    self.missing[answer.job_id] = f"its key made {again.job_id} too"

    def _client(self, gateway: str) -> Client:
        return Client(self._cluster.url(gateway), self._cluster.token(), max_tries=1)

    def _submit(
        self, clients: dict[str, Client], home: str, key: str, body: dict[str, Any]
    ) -> Submitted | None:
        """Send until there is an answer, each time through the next gateway."""
        names = [home, *(name for name in self._gateways if name != home)]
        deadline = time.monotonic() + LIMIT_S
        tries = 0
        while time.monotonic() < deadline:
            client = clients[names[tries % len(names)]]
            tries += 1
            try:
                found = client.submit(body, idempotency_key=key)
            except ApiError as error:
                self.answers[error.status] += 1
                if not error.transient:
                    self.anomalies.append(f"submission {key}: {error.document}")
                    return None
            else:
                self.answers[202] += 1
                return found
            time.sleep(RETRY_S)
        self.anomalies.append(f"submission {key} has no answer after {LIMIT_S:.0f} s")
        return None

    def _read_own_write(self, client: Client, answer: Submitted) -> None:
        """A read at the position of an answer shows the job, or says that it cannot."""
        try:
            client.job(answer.job_id, min_position=answer.position)
            self.answers[200] += 1
        except ApiError as error:
            self.answers[error.status] += 1
            if not error.transient:
                self.missing[answer.job_id] = f"not at {answer.position}: {error.document}"

    def _try(self, call: Any) -> None:
        try:
            call()
        except ApiError as error:
            self.answers[error.status] += 1
