"""How to reach an API server and sign in: as a pod of the cluster, or by a kubeconfig file."""

import base64
import binascii
import ssl
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from yardmaster_kubernetes.errors import ConfigurationUnusable

#: Kubernetes mounts these files into each pod, and replaces the token before it expires.
SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")

_CLUSTER: Final = frozenset({"server", "certificate-authority", "certificate-authority-data"})
_USER: Final = frozenset(
    {
        *("token", "tokenFile", "client-certificate", "client-certificate-data"),
        *("client-key", "client-key-data"),
    }
)
#: Fields without an effect on the connection.
_IGNORED: Final = frozenset({"extensions"})


@dataclass(frozen=True)
class ApiConnection:
    """An API server and the way to sign in there."""

    server: str
    tls: ssl.SSLContext
    #: The token, read again each time; empty: a client certificate signs in.
    read_token: Callable[[], str]


def in_cluster(environment: Mapping[str, str], folder: Path = SERVICE_ACCOUNT) -> ApiConnection:
    """The connection of a pod, from the environment and the files of its service account.

    Raises:
        ConfigurationUnusable: this process runs in no pod.
    """
    host = environment.get("KUBERNETES_SERVICE_HOST", "")
    port = environment.get("KUBERNETES_SERVICE_PORT", "")
    if not host or not port:
        raise ConfigurationUnusable(
            path="of the cluster", found="KUBERNETES_SERVICE_HOST or _PORT is not set"
        )
    address = f"[{host}]" if ":" in host else host
    read_token = _token_file(folder / "token")
    read_token()
    return ApiConnection(f"https://{address}:{port}", _trusting(folder / "ca.crt"), read_token)


def from_kubeconfig(path: Path, context: str = "") -> ApiConnection:
    """The connection of a context of a kubeconfig file; without one, of its current context.

    Fields that are not supported are refused by name, `exec` too: sign in with a token or a
    client certificate.

    Raises:
        ConfigurationUnusable.
    """
    try:
        whole = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigurationUnusable(path=path, found=error) from error
    file = _Kubeconfig(path, whole if isinstance(whole, dict) else {})
    chosen = file.named("contexts", context or str(file.whole.get("current-context", "")))
    cluster = file.checked("clusters", str(chosen.get("cluster", "")), _CLUSTER)
    user = file.checked("users", str(chosen.get("user", "")), _USER)
    server = str(cluster.get("server", ""))
    if not server.startswith("https://"):
        raise file.unusable(f"the server {server!r} does not start with https://")
    with tempfile.TemporaryDirectory() as folder:
        tls = _trusting(file.path(cluster, "certificate-authority", Path(folder)))
        certificate = file.path(user, "client-certificate", Path(folder))
        if certificate is not None:
            try:
                tls.load_cert_chain(certificate, file.path(user, "client-key", Path(folder)))
            except (OSError, ssl.SSLError) as error:
                raise file.unusable(f"the client certificate: {error}") from error
    return ApiConnection(server.rstrip("/"), tls, file.token(user))


@dataclass(frozen=True)
class _Kubeconfig:
    """A kubeconfig file; paths in it are relative to its folder."""

    file: Path
    whole: Mapping[str, Any]

    def unusable(self, found: str) -> ConfigurationUnusable:
        return ConfigurationUnusable(path=self.file, found=found)

    def named(self, kind: str, name: str) -> Mapping[str, Any]:
        """The entry of a list, such as `clusters`."""
        entries = self.whole.get(kind) or ()
        for each in entries:
            if isinstance(each, dict) and each.get("name") == name:
                found = each.get(kind.removesuffix("s"))
                if isinstance(found, dict):
                    return found
        raise self.unusable(f"{kind} has no {name!r}")

    def checked(self, kind: str, name: str, known: frozenset[str]) -> Mapping[str, Any]:
        """The entry of a list, when it has only known fields."""
        found = self.named(kind, name)
        unknown = sorted(key for key, value in found.items() if value and key not in known)
        if set(unknown) - _IGNORED:
            raise self.unusable(f"{kind} {name!r} has {', '.join(unknown)}, not supported")
        return found

    def path(self, entry: Mapping[str, Any], key: str, folder: Path) -> Path | None:
        """The file of a field; data in the kubeconfig is written to a file in `folder`."""
        data = entry.get(f"{key}-data")
        if data:
            path = folder / key
            try:
                path.write_bytes(base64.b64decode(data, validate=True))
            except (binascii.Error, ValueError, TypeError) as error:
                raise self.unusable(f"{key}-data: {error}") from error
            return path
        return self.file.parent / str(entry[key]) if entry.get(key) else None

    def token(self, user: Mapping[str, Any]) -> Callable[[], str]:
        """Read the token of a user; as in kubectl, the file counts if there is one."""
        if user.get("tokenFile"):
            return _token_file(self.file.parent / str(user["tokenFile"]))
        token = str(user.get("token") or "")
        return lambda: token


def _token_file(path: Path) -> Callable[[], str]:
    def read() -> str:
        try:
            return path.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationUnusable(path=path, found=error) from error

    return read


def _trusting(authority: Path | None) -> ssl.SSLContext:
    """Trust the certificates of `authority`; None: those of the system."""
    try:
        return ssl.create_default_context(cafile=authority)
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationUnusable(path=authority, found=error) from error
