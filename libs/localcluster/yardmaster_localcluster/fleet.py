"""All processes of one cluster: broker, Redis, setup and services.

This module restarts no process. The supervisor, which uses this module, restarts processes that
end; tests use this module without restarts.
"""

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from yardmaster_localcluster.broker import KafkaBroker
from yardmaster_localcluster.errors import EngineSilent, ServiceFailed
from yardmaster_localcluster.layout import DataLayout, read
from yardmaster_localcluster.orphans import end_tasks
from yardmaster_localcluster.plan import MODULES, Plan, PortPlan, Wanted, plan
from yardmaster_localcluster.ports import GangPorts
from yardmaster_localcluster.process import Launch, Running, ServiceProcess, launch
from yardmaster_localcluster.redis_server import RedisServer
from yardmaster_localcluster.task_containers import end_containers
from yardmaster_schemas.access import ADMIN, agent_user

#: The longest time that the setup waits for the broker, and the longest time until a process is
#: ready, in seconds.
SETUP_WAIT_S: Final = 240
READY_LIMIT_S: Final = 240.0
LOOK_S: Final = 0.1
KAFKA: Final = "kafka"
REDIS: Final = "redis"

Member = ServiceProcess | KafkaBroker | RedisServer


class Fleet:
    """The processes of one cluster, whose data is in a data directory.

    Args:
        env: additional environment variables, by the name of a process or of its service, or by
            `*` for all services.
        kafka_settings, redis_settings: additional lines of the configuration of Kafka and Redis.
        kafka_proxied: further listeners of the broker (see `KafkaBroker`).
        launch: the function that starts the setup and the services.
    """

    def __init__(
        self,
        data: DataLayout,
        wanted: Wanted,
        ports: PortPlan,
        *,
        kafka_port: int = 0,
        controller_port: int = 0,
        redis_port: int = 0,
        env: Mapping[str, Mapping[str, str]] | None = None,
        kafka_settings: Mapping[str, str] | None = None,
        redis_settings: Mapping[str, str] | None = None,
        kafka_proxied: Mapping[str, tuple[int, int]] | None = None,
        launch: Launch = launch,
    ) -> None:
        self.data = data
        self.wanted = wanted
        self.services: dict[str, ServiceProcess] = {}
        self._ports = ports
        self._gang_ports = GangPorts()
        self._env = dict(env or {})
        self._launch = launch
        self._setup: Running | None = None
        self._make_credentials(wanted)
        self.broker = KafkaBroker(
            data.kafka,
            port=kafka_port,
            controller_port=controller_port,
            log_file=data.logs / "kafka.log",
            settings=kafka_settings,
            proxied=kafka_proxied,
            admin_password=read(data.kafka_credentials / ADMIN),
            env=self._env.get(KAFKA),
        )
        self.redis = RedisServer(
            data.redis,
            port=redis_port,
            passwords=data.redis_passwords(),
            log_file=data.logs / "redis.log",
            settings=redis_settings,
        )

    @property
    def members(self) -> dict[str, Member]:
        """Every process by name, in the order of their dependencies."""
        return {KAFKA: self.broker, REDIS: self.redis, **self.services}

    def begin_infrastructure(self) -> Running:
        """Start broker, Redis and the setup, which waits for the broker; return the setup."""
        self.broker.begin()
        self.redis.begin()
        return self.begin_setup()

    def begin_setup(self, wanted: Wanted | None = None) -> Running:
        """Start `yard setup` on the broker, which also creates the users of `wanted`."""
        if wanted is not None:
            self._make_credentials(wanted)
        words = ["setup", "--log", f"kafka://{self.broker.bootstrap}"]
        words += ["--cells", ",".join(self.wanted.cells), "--wait", f"{SETUP_WAIT_S}s"]
        words += ["--users", str(self.data.kafka_credentials)]
        admin = {
            "YARD_KAFKA__SECURITY_PROTOCOL": "SASL_PLAINTEXT",
            "YARD_KAFKA__SASL_MECHANISM": "PLAIN",
            "YARD_KAFKA__SASL_USERNAME": ADMIN,
            "YARD_KAFKA__SASL_PASSWORD_FILE": str(self.data.kafka_credentials / ADMIN),
        }
        self._setup = self._launch(
            "yardmaster_cli.main",
            words,
            env={**os.environ, **admin},
            cwd=Path.cwd(),
            stdout=self.data.logs / "setup.log",
        )
        return self._setup

    def lacks_users(self, wanted: Wanted) -> bool:
        """Whether a node of `wanted` has no user at the broker yet."""
        known = self.data.kafka_credentials
        return any(not (known / agent_user(node)).is_file() for *_, node in wanted.nodes())

    def until_set_up(self, setup: Running) -> None:
        """Wait for the setup.

        Raises:
            ProcessFailed: the setup, the broker or Redis failed.
        """
        while (code := setup.poll()) is None:
            self.broker.ready()
            self.redis.ready()
            time.sleep(LOOK_S)
        if code:
            words = (self.data.logs / "setup.log").read_text(errors="replace")[-2000:]
            raise ServiceFailed(f"yard setup ended ({code}):\n{words}")

    def plans(self) -> dict[str, Plan]:
        """The plans of the wanted processes, by name."""
        return plan(
            self.wanted,
            self.data,
            self._ports,
            self._gang_ports,
            kafka=self.broker.bootstrap,
            redis=self.redis.url,
        )

    def adopt(self, wanted: Wanted) -> tuple[list[str], list[str]]:
        """Set the wanted cluster; return the names of the processes to stop and those to start.

        Nothing is stopped or started. A process whose plan changed is in both lists.
        """
        self.wanted = wanted
        plans = self.plans()
        over = [
            name
            for name, service in self.services.items()
            if name not in plans or plans[name] != service.plan
        ]
        new = [name for name in plans if name not in self.services or name in over]
        return over, new

    def add(self, name: str) -> ServiceProcess:
        """Create the process of a plan without starting it."""
        found = self.plans()[name]
        log_file = self.data.logs / f"{name}.log"
        env: dict[str, str] = {}
        for key in ("*", found.service, name):
            env |= self._env.get(key, {})
        self.services[name] = ServiceProcess(found, log_file, env, self._launch)
        return self.services[name]

    def begin_services(self) -> None:
        """Start all services without waiting."""
        for name in self.adopt(self.wanted)[1]:
            self.add(name).begin()

    def not_ready(self) -> Iterator[tuple[str, str]]:
        """Every process that is not ready, and why.

        Raises:
            ProcessFailed: a process ended.
        """
        for name, member in self.members.items():
            if not member.ready():
                why = member.why_not() if isinstance(member, ServiceProcess) else None
                yield name, why or "it does not answer yet"

    def until_ready(self, limit_s: float = READY_LIMIT_S) -> None:
        """Wait until all processes are ready.

        Raises:
            ServiceFailed: a process is not ready within the limit.
            ProcessFailed: a process ended.
        """
        deadline = time.monotonic() + limit_s
        while waiting := dict(self.not_ready()):
            if time.monotonic() > deadline:
                said = "; ".join(f"{name}: {why}" for name, why in waiting.items())
                tails = "\n".join(
                    f"--- {name}\n{self.members[name].tail()[-1500:]}" for name in waiting
                )
                raise ServiceFailed(f"not ready after {limit_s:.0f} s: {said}\n{tails}")
            time.sleep(LOOK_S)

    def stop_services(self, names: list[str]) -> None:
        """Stop services in order, gateways first; the tasks of stopped agents are killed.

        A task cannot run without its agent. The task ends without a grace period, as in a power
        failure.
        """
        for service in reversed(list(MODULES)):
            held = [self.services[name] for name in names if name in self.services]
            those = [each for each in held if each.plan.service == service]
            for each in those:
                each.ask()
            for each in those:
                each.wait()
            for each in those:
                if each.plan.node is not None:
                    _end_tasks(self.data.agents / each.plan.node)
                del self.services[each.plan.name]

    def stop(self) -> None:
        """Stop all processes in order."""
        self._end_setup()
        self.stop_services(list(self.services))
        _end_tasks(self.data.agents)
        self.broker.stop()
        self.redis.stop()

    def kill(self) -> None:
        """Kill all processes at once."""
        self._end_setup()
        for member in self.members.values():
            member.kill()
        _end_tasks(self.data.agents)

    def _make_credentials(self, wanted: Wanted) -> None:
        self.data.make(wanted.cells, [node for *_, node in wanted.nodes()])

    def _end_setup(self) -> None:
        if self._setup is not None:
            self._setup.kill()
            self._setup.wait()


def _end_tasks(agents: Path) -> None:
    """Kill the processes and containers of tasks, as in a power failure."""
    end_tasks(agents)
    with suppress(EngineSilent):  # `yard down` tries it too, and says so
        end_containers(agents)
