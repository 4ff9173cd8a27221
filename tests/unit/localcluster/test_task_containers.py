"""The containers of tasks at the stop of a cluster whose engine is away."""

from pathlib import Path

import pytest

from yardmaster_localcluster.errors import EngineSilent
from yardmaster_localcluster.task_containers import end_containers


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The data directory of a node that had containers, on a machine without an engine."""
    monkeypatch.setenv("YARD_AGENT_ENGINE_SOCKET", str(tmp_path / "absent.sock"))
    node = tmp_path / "agents" / "n1"
    (node / "containers").mkdir(parents=True)
    (node / "containers.owner").write_text("0123456789ab")
    return node


def test_agents_without_containers_need_no_engine(node: Path) -> None:
    assert end_containers(node.parent) == 0


@pytest.mark.parametrize("levels", [0, 1])
def test_containers_that_cannot_be_removed_are_an_error(node: Path, levels: int) -> None:
    (node / "containers" / "4kq7w2mz9c1f.0.1.0").mkdir()
    with pytest.raises(EngineSilent, match=r"absent\.sock does not answer"):
        end_containers([node, node.parent][levels])
