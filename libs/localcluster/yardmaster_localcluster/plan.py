"""Plan the processes of a cluster, and the environment of each process, as pure data.

The name of a process is its service and number, such as `scheduler-2`. The name of an agent is
`agent` and its node, such as `agent-n1`. In all cells but the first, the name also contains the
cell: `gateway-east-1`, `agent-east-n1`. Quota, schedulers and views serve all cells; a gateway and
a node serve one cell.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from yardmaster_localcluster.layout import GATEWAY_PORT, HEALTH_PORT, DataLayout
from yardmaster_localcluster.ports import HOST, GangPorts, free_ports
from yardmaster_schemas.access import agent_user

#: The module of each service, in start order; they stop in reverse order.
MODULES: Final[Mapping[str, str]] = {
    "quota": "yardmaster_quota.main",
    "scheduler": "yardmaster_scheduler.main",
    "views": "yardmaster_views.faust_app",
    "agent": "yardmaster_node_agent.main",
    "gateway": "yardmaster_gateway.main",
}
#: The offset of each service's first health port from the first health port of the cluster. It also
#: limits the number of processes of a service.
_HEALTH_AT: Final = {"gateway": 0, "quota": 10, "scheduler": 20, "views": 30, "agent": 40}
MOST: Final = {"gateway": 10, "quota": 10, "scheduler": 10, "views": 10, "agent": 60}


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """The number of processes of each service; for gateways and agents, the number in each cell."""

    gateway: int = 1
    quota: int = 2
    scheduler: int = 2
    views: int = 2
    agent: int = 3


class PortPlan(Protocol):
    """The ports of gateways and health endpoints."""

    def gateway(self, number: int) -> int:
        """The port of gateway `number`, from 0."""

    def health(self, service: str, number: int) -> int:
        """The health port of a process, its number from 0."""


@dataclass(frozen=True, slots=True)
class FixedPorts:
    """Consecutive ports, the same at every start."""

    gateway_port: int = GATEWAY_PORT
    health_port: int = HEALTH_PORT

    def gateway(self, number: int) -> int:
        return self.gateway_port + number

    def health(self, service: str, number: int) -> int:
        """The health port of a process, its number from 0."""
        return self.health_port + _HEALTH_AT[service] + number


@dataclass(slots=True)
class FreePorts:
    """Free ports, chosen on first use and then kept; for tests."""

    chosen: dict[tuple[str, int], int] = field(default_factory=dict)

    def gateway(self, number: int) -> int:
        return self._keep("", number)

    def health(self, service: str, number: int) -> int:
        """The health port of a process, its number from 0."""
        return self._keep(service, number)

    def _keep(self, what: str, number: int) -> int:
        if (what, number) not in self.chosen:
            (self.chosen[what, number],) = free_ports(1)
        return self.chosen[what, number]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The plan of one process: name, module, environment and health port."""

    name: str
    service: str
    module: str
    cell: str
    env: Mapping[str, str]
    health_port: int
    #: The port that a gateway serves.
    port: int | None = None
    #: The node of an agent.
    node: str | None = None

    @property
    def health_url(self) -> str:
        """The base URL of `/livez`, `/readyz` and `/metrics`."""
        return f"http://{HOST}:{self.health_port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The requested cluster, as in `up.json`."""

    counts: Counts = Counts()
    cells: tuple[str, ...] = ("main",)
    slots: int = 4

    def nodes(self) -> Iterator[tuple[int, str, int, str]]:
        """Each node: partition, cell, index in its cell, and name."""
        for partition, cell in enumerate(self.cells):
            for index in range(self.counts.agent):
                yield partition, cell, index, _named(partition, cell, f"n{index + 1}")

    def json(self) -> dict[str, Any]:
        """The JSON form."""
        counts = {name: getattr(self.counts, name) for name in MODULES}
        return {"counts": counts, "cells": list(self.cells), "slots": self.slots}

    @classmethod
    def of_json(cls, plain: Mapping[str, Any]) -> "Wanted":
        """Parse the JSON form."""
        return cls(
            counts=Counts(**plain["counts"]), cells=tuple(plain["cells"]), slots=plain["slots"]
        )


