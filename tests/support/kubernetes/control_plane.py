"""A real control plane of Kubernetes for tests: etcd, the API server and, on request, its scheduler
and controllers, from the one program that `make tools` builds. There are no kubelets.

Admission plugins that would need controllers, or that add taints to new nodes, are off.
"""

import os
import shutil
import ssl
import subprocess
import urllib.request
import uuid
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.support.go_tools import go_tool
from yardmaster_localcluster.errors import ProcessFailed
from yardmaster_localcluster.ports import HOST, free_ports
from yardmaster_localcluster.process import Server

ANSWER_S: Final = 5.0
#: The token of a user who may do everything, and of one who may do nothing without a role.
ADMIN: Final = "admin-token"
LIMITED: Final = "limited-token"
USERS: Final = {ADMIN: ("admin", "system:masters"), LIMITED: ("limited", "limited")}
#: The server's certificate, made by itself, from the folder of the control plane.
CERTIFICATE: Final = "certificates/apiserver.crt"


def _private_key() -> bytes:
    """A new key that signs the tokens of service accounts, as PEM."""
    return rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )


@cache
def program() -> Path:
    """The program; the test is skipped without it."""
    return Path(go_tool("path", "kubernetes").strip())


class Component(Server):
    """One process of the control plane.

    The kernel kills it when the process of the tests ends, however that ends.
    """

    start_limit_s = 60.0
    stop_limit_s = 20.0

    def __init__(self, name: str, folder: Path, options: Mapping[str, object], url: str) -> None:
        super().__init__(folder / f"{name}.log")
        self.name = name
        self.folder = folder
        self.options = options
        self.url = url

    @property
    def address(self) -> str:
        return self.url

    def begin(self) -> None:
        if self.running:
            return
        setpriv = shutil.which("setpriv")
        assert setpriv is not None, "setpriv of util-linux is missing"
        words = [f"--{name}={value}" for name, value in self.options.items()]
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [setpriv, "--pdeathsig", "KILL", program(), self.name, *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env={"PATH": os.defpath, "HOME": str(self.folder)},
            )

    def ready(self) -> bool:
        if self._started().poll() is not None:
            self._process = None
            raise ProcessFailed(f"{self.name} ended:\n{self.tail()}")
        request = urllib.request.Request(self.url, headers={"Authorization": f"Bearer {ADMIN}"})
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_S, context=_UNVERIFIED):
                return True
        except OSError:
            return False

    # The control plane chooses all ports at once, and reserves them.
    def _can_move(self) -> bool:
        return False

    def _move(self) -> None:
        raise AssertionError("it cannot move")


