"""Report the nodes whose tasks run as the user of their agent, and what such tasks can read."""

import os
import pwd
import time
from pathlib import Path
from typing import Final

from yardmaster.errors import ApiError
from yardmaster.local_cluster import DevServer
from yardmaster_cli.server.reader import Reader
from yardmaster_localcluster.layout import DataLayout

#: Seconds for the views to show the nodes of a cluster that has just started.
NODES_S: Final = 5.0
LOOK_S: Final = 0.1
#: The user of the token that the cluster has from its start.
LOCAL: Final = "local"


def not_isolated(folder: Path, cluster: DevServer, agents: int = 1) -> str | None:
    """Return what the tasks of a local cluster may read if they run as the user of the cluster.

    `agents`: the number of nodes to wait for, at most `NODES_S` seconds.

    None: tasks have a user of their own; or the cluster has only one user and that user is not
    root, so that a task can read only what its user can read; or the cluster does not answer.
    Nodes of `yard dev` and containers are not checked.
    """
    data = DataLayout(folder)
    root = os.geteuid() == 0
    if cluster.what != "yard up" or not cluster.pid:
        return None
    reader = Reader(cluster.server, cluster.token, sleep=time.sleep, max_tries=1)
    ends_s = time.monotonic() + NODES_S
    try:
        if not root and not {user["name"] for user in reader.get("/v1/users")["items"]} - {LOCAL}:
            return None
        while len(nodes := reader.get("/v1/nodes")["items"]) < agents:
            if time.monotonic() > ends_s:
                break
            time.sleep(LOOK_S)
    except ApiError:
        return None
    open_ = sorted(node["name"] for node in nodes if node.get("isolation") == "none")
    if not open_:
        return None
    user = "root" if root else f"the user {pwd.getpwuid(os.geteuid()).pw_name} of the agents"
    return (
        f"tasks on {', '.join(open_)} run as {user}: a job of any user can read "
        f"{data.token_file} and the administrator's password in {data.credentials}"
    )


def why_not_isolated(folder: Path) -> str:
    """Return what the operator can do so that tasks run as a user of their own."""
    if os.geteuid() != 0:
        return "start the cluster as root, so that tasks get a user of their own; or have one user"
    return (
        f"tasks_not_isolated in {DataLayout(folder).logs / 'agent-*.log'} names the folder that is "
        "closed to them"
    )
