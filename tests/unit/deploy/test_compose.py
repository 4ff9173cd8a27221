"""deploy/compose and the Dockerfiles: hardened, no values of secrets, an image for each service."""

import re
import tomllib
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[3]
SERVICES = ROOT / "services"
DOCKERFILE = ROOT / "deploy/docker/Dockerfile"


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "deploy/compose/compose.yaml").read_text())
    return found


def stages() -> dict[str, str]:
    """The Dockerfile's stages by name; the nameless last one as ''."""
    parts = re.split(r"^FROM (\S+)(?: AS (\S+))?$", DOCKERFILE.read_text(), flags=re.MULTILINE)
    return {name or "": f"FROM {base}{body}" for base, name, body in batched(parts[1:], 3)}


def batched(items: list[str], size: int) -> list[list[str]]:
    return [items[at : at + size] for at in range(0, len(items), size)]


def test_every_service_has_an_image_of_its_own() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    scripts = extras["scripts"]
    found = stages()
    assert found.pop("").strip() == "FROM ${SERVICE}"
    for folder in SERVICES.iterdir():
        name = folder.name.removeprefix("node_")
        entry = re.findall(r'^ENTRYPOINT \["([a-z-]+)"\]$', found[name], re.MULTILINE)
        assert entry == [f"yardmaster-{folder.name.replace('_', '-')}"], "signals reach it"
        assert entry[0] in scripts
        assert name in extras["optional-dependencies"], "its packages are an extra"
        assert found[name].startswith("FROM service")


def test_an_image_is_lean_and_its_process_is_not_root() -> None:
    found = stages()
    assert found["build"].startswith("FROM ${BASE}")
    assert found["cli"].startswith("FROM ${BASE}"), "the build tools are left behind"
    assert "USER 10001:10001" in found["cli"]
    assert found["service"].startswith("FROM cli")
    assert "HEALTHCHECK" in found["service"]


def test_the_counts_are_those_of_make_up() -> None:
    services = compose()["services"]
    scaled = {name: one.get("deploy", {}).get("replicas", 1) for name, one in services.items()}
    assert scaled == {
        **{"kafka": 1, "redis": 1, "setup": 1, "gateway": 1, "quota": 2, "scheduler": 2},
        **{"views": 2, "agent-n1": 1, "agent-n2": 1, "agent-n3": 1},
    }


def test_every_container_is_hardened() -> None:
    for name, one in compose()["services"].items():
        assert one["read_only"] is True, name
        assert one["cap_drop"] == ["ALL"], name
        assert one["security_opt"] == ["no-new-privileges:true"], name
        assert not one.keys() & {"privileged", "network_mode", "pid"}, name
        if name.startswith("agent-"):
            # To run tasks as another user, to end them, and to find them.
            assert one["user"] == "${YARD_UP_AGENT_USER:-0:0}", name
            needed = {"CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETUID", "SYS_PTRACE"}
            assert set(one["cap_add"]) == needed, name
        else:
            assert one["user"] == "${YARD_UP_USER:-10001:10001}", name
            assert "cap_add" not in one, name


def test_services_get_the_log_level_of_the_command() -> None:
    for name, one in compose()["services"].items():
        if one["image"].startswith("yardmaster-") and name != "setup":
            assert one["environment"]["YARD_LOG_LEVEL"] == "${YARD_LOG_LEVEL:-info}", name


def test_tasks_have_memory_to_share() -> None:
    for name, one in compose()["services"].items():
        assert ("shm_size" in one) is name.startswith("agent-"), name


def test_health_checks_cost_little() -> None:
    """Each is a process of its own, and there may be dozens of containers."""
    (every,) = re.findall(r"^HEALTHCHECK --interval=([0-9]+)s", DOCKERFILE.read_text(), re.M)
    assert int(every) >= 10
    for name, one in compose()["services"].items():
        if "healthcheck" in one:
            assert int(one["healthcheck"]["interval"].rstrip("s")) >= 5, name
            assert "python" not in " ".join(one["healthcheck"]["test"]), name


def test_ports_are_published_on_an_address_that_is_this_machines_by_default() -> None:
    for name, one in compose()["services"].items():
        for port in one.get("ports", []):
            assert port.startswith("${YARD_UP_ADDRESS:-127.0.0.1}:"), name


def test_secrets_are_files_and_never_in_the_environment() -> None:
    found = compose()
    assert all(one["file"].startswith("${YARD_UP_DATA") for one in found["secrets"].values())
    for name, one in found["services"].items():
        for variable, value in one.get("environment", {}).items():
            if re.search("PASSWORD|TOKEN|SECRET", variable):
                assert variable.endswith("_FILE"), f"{name}: {variable}"
                assert str(value).startswith("/run/secrets/"), name


def test_everything_waits_for_setup_which_waits_for_the_broker() -> None:
    services = compose()["services"]
    done = {"setup": {"condition": "service_completed_successfully"}}
    for name, one in services.items():
        expected: object = None if name in ("kafka", "redis") else done
        if name == "setup":
            expected = {"kafka": {"condition": "service_healthy"}}
        assert one.get("depends_on") == expected, name


def test_who_is_scaled_has_no_name_port_or_folder_that_two_would_share_in_anger() -> None:
    services = compose()["services"]
    for name in ("gateway", "quota", "scheduler", "views"):
        assert "container_name" not in services[name]
        assert "hostname" not in services[name]
    (port,) = services["gateway"]["ports"]
    assert "${YARD_UP_GATEWAY_PORTS:-7450-7459}:7450" in port
    folders = [volume for n in "123" for volume in services[f"agent-n{n}"]["volumes"]]
    assert len({folder for folder in folders if folder.endswith("/var/lib/yardmaster")}) == 3