class ControlPlane:
    """A control plane with its files in `folder`; a context manager that ends all its processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        etcd, peers, api, scheduler, controllers = free_ports(5)
        self.port = api
        self.url = f"https://{HOST}:{api}"
        self.etcd_url = f"http://{HOST}:{etcd}"
        peers_url = f"http://{HOST}:{peers}"
        self.certificate = folder / CERTIFICATE
        self.kubeconfig = folder / "kubeconfig"
        key = folder / "service-accounts.key"
        self.etcd = Component(
            "etcd",
            folder,
            {
                "name": "test",
                "data-dir": folder / "etcd",
                "listen-client-urls": self.etcd_url,
                "advertise-client-urls": self.etcd_url,
                "listen-peer-urls": peers_url,
                "initial-advertise-peer-urls": peers_url,
                "initial-cluster": f"test={peers_url}",
                "unsafe-no-fsync": "true",
            },
            f"{self.etcd_url}/readyz",
        )
        self.api = Component(
            "kube-apiserver",
            folder,
            {
                "etcd-servers": self.etcd_url,
                "bind-address": HOST,
                "advertise-address": HOST,
                "secure-port": api,
                "cert-dir": self.certificate.parent,
                "token-auth-file": folder / "tokens.csv",
                "authorization-mode": "RBAC",
                "service-account-issuer": "https://kubernetes.default.svc",
                "service-account-key-file": key,
                "service-account-signing-key-file": key,
                "service-cluster-ip-range": "10.0.0.0/24",
                "endpoint-reconciler-type": "none",
                "disable-admission-plugins": "ServiceAccount,TaintNodesByCondition",
            },
            f"{self.url}/readyz",
        )
        common = {
            "kubeconfig": self.kubeconfig,
            "bind-address": HOST,
            "leader-elect": "false",
        }
        self.scheduler = Component(
            "kube-scheduler",
            folder,
            {**common, "secure-port": scheduler, "authentication-skip-lookup": "true"},
            f"https://{HOST}:{scheduler}/healthz",
        )
        self.controllers = Component(
            "kube-controller-manager",
            folder,
            {
                **common,
                "secure-port": controllers,
                "service-account-private-key-file": key,
                "authentication-skip-lookup": "true",
            },
            f"https://{HOST}:{controllers}/healthz",
        )

    def __enter__(self) -> "ControlPlane":
        self.folder.mkdir(parents=True, exist_ok=True)
        key = self.folder / "service-accounts.key"
        key.write_bytes(_private_key())
        lines = [f'{token},{user},{user},"{group}"\n' for token, (user, group) in USERS.items()]
        (self.folder / "tokens.csv").write_text("".join(lines))
        self.kubeconfig.write_text(yaml.safe_dump(self.configuration()))
        try:
            self.etcd.start()
            self.api.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for component in (self.scheduler, self.controllers, self.api, self.etcd):
            component.kill()

    def client(self, token: str = ADMIN) -> httpx.Client:
        """A plain client, which does not raise for errors; the caller closes it."""
        return client(self.url, self.folder, token)

    def configuration(self, token: str = ADMIN, server: str | None = None) -> dict[str, object]:
        """A kubeconfig for a token, at the server's own address or at a proxy's."""
        cluster = {
            "server": server or self.url,
            "certificate-authority": str(self.certificate),
        }
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "user", "user": {"token": token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "user"}}],
            "current-context": "test",
        }

    def compact(self) -> None:
        """Let etcd forget all versions but the newest: older watches end with 410."""
        newest = self._etcd("kv/range", '{"key": "AA=="}')["header"]["revision"]
        self._etcd("kv/compaction", f'{{"revision": "{newest}", "physical": true}}')

    def _etcd(self, path: str, body: str) -> dict[str, Any]:
        request = urllib.request.Request(f"{self.etcd_url}/v3/{path}", body.encode())
        with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
            found: dict[str, Any] = yaml.safe_load(answer.read())
        return found


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """etcd and an API server, one for the session (under xdist: group tests by `kubernetes`).

    Use your own namespaces and node names. `control_plane.scheduler.start()` and
    `.controllers.start()` add the others, which then run until the session ends.
    """
    program()
    with ControlPlane(tmp_path_factory.mktemp("kubernetes")) as plane:
        yield plane


@pytest.fixture
def admin(control_plane: ControlPlane) -> Iterator[httpx.Client]:
    """A client that may do everything."""
    with control_plane.client() as client:
        yield client


@pytest.fixture
def namespace(admin: httpx.Client) -> str:
    """A new namespace. Without controllers a namespace cannot be deleted, so it stays."""
    name = f"test-{uuid.uuid4().hex[:12]}"
    created(admin.post("/api/v1/namespaces", json={"metadata": {"name": name}}))
    return name


def client(url: str, folder: Path, token: str) -> httpx.Client:
    """A plain client of the control plane in `folder`."""
    return httpx.Client(
        base_url=url,
        verify=ssl.create_default_context(cafile=folder / CERTIFICATE),
        headers={"Authorization": f"Bearer {token}"},
        timeout=30.0,
    )


def created(answer: httpx.Response) -> dict[str, Any]:
    """The object that a request wrote."""
    assert answer.is_success, answer.text
    body: dict[str, Any] = answer.json()
    return body


def pod_body(name: str, **spec: object) -> dict[str, Any]:
    """A pod for the scheduler `yardmaster`, which no program of the control plane schedules."""
    whole = {
        "schedulerName": "yardmaster",
        "containers": [{"name": "main", "image": "none"}],
        **spec,
    }
    return {"metadata": {"name": name}, "spec": whole}


def binding(pod: str, node: str, uid: str | None = None) -> dict[str, Any]:
    """The body that binds a pod to a node."""
    metadata = {"name": pod} if uid is None else {"name": pod, "uid": uid}
    return {"metadata": metadata, "target": {"kind": "Node", "name": node}}


_UNVERIFIED: Final = ssl._create_unverified_context()
