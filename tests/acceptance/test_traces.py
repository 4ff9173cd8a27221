"""One trace through a whole cluster: from HTTP through Kafka to the start of a process."""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.cluster import Cluster
from tests.support.otlp import Collector, Seen

pytestmark = [pytest.mark.kafka, pytest.mark.xdist_group("kafka-cluster"), pytest.mark.timeout(240)]

TRACE = "0af7651916cd43dd8448eb211c80319c"
CALLER = f"00-{TRACE}-b7ad6b7169203331-01"
JOB = {"project": "default", "resources": {"gpus": 1}, "run": {"command": ["true"]}}


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as collector:
        yield collector


@pytest.fixture
def cluster(tmp_path: Path, collector: Collector) -> Iterator[Cluster]:
    traces = {"YARD_TRACES__ENDPOINT": collector.url, "YARD_TRACES__INTERVAL_S": "0.1"}
    with Cluster(tmp_path, quotas=1, schedulers=1, views=1, agents=1, env={"*": traces}) as cluster:
        yield cluster


def lines(cluster: Cluster, name: str, event: str) -> list[dict[str, object]]:
    said = [line for line in cluster.log(name).splitlines() if f'"event": "{event}"' in line]
    return [json.loads(line) for line in said]


def test_a_request_can_be_followed_through_kafka_to_the_start_of_its_process(
    cluster: Cluster, collector: Collector
) -> None:
    answer = httpx.post(
        f"{cluster.url()}/v1/jobs",
        json=JOB,
        headers={"Authorization": f"Bearer {cluster.token()}", "traceparent": CALLER},
        timeout=30,
        trust_env=False,
    )
    assert answer.status_code == 202, answer.text
    cluster.until_ended(answer.json()["task_ids"])

    def all_there(spans: list[Seen]) -> bool:
        names = {span.name for span in spans if span.concerns(TRACE)}
        wanted = {"quota cycle", "scheduler cycle", "views step", "scheduler TaskEnded"}
        return wanted <= names

    spans = [span for span in collector.wait_for(all_there) if span.concerns(TRACE)]
    by_name = {span.name: span for span in spans}
    request = by_name["POST /v1/jobs"]
    assert (request.trace_id, request.parent) == (TRACE, CALLER.split("-")[2])
    assert by_name["quota TaskAdmitted"].trace_id == TRACE
    assert by_name["quota TaskAdmitted"].parent == request.span_id
    cycles = [span for span in spans if span.name == "scheduler cycle"]
    assert cycles
    assert all(TRACE in span.links for span in cycles)
    assert {span.service for span in spans} == {
        f"yardmaster-{name}" for name in ("gateway", "quota", "scheduler", "node-agent", "views")
    }
    start = by_name["node_agent start"]
    assert start.trace_id == TRACE
    # Later spans come from the reports of the agent.
    own = [s for s in spans if s.trace_id == TRACE and s.name != "scheduler TaskEnded"]
    assert max(own, key=lambda span: span.start_ns) == start
    assert by_name["scheduler TaskEnded"].trace_id == TRACE

    (said,) = lines(cluster, "gateway-1", "request")
    (started,) = lines(cluster, "agent-n1", "replica_started")
    assert said["trace_id"] == started["trace_id"] == TRACE
