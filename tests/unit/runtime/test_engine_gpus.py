"""The request for GPUs, by what an engine says of itself."""

from typing import Any

import pytest

from yardmaster_runtime.engine_gpus import GpuChoice, GpuDriver, NoGpus, device_request, gpu_driver

NVIDIA: dict[str, Any] = {"Runtimes": {"runc": {}, "nvidia": {}}}
CDI = {"DiscoveredDevices": [{"Source": "cdi", "ID": f"nvidia.com/gpu={n}"} for n in ("0", "all")]}
OTHER_CDI = {"DiscoveredDevices": [{"Source": "cdi", "ID": "example.org/gpu=0"}]}
PODMAN = {"Components": [{"Name": "Podman Engine", "Version": "4.3.1"}, {"Name": "Conmon"}]}


@pytest.mark.parametrize(
    ("info", "wanted", "driver"),
    [
        (NVIDIA, "auto", GpuDriver.NVIDIA),
        (CDI, "auto", GpuDriver.CDI),
        (NVIDIA | CDI, "auto", GpuDriver.NVIDIA),
        (NVIDIA | CDI, "cdi", GpuDriver.CDI),
        ({}, "nvidia", GpuDriver.NVIDIA),
        ({}, "cdi", GpuDriver.CDI),
    ],
)
def test_the_driver_is_one_that_the_engine_has_or_the_one_that_is_set(
    info: dict[str, Any], wanted: GpuChoice, driver: GpuDriver
) -> None:
    assert gpu_driver({}, info, wanted) is driver


@pytest.mark.parametrize("info", [{}, {"Runtimes": {"runc": {}}}, OTHER_CDI])
def test_an_engine_without_gpus_is_refused_with_what_to_do(info: dict[str, Any]) -> None:
    with pytest.raises(NoGpus, match=r"neither a runtime of NVIDIA's nor CDI devices .* install"):
        gpu_driver({}, info)


@pytest.mark.parametrize("wanted", ["auto", "nvidia", "cdi"])
def test_podman_is_refused_whatever_is_set(wanted: GpuChoice) -> None:
    with pytest.raises(NoGpus, match="Podman ignores requests for GPUs"):
        gpu_driver(PODMAN, NVIDIA | CDI, wanted)


def test_each_driver_has_its_own_names_of_devices() -> None:
    assert device_request(GpuDriver.NVIDIA, ["GPU-1", "GPU-2"], NVIDIA) == {
        "Driver": "nvidia",
        "DeviceIDs": ["GPU-1", "GPU-2"],
        "Capabilities": [["gpu"]],
    }
    assert device_request(GpuDriver.CDI, ["0"], CDI) == {
        "Driver": "cdi",
        "DeviceIDs": ["nvidia.com/gpu=0"],
    }
    # Docker before 28.2 has CDI, and lists no devices.
    assert device_request(GpuDriver.CDI, ["1"], {})["DeviceIDs"] == ["nvidia.com/gpu=1"]


def test_a_device_that_the_engine_does_not_list_is_named() -> None:
    with pytest.raises(NoGpus) as raised:
        device_request(GpuDriver.CDI, ["0", "GPU-2"], CDI)
    assert str(raised.value).startswith(
        "the engine has no CDI device nvidia.com/gpu=GPU-2, but nvidia.com/gpu=0, "
        "nvidia.com/gpu=all: "
    )
