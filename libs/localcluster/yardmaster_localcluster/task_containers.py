"""Remove the containers of the tasks of a cluster.

An agent has an entry in `containers` for each of its containers until it is removed, and next to
that folder `containers.owner`, the random id with which its containers are labelled.
"""

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx

from yardmaster_localcluster.errors import EngineSilent
from yardmaster_runtime.engine_api import FOLDER_LABEL, OWNER_LABEL, agreed_version, text_of

#: The default of the setting `engine_socket` of agents.
SOCKET: Final = "/var/run/docker.sock"
ANSWER_S: Final = 30.0


def end_containers(agents: Path) -> int:
    """Kill and remove the containers of the agents whose data is in a folder or one level below.

    Returns: how many there were, also ended ones.
    Raises:
        EngineSilent: there are containers, and the engine does not answer.
    """
    labels = list(_labels(agents))
    if not labels:
        return 0
    path = os.environ.get("YARD_AGENT_ENGINE_SOCKET", SOCKET)
    transport = httpx.HTTPTransport(uds=path)
    try:
        # httpx leaves its socket open if it cannot connect.
        with socket.socket(socket.AF_UNIX) as probe:
            probe.connect(path)
        with httpx.Client(transport=transport, base_url="http://engine", timeout=ANSWER_S) as http:
            return _end(http, labels)
    except (OSError, httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        raise EngineSilent(
            path=path, found=error, hint="when it answers, run yard down again"
        ) from error


def _end(http: httpx.Client, agents: list[list[str]]) -> int:
    version = text_of(agreed_version(http.get("/version").json()))
    removed = 0
    for labels in agents:
        query = {"all": "true", "filters": json.dumps({"label": labels})}
        found: list[dict[str, Any]] = _checked(
            http.get(f"/v{version}/containers/json", params=query)
        )
        for container in found:
            path = f"/v{version}/containers/{container['Id']}"
            answer = http.delete(path, params={"force": "true", "v": "true"})
            if answer.status_code not in (404, 409):  # gone, or being removed already
                answer.raise_for_status()
            removed += 1
    return removed


def _checked(answer: httpx.Response) -> Any:
    answer.raise_for_status()
    return answer.json()


def _labels(agents: Path) -> Iterator[list[str]]:
    """Yield the labels of the containers of each agent that has some."""
    for path in sorted([*agents.glob("containers.owner"), *agents.glob("*/containers.owner")]):
        containers = path.with_name("containers")
        if containers.is_dir() and any(containers.iterdir()):
            owner = path.read_text(encoding="ascii")
            yield [f"{OWNER_LABEL}={owner}", f"{FOLDER_LABEL}={containers}"]
