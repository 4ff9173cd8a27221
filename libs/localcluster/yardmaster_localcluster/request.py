"""Read and write `up.json` (the requested cluster) and `state.json` (the supervisor's report)."""

import json
from collections.abc import Mapping
from typing import Any

from yardmaster_localcluster.data_lock import write_private
from yardmaster_localcluster.layout import DataLayout, read_json
from yardmaster_localcluster.plan import Wanted


def requested(data: DataLayout) -> Wanted:
    """The cluster last requested on the folder; the default cluster if there was none."""
    found = read_json(data.path / "up.json").get("wanted")
    try:
        return Wanted.of_json(found) if found else Wanted()
    except (KeyError, TypeError):
        return Wanted()


def requested_ports(data: DataLayout) -> dict[str, int]:
    """The stored ports of a cluster by listener; values that are not port numbers are left out."""
    found = read_json(data.path / "up.json").get("ports")
    if not isinstance(found, dict):
        return {}
    return {name: port for name, port in found.items() if isinstance(port, int)}


def write_request(data: DataLayout, wanted: Wanted, ports: Mapping[str, int]) -> None:
    """Store the request."""
    content = {"wanted": wanted.json(), "ports": dict(ports)}
    write_private(data.path / "up.json", json.dumps(content, indent=1) + "\n")


def read_state(data: DataLayout) -> dict[str, Any]:
    """The supervisor's last report; empty if there is none."""
    return read_json(data.path / "state.json")