def plan(
    wanted: Wanted,
    data: DataLayout,
    ports: PortPlan,
    gang_ports: GangPorts,
    *,
    kafka: str,
    redis: str,
) -> dict[str, Plan]:
    """All processes by name, in the order in which they start.

    Args:
        kafka: the brokers, `host:port`.
        redis: the URL of Redis.
    """
    log = {
        "YARD_LOG": f"kafka://{kafka}",
        "YARD_DATA": str(data.path),
        "YARD_KAFKA__SECURITY_PROTOCOL": "SASL_PLAINTEXT",
    }

    def views(user: str) -> dict[str, str]:
        return {
            "YARD_REDIS__URL": redis,
            "YARD_REDIS__USERNAME": user,
            "YARD_REDIS__PASSWORD_FILE": str(data.redis_credentials / user),
        }

    found: dict[str, Plan] = {}

    def add(
        service: str, number: int, name: str, cell: str, env: dict[str, str], **more: Any
    ) -> None:
        health = ports.health(service, number)
        user = service if service != "agent" else agent_user(more["node"])
        common = {
            **log,
            "YARD_KAFKA__SASL_USERNAME": user,
            "YARD_KAFKA__SASL_PASSWORD_FILE": str(data.kafka_credentials / user),
            "YARD_HEALTH_PORT": str(health),
            "YARD_HEALTH_HOST": HOST,
        }
        found[name] = Plan(
            name=name,
            service=service,
            module=MODULES[service],
            cell=cell,
            env={**common, **env},
            health_port=health,
            **more,
        )

    everywhere = {"YARD_CELLS": ",".join(wanted.cells)}
    kept = {"YARD_SNAPSHOTS": str(data.snapshots)}
    files = {"YARD_PACKAGES": str(data.packages), "YARD_ARTIFACTS": str(data.artifacts)}
    for service, env in (("quota", kept), ("scheduler", kept), ("views", views("views"))):
        for number in range(getattr(wanted.counts, service)):
            name = f"{service}-{number + 1}"
            add(service, number, name, wanted.cells[0], {**everywhere, **env})
    for partition, cell, index, node in wanted.nodes():
        here = {"YARD_CELL": cell, "YARD_PARTITION": str(partition)}
        number = partition * wanted.counts.agent + index
        ports_of_gangs = gang_ports.node(number)
        env = {
            "YARD_AGENT_NODE": node,
            "YARD_AGENT_DATA_DIR": str(data.agents / node),
            "YARD_AGENT_ADDRESS": HOST,
            "YARD_AGENT_GPUS": str(wanted.slots),
            "YARD_AGENT_MACHINE_AGENTS": str(len(list(wanted.nodes()))),
            "YARD_AGENT_PORT_FIRST": str(ports_of_gangs[0]),
            "YARD_AGENT_PORT_LAST": str(ports_of_gangs[-1]),
        }
        add("agent", number, f"agent-{node}", cell, {**here, **files, **env}, node=node)
    for partition, cell in enumerate(wanted.cells):
        here = {"YARD_CELL": cell, "YARD_PARTITION": str(partition)}
        for index in range(wanted.counts.gateway):
            number = partition * wanted.counts.gateway + index
            name = f"gateway-{_named(partition, cell, str(index + 1))}"
            port = ports.gateway(number)
            env = {
                "YARD_GATEWAY_HOST": HOST,
                "YARD_GATEWAY_PORT": str(port),
                "YARD_GATEWAY_INSTANCE": name,
                "YARD_GATEWAY_TOKEN_FILE": str(data.tokens_file),
            }
            env = {**here, **kept, **files, **views("gateway"), **env}
            add("gateway", number, name, cell, env, port=port)
    return found


def _named(partition: int, cell: str, rest: str) -> str:
    return rest if partition == 0 else f"{cell}-{rest}"
