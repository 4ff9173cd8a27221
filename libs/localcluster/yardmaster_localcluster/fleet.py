"""All processes of one cluster in the hands of one owner: broker, Redis, setup, every service.

Nothing here restarts what ends by itself: the supervisor does, tests do not.
"""

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from yardmaster_localcluster.broker import KafkaBroker
from yardmaster_localcluster.errors import ServiceFailed
from yardmaster_localcluster.layout import DataLayout
from yardmaster_localcluster.orphans import end_tasks
from yardmaster_localcluster.plan import MODULES, Plan, PortPlan, Wanted, plan
from yardmaster_localcluster.process import Launch, Running, ServiceProcess, launch
from yardmaster_localcluster.redis_server import RedisServer

#: How long setup waits for the broker, and one process may take until it is ready, in seconds.
SETUP_WAIT_S: Final = 240
READY_LIMIT_S: Final = 240.0
LOOK_S: Final = 0.1
KAFKA: Final = "kafka"
REDIS: Final = "redis"

Member = ServiceProcess | KafkaBroker | RedisServer


class Fleet:
    """The processes of a cluster in a data folder.

    Args:
        env: more environment, by a process's name, its service, or `*` for all services.
        kafka_settings, redis_settings: lines of their configuration that override or add.
        kafka_proxied: listeners of the broker beside the usual one (`KafkaBroker`).
        launch: how setup and services are started.
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
        self._env = dict(env or {})
        self._launch = launch
        self._setup: Running | None = None
        data.make(wanted.cells)
        self.broker = KafkaBroker(
            data.kafka,
            port=kafka_port,
            controller_port=controller_port,
            log_file=data.logs / "kafka.log",
            settings=kafka_settings,
            proxied=kafka_proxied,
        )
        self.redis = RedisServer(
            data.redis,
            port=redis_port,
            password=data.redis_password(),
            log_file=data.logs / "redis.log",
            settings=redis_settings,
        )

    @property
    def members(self) -> dict[str, Member]:
        """Every process by name, those that others rest on first."""
        return {KAFKA: self.broker, REDIS: self.redis, **self.services}

    def begin_infrastructure(self) -> Running:
        """Start broker and Redis, and the setup, which waits for the broker; it is returned."""
        self.broker.begin()
        self.redis.begin()
        return self.begin_setup()

    def begin_setup(self) -> Running:
        """Start `yard setup` on the broker."""
        words = ["setup", "--log", f"kafka://{self.broker.bootstrap}"]
        words += ["--cells", ",".join(self.wanted.cells), "--wait", f"{SETUP_WAIT_S}s"]
        self._setup = self._launch(
            "yardmaster_cli.main",
            words,
            env=os.environ,
            cwd=Path.cwd(),
            stdout=self.data.logs / "setup.log",
        )
        return self._setup

    def until_set_up(self, setup: Running) -> None:
        """Wait for the setup.

        Raises: ServiceFailed when it failed, BrokerFailed or RedisFailed when they ended.
        """
        while (code := setup.poll()) is None:
            self.broker.ready()
            self.redis.ready()
            time.sleep(LOOK_S)
        if code:
            words = (self.data.logs / "setup.log").read_text(errors="replace")[-2000:]
            raise ServiceFailed(f"yard setup ended ({code}):\n{words}")

    def plans(self) -> dict[str, Plan]:
        """What shall run, by name."""
        return plan(
            self.wanted,
            self.data,
            self._ports,
            kafka=self.broker.bootstrap,
            redis=self.redis.url,
        )

    def adopt(self, wanted: Wanted) -> tuple[list[str], list[str]]:
        """Want something else: the names of the processes to stop, and of those to start.

        Neither is done here. One whose plan changed is in both.
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
        """Make the process of a plan, not started."""
        found = self.plans()[name]
        log_file = self.data.logs / f"{name}.log"
        env: dict[str, str] = {}
        for key in ("*", found.service, name):
            env |= self._env.get(key, {})
        self.services[name] = ServiceProcess(found, log_file, env, self._launch)
        return self.services[name]

    def begin_services(self) -> None:
        """Start all services, and do not wait."""
        for name in self.adopt(self.wanted)[1]:
            self.add(name).begin()

    def not_ready(self) -> Iterator[tuple[str, str]]:
        """Every process that is not ready, and why.

        Raises: what `ready` of a process raises that ended.
        """
        for name, member in self.members.items():
            if not member.ready():
                why = member.why_not() if isinstance(member, ServiceProcess) else None
                yield name, why or "it does not answer yet"

    def until_ready(self, limit_s: float = READY_LIMIT_S) -> None:
        """Wait until all are ready.

        Raises: ServiceFailed when one is not within the limit; what `ready` raises.
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
        """Stop services in order, gateways first; the tasks of agents among them are ended too.

        A task has nobody without its agent: what a machine that loses power does to it.
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
                    end_tasks(self.data.agents / each.plan.node)
                del self.services[each.plan.name]

    def stop(self) -> None:
        """Stop everything in order, and leave no process behind."""
        self._end_setup()
        self.stop_services(list(self.services))
        end_tasks(self.data.agents)
        self.broker.stop()
        self.redis.stop()

    def kill(self) -> None:
        """Kill everything at once, and leave no process behind."""
        self._end_setup()
        for member in self.members.values():
            member.kill()
        end_tasks(self.data.agents)

    def _end_setup(self) -> None:
        if self._setup is not None:
            self._setup.kill()
            self._setup.wait()
