"""The reflector on a real API server: it misses no deletion, whatever happens to its watch."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.kubernetes.control_plane import ADMIN, CERTIFICATE, ControlPlane
from tests.support.kubernetes.followed_pods import Pods, connection, followed_pods
from tests.support.tcp_proxy import HOST, Mode, TcpProxy
from yardmaster_kubernetes.api_client import KubernetesClient
from yardmaster_kubernetes.configuration import in_cluster
from yardmaster_kubernetes.errors import NotPermitted
from yardmaster_kubernetes.objects import Pod
from yardmaster_kubernetes.reflector import ObjectChange, Reflector, ReflectorLimits, Selection
from yardmaster_runtime.chance import SeededChance
from yardmaster_runtime.clock import SystemClock

pytestmark = pytest.mark.xdist_group("kubernetes")


@pytest.fixture
def pods(admin: httpx.Client, namespace: str) -> Pods:
    return Pods(admin, namespace)


@pytest.fixture
def proxy(control_plane: ControlPlane) -> Iterator[TcpProxy]:
    with TcpProxy(control_plane.port) as proxy:
        yield proxy


async def test_each_change_is_reported_once_and_in_order(
    control_plane: ControlPlane, namespace: str, pods: Pods, tmp_path: Path
) -> None:
    first = [pods.add(name) for name in ("a", "b", "c")]
    small_pages = ReflectorLimits(page=2)
    async with followed_pods(connection(control_plane, tmp_path), namespace, small_pages) as seen:
        await seen.reflector.complete.wait()
        assert seen.changes == first

        # A line separator of Unicode within an object ends no line of the watch.
        main = {"name": "main", "image": "none", "env": [{"name": "A", "value": "x\u0085y"}]}
        later = [pods.add("d", containers=[main]), pods.delete("b")]
        # The pod of this name is another one.
        later += [pods.delete("a"), pods.add("a")]
        await seen.until_changes(7)
        assert seen.changes[3:] == later
        assert {each.metadata.name for each in seen.reflector.objects.values()} == {"a", "c", "d"}

        pods.label("c")
        await seen.until_changes(8)
        labels = [each.metadata.labels for each in seen.reflector.objects.values()]
        assert {"changed": "yes"} in labels
        assert dict(seen.reflector.counts.lists) == {"start": 1}


async def test_a_watch_that_ends_is_resumed_without_a_list(
    control_plane: ControlPlane, namespace: str, pods: Pods, tmp_path: Path
) -> None:
    short = ReflectorLimits(watch_s=1.0, first_pause_s=0.02)
    async with followed_pods(connection(control_plane, tmp_path), namespace, short) as seen:
        await seen.until(lambda: seen.reflector.counts.watch_ends["in_order"] == 2)
        added = pods.add("a")
        await seen.until_changes(1)
        assert seen.changes == [added]
        assert dict(seen.reflector.counts.lists) == {"start": 1}
        assert seen.reflector.failure is None


async def test_deletions_are_seen_although_the_server_no_longer_has_their_version(
    control_plane: ControlPlane, namespace: str, pods: Pods, proxy: TcpProxy, tmp_path: Path
) -> None:
    """The link fails in the middle of a watch; then etcd and the server's cache forget."""
    kept = pods.add("kept")
    gone, renewed = pods.add("gone"), pods.add("renewed")
    through = connection(control_plane, tmp_path, f"https://{HOST}:{proxy.port}")
    resumes = ReflectorLimits(first_pause_s=0.02, longest_pause_s=0.1, failures_until_list=10_000)
    async with followed_pods(through, namespace, resumes) as seen:
        await seen.until_changes(3)
        assert set(seen.changes) == {kept, gone, renewed}
        proxy.set(Mode.CUT)
        deleted = {pods.delete("gone"), pods.delete("renewed")}
        again = pods.add("renewed")
        control_plane.compact()
        control_plane.api.restart()
        await seen.until(lambda: seen.reflector.failure is not None)
        proxy.set(Mode.PASS)

        await seen.until_changes(6)
        assert set(seen.changes[3:5]) == deleted
        assert seen.changes[5:] == [again]
        assert dict(seen.reflector.counts.lists) == {"start": 1, "version_gone": 1}
        after = pods.add("after")
        await seen.until_changes(7)
        assert seen.changes[6:] == [after]


async def test_a_watch_whose_connection_is_dead_is_noticed(
    control_plane: ControlPlane, namespace: str, pods: Pods, proxy: TcpProxy, tmp_path: Path
) -> None:
    through = connection(control_plane, tmp_path, f"https://{HOST}:{proxy.port}")
    short = ReflectorLimits(
        watch_s=1.0, silence_margin_s=0.5, first_pause_s=0.02, longest_pause_s=0.1
    )
    async with followed_pods(through, namespace, short) as seen:
        await seen.reflector.complete.wait()
        first = pods.add("first")
        await seen.until_changes(1)
        proxy.set(Mode.BLACKHOLE)
        added = pods.add("a")
        await seen.until(lambda: seen.reflector.counts.watch_ends["api_unavailable"] >= 1)
        assert seen.changes == [first]
        proxy.set(Mode.PASS)
        await seen.until_changes(2)
        assert seen.changes == [first, added]


async def test_a_token_that_was_replaced_is_read_again(
    control_plane: ControlPlane, namespace: str, pods: Pods, tmp_path: Path
) -> None:
    """As the kubelet replaces the token of a pod's service account."""
    (tmp_path / "ca.crt").write_bytes((control_plane.folder / CERTIFICATE).read_bytes())
    (tmp_path / "token").write_text("expired")
    environment = {
        "KUBERNETES_SERVICE_HOST": HOST,
        "KUBERNETES_SERVICE_PORT": str(control_plane.port),
    }
    added = pods.add("a")
    async with followed_pods(in_cluster(environment, tmp_path), namespace) as seen:
        await seen.until(lambda: seen.reflector.failure is not None)
        assert isinstance(seen.reflector.failure, NotPermitted)
        assert not seen.reflector.complete.is_set()

        (tmp_path / "token").write_text(f"{ADMIN}\n")
        await seen.until_changes(1)
        assert seen.changes == [added]
        assert seen.reflector.failure is None


async def test_a_server_that_never_has_the_version_is_listed_after_some_failures(
    control_plane: ControlPlane, namespace: str, pods: Pods, proxy: TcpProxy, tmp_path: Path
) -> None:
    through = connection(control_plane, tmp_path, f"https://{HOST}:{proxy.port}")
    async with followed_pods(through, namespace) as seen:
        await seen.reflector.complete.wait()
        proxy.set(Mode.CUT)
        await seen.until(lambda: seen.reflector.counts.lists["api_unavailable"] >= 1)
        added = pods.add("a")
        proxy.set(Mode.PASS)
        await seen.until_changes(1)
        assert seen.changes == [added]


async def test_an_error_of_the_handler_ends_the_reflector(
    control_plane: ControlPlane, namespace: str, pods: Pods, tmp_path: Path
) -> None:
    async def refuse(change: ObjectChange[Pod]) -> None:
        raise RuntimeError(f"refused {change.object.metadata.name}")

    pods.add("a")
    async with KubernetesClient(connection(control_plane, tmp_path)) as client:
        selection = Selection(pods.path, Pod)
        reflector = Reflector(client, selection, refuse, SystemClock(), SeededChance(1))
        with pytest.raises(RuntimeError, match="refused a"):
            await reflector.run()
        assert reflector.objects == {}
