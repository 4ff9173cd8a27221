"""The way in which a container engine gives GPUs to a container.

Engines have two: the driver `nvidia`, which needs NVIDIA's runtime, and the driver `cdi`, which
gives devices of the Container Device Interface by name. Both come with NVIDIA's container toolkit.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, Literal

#: The kind of NVIDIA's GPUs in the Container Device Interface.
CDI_KIND: Final = "nvidia.com/gpu"
#: The setting that chooses the driver.
SETTING: Final = "YARD_AGENT_CONTAINER_GPUS"
#: The most devices that an error lists.
_MAX_LISTED: Final = 8

#: `auto`: as the engine can.
GpuChoice = Literal["auto", "nvidia", "cdi"]


class GpuDriver(StrEnum):
    """A device driver of an engine."""

    NVIDIA = "nvidia"
    CDI = "cdi"


class NoGpus(ValueError):
    """The engine gives no GPUs to containers; the message says why, and what to do."""


def gpu_driver(
    version: Mapping[str, Any], info: Mapping[str, Any], wanted: GpuChoice = "auto"
) -> GpuDriver:
    """Return the driver that is requested from an engine, by its answers to `/version` and `/info`.

    `auto` takes NVIDIA's runtime if the engine has it, because it also works with older engines,
    and CDI if it lists GPUs.

    Raises: NoGpus.
    """
    if is_podman(version):
        raise NoGpus("Podman ignores requests for GPUs: run Docker on nodes with GPUs")
    if wanted != "auto":
        return GpuDriver(wanted)
    if runtimes(info):
        return GpuDriver.NVIDIA
    if cdi_devices(info):
        return GpuDriver.CDI
    raise NoGpus(
        f"the engine has neither a runtime of NVIDIA's nor CDI devices of {CDI_KIND}: install "
        "NVIDIA's container toolkit, then restart the engine"
    )


def device_request(
    driver: GpuDriver, devices: Sequence[str], info: Mapping[str, Any]
) -> dict[str, object]:
    """Return the element of `DeviceRequests` for GPUs by their CUDA names.

    Raises: NoGpus: the engine lists its CDI devices without one of these.
    """
    if driver is GpuDriver.NVIDIA:
        return {"Driver": "nvidia", "DeviceIDs": list(devices), "Capabilities": [["gpu"]]}
    names = [f"{CDI_KIND}={device}" for device in devices]
    listed = cdi_devices(info)
    missing = [name for name in names if name not in listed]
    if missing and "DiscoveredDevices" in info:
        has = ", ".join(listed[:_MAX_LISTED]) or "none"
        raise NoGpus(
            f"the engine has no CDI device {', '.join(missing)}, but {has}: let nvidia-ctk write "
            "the specification again, or set YARD_AGENT_DEVICES to the names that it has"
        )
    return {"Driver": "cdi", "DeviceIDs": names}


def is_podman(version: Mapping[str, Any]) -> bool:
    """Return whether an engine is Podman, by its answer to `/version`."""
    return any(each.get("Name") == "Podman Engine" for each in version.get("Components") or ())


def runtimes(info: Mapping[str, Any]) -> list[str]:
    """Return the names of NVIDIA's runtimes that an engine has."""
    return sorted(name for name in info.get("Runtimes") or () if name.startswith("nvidia"))


def cdi_devices(info: Mapping[str, Any]) -> list[str]:
    """Return the full names of the GPUs that an engine lists as CDI devices."""
    names = (str(each.get("ID")) for each in info.get("DiscoveredDevices") or ())
    return [name for name in names if name.startswith(f"{CDI_KIND}=")]
