"""The broker and Redis of deploy/k8s/base in containers, exactly as the manifests configure them.

The containers get the commands, environments, ConfigMaps and mounts of the rendered pods. Names of
pods and services lead to the broker's container, whose network the others share.
"""

import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.support import containers
from tests.support.manifests import BASE, named, settings_of

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300), pytest.mark.xdist_group("k8s")]

CLI = f"yardmaster-cli:{os.environ.get('YARD_UP_VERSION', 'dev')}"
USERS = ("admin", "gateway", "quota", "scheduler", "views", "agents", "auditor")
IMAGES = {
    "apache/kafka": containers.KAFKA_IMAGE,
    "redis": containers.REDIS_IMAGE,
    "yardmaster-cli": CLI,
}
#: Values that Kubernetes fills in.
FIELDS = {"metadata.name": "kafka-0", "metadata.labels['apps.kubernetes.io/pod-index']": "0"}
NAMES = ("kafka", "kafka-0.kafka-brokers", "redis")


def docker(*words: str, code: int | None = 0) -> str:
    """The output of a docker command."""
    done = subprocess.run(
        ["docker", *words], capture_output=True, text=True, timeout=120, check=False
    )
    said = done.stdout + done.stderr
    assert code is None or done.returncode == code, f"docker {' '.join(words)}:\n{said}"
    return said


def password(user: str) -> str:
    return f"password-of-{user}"


class Pods:
    """Containers of the rendered pods; the first one has the network of all."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: list[str] = []
        secrets = {"yardmaster-kafka": USERS, "yardmaster-redis": ("gateway", "views")}
        for secret, users in secrets.items():
            for user in users:
                self._file(secret, user, password(user))

    def _file(self, name: str, key: str, text: str) -> Path:
        path = self._folder / name / key
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        os.chown(path, -1, 10001)
        path.chmod(0o440)
        return path

    def _mounts(self, pod: Mapping[str, Any], container: Mapping[str, Any]) -> Iterator[str]:
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        for mount in container["volumeMounts"]:
            volume = volumes.get(mount["name"], {})
            at = mount["mountPath"]
            if "secret" in volume:
                secret = volume["secret"]
                source = self._folder / secret["secretName"]
                found = [(each.name, each.name) for each in source.iterdir()]
                for key, path in [(i["key"], i["path"]) for i in secret.get("items", ())] or found:
                    yield f"--volume={source / key}:{at}/{path}:ro"
            elif "configMap" in volume:
                name = volume["configMap"]["name"]
                for key, text in settings_of(BASE, name.rpartition("-")[0]).items():
                    yield f"--volume={self._file(name, key, text)}:{at}/{key}:ro"
            else:
                yield f"--tmpfs={at}:uid=10001,gid=10001"

    def run(self, pod: Mapping[str, Any], *words: str, env: Mapping[str, str] | None = None) -> str:
        """Start the pod's container, or run it to its end with other arguments; its output."""
        (one,) = pod["containers"]
        values: dict[str, str] = {}
        for source in one.get("envFrom", ()):
            name = source["configMapRef"]["name"].rpartition("-")[0]
            values |= settings_of(BASE, name)
        for each in one.get("env", ()):
            given = each.get("value")
            if given is None:
                given = FIELDS[each["valueFrom"]["fieldRef"]["fieldPath"]]
            for name, value in values.items():
                given = given.replace(f"$({name})", value)
            values[each["name"]] = given
        values |= env or {}
        image = IMAGES[one["image"].partition(":")[0]]
        network = [f"--network=container:{self._started[0]}"] if self._started else []
        if not network:
            network = [f"--add-host={name}:127.0.0.1" for name in NAMES]
        options = ["--user=10001:10001", "--read-only", "--cap-drop=ALL", *network]
        options += self._mounts(pod, one)
        options += [f"--env={name}={value}" for name, value in values.items()]
        if words or "command" not in one:
            args = words or [arg.replace("$(YARD_CELLS)", "main") for arg in one["args"]]
            return docker("run", "--rm", *options, image, *args)
        command, *rest = one["command"]
        started = docker("run", "--detach", f"--entrypoint={command}", *options, image, *rest)
        self._started.append(started.strip().splitlines()[-1])
        return self._started[-1]

    def close(self) -> None:
        """Remove all containers."""
        if self._started:
            docker("rm", "--force", "--volumes", *self._started, code=None)


@pytest.fixture(scope="module")
def pods() -> Iterator[Pods]:
    if not all(containers.is_there(image) for image in IMAGES.values()):
        pytest.skip("needs Docker and the images")
    if os.geteuid() != 0:
        pytest.skip("needs root, to give files to the group of the containers")
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o711)
        made = Pods(Path(folder))
        try:
            yield made
        finally:
            made.close()


def pod(kind: str, name: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = named(BASE, kind, name)["spec"]["template"]["spec"]
    return found


def test_the_broker_and_redis_of_the_manifests_accept_their_users_alone(pods: Pods) -> None:
    pods.run(pod("StatefulSet", "kafka"))
    setup = pod("Job", "setup")
    said = pods.run(setup)
    assert "created: main" in said
    assert "nothing to create" in pods.run(setup)

    def yard(user: str, *words: str, secret: str | None = None) -> str:
        """A command of the image of `yard` as a user of the brokers."""
        path = f"/etc/yardmaster/kafka-password/{secret or user}"
        env = {
            "YARD_KAFKA__SASL_MECHANISM": "SCRAM-SHA-512",
            "YARD_KAFKA__SASL_USERNAME": user,
            "YARD_KAFKA__SASL_PASSWORD_FILE": path,
        }
        try:
            return pods.run(setup, *words, env=env)
        except AssertionError as error:
            return str(error)

    dump = ("log", "dump", "--limit", "1")
    assert '"LogCreated"' in yard("auditor", *dump)
    assert "TopicAuthorizationFailed" in yard("agents", *dump)
    assert "TopicAuthorizationFailed" in yard("auditor", "setup", "--wait", "1s")
    assert "refuses user auditor" in yard("auditor", *dump, secret="gateway")

    redis = pods.run(pod("StatefulSet", "redis"))

    def redis_cli(user: str, *words: str) -> str:
        auth = f"REDISCLI_AUTH={password(user)}"
        return docker("exec", "--env", auth, redis, "redis-cli", "--user", user, *words, code=None)

    for _ in range(100):
        if "PONG" in redis_cli("gateway", "PING"):
            break
    assert "OK" in redis_cli("views", "SET", "k", "v")
    assert "NOPERM" in redis_cli("gateway", "SET", "k", "other")
    assert "v" in redis_cli("gateway", "GET", "k")
    assert "NOPERM" in redis_cli("views", "CONFIG", "GET", "*")
    assert "NOAUTH" in docker("exec", redis, "redis-cli", "GET", "k", code=None)
