"""Is the key of a GPU what NVML's numbers mean? Readings of real products, as their drivers give them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rooftile.device import parse_device_key
from rooftile.errors import DeviceError
from rooftile.gpu_detect import GpuReading, arch_of_capability, describe, local_gpus, visible

MIB = 1 << 20


def reading(**more: object) -> GpuReading:
    base = GpuReading(
        index=0,
        uuid="GPU-5fd4f087-86f3-7a43-b711-4771313afc50",
        name="NVIDIA H200",
        pci_device_id=0x233510DE,
        pci_bus_id="00000000:18:00.0",
        compute_capability=(9, 0),
        cores=16896,
        memory_bytes=143771 * MIB,
        power_limit_mw=700000,
        driver="570.86.15",
        max_sm_mhz=1980,
        max_memory_mhz=3201,
    )
    return replace(base, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "key", "arch"),
    [
        ({}, "gpu-2335-132sm-141g-p700", "sm_90a"),
        # H100 80GB HBM3 shows 81559 MiB under driver 535 and 81559 or 81920 under others.
        (
            {"name": "NVIDIA H100 80GB HBM3", "pci_device_id": 0x233010DE, "memory_bytes": 81559 * MIB},
            "gpu-2330-132sm-80g-p700",
            "sm_90a",
        ),
        (
            {
                "name": "NVIDIA A100-SXM4-40GB",
                "pci_device_id": 0x20B010DE,
                "compute_capability": (8, 0),
                "cores": 6912,
                "memory_bytes": 40960 * MIB,
                "power_limit_mw": 400000,
            },
            "gpu-20b0-108sm-40g-p400",
            "sm_80",
        ),
        (
            {
                "name": "Tesla V100-SXM2-16GB",
                "pci_device_id": 0x1DB110DE,
                "compute_capability": (7, 0),
                "cores": 5120,
                "memory_bytes": 16160 * MIB,
                "power_limit_mw": 300000,
            },
            "gpu-1db1-80sm-16g-p300",
            "sm_70",
        ),
        (
            {
                "name": "NVIDIA GeForce RTX 4090",
                "pci_device_id": 0x268410DE,
                "compute_capability": (8, 9),
                "cores": 16384,
                "memory_bytes": 24564 * MIB,
                "power_limit_mw": 449999,
            },
            "gpu-2684-128sm-24g-p450",
            "sm_89",
        ),
        # The same product, set to less power, is another device.
        ({"power_limit_mw": 400000}, "gpu-2335-132sm-141g-p400", "sm_90a"),
        ({"power_limit_mw": None}, "gpu-2335-132sm-141g-p1", "sm_90a"),
        (
            {"name": "NVIDIA H200 MIG 1g.18gb", "mig_sms": 16, "memory_bytes": 16384 * MIB},
            "gpu-2335-16sm-16g-mig1g.18gb-p700",
            "sm_90a",
        ),
        (
            {"name": "NVIDIA H100 80GB HBM3 MIG 1g.10gb+me", "mig_sms": 16, "memory_bytes": 9856 * MIB},
            "gpu-2335-16sm-10g-mig1g.10gb.me-p700",
            "sm_90a",
        ),
    ],
)
def test_keys_of_products(change: dict[str, object], key: str, arch: str) -> None:
    found = describe(reading(**change))
    assert (found.key, found.arch) == (key, arch)
    assert parse_device_key(found.key) == found.device_key


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"compute_capability": (7, 5), "name": "Tesla T4"},
            "compute capability 7.5; there are kernels for sm_70",
        ),
        ({"cores": None}, "counts None cores"),
        ({"cores": 16900}, "no multiple of 128"),
        ({"mig_sms": 16}, "does not tell its profile"),
    ],
)
def test_what_has_no_key_is_refused(change: dict[str, object], says: str) -> None:
    with pytest.raises(DeviceError, match=says):
        describe(reading(**change))


def test_archs() -> None:
    found = {arch_of_capability(*c) for c in ((7, 0), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0))}
    assert found == {"sm_70", "sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a"}
    assert arch_of_capability(10, 3) is None


def test_cuda_visible_devices() -> None:
    first, second, mig = (
        reading(),
        reading(index=1, uuid="GPU-aaaa"),
        reading(index=2, uuid="MIG-bbbb", mig_sms=16),
    )
    every = [first, second, mig]
    assert visible(every, {}) == every
    for text, wanted in (
        ("", []),
        ("1", [second]),
        ("1,0", [second, first]),
        ("GPU-5fd4", [first]),
        ("MIG-bbbb", [mig]),
        ("0,7,1", [first]),
        ("GPU-", []),  # not unique
        ("-1", []),
    ):
        assert visible(every, {"CUDA_VISIBLE_DEVICES": text}) == wanted, text


class FakePci:
    pciDeviceId = 0x233510DE  # noqa: N815 - NVML's name
    busId = b"00000000:18:00.0"  # noqa: N815


class Nvml:
    """pynvml of a machine with one H200 whose driver does not tell the power limit; answers are recorded."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM = 1, 2

    class NVMLError(Exception):
        pass

    def __getattr__(self, name: str) -> object:
        answers: dict[str, object] = {
            "nvmlSystemGetDriverVersion": b"570.86.15",
            "nvmlDeviceGetCount": 1,
            "nvmlDeviceGetHandleByIndex": "handle",
            "nvmlDeviceGetPciInfo": FakePci(),
            "nvmlDeviceGetCudaComputeCapability": (9, 0),
            "nvmlDeviceGetUUID": "GPU-5fd4f087",
            "nvmlDeviceGetName": b"NVIDIA H200",
            "nvmlDeviceGetNumGpuCores": 16896,
            "nvmlDeviceGetMemoryInfo": type("Memory", (), {"total": 143771 * MIB})(),
            "nvmlDeviceGetMaxClockInfo": 1980,
            "nvmlDeviceGetMigMode": (0, 0),
        }

        def call(*_arguments: object) -> object:
            if name not in answers:
                raise self.NVMLError(f"{name}: Not Supported")
            return answers[name]

        return call


def test_reading_nvml() -> None:
    found = local_gpus(Nvml(), {})
    assert [gpu.key for gpu in found] == ["gpu-2335-132sm-141g-p1"]
    assert found[0].driver == "570.86.15"
    with pytest.raises(DeviceError, match="CUDA_VISIBLE_DEVICES"):
        local_gpus(Nvml(), {"CUDA_VISIBLE_DEVICES": ""})


def test_without_a_driver_one_sentence() -> None:
    pynvml = pytest.importorskip("pynvml")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        with pytest.raises(DeviceError, match="no NVIDIA driver is usable"):
            local_gpus()
    else:
        pytest.skip("this machine has a driver")
