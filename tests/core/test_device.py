"""Does every CPU key have usable numbers, and does a stored device come back as it was?"""

import json

import pytest
from rooftile.device import ARCHS, X86_ARCHS
from rooftile.errors import FieldError

from search_space.arch import get_arch
from search_space.cpu_device import CpuDevice
from search_space.device import Device, arch_of_key, local_device
from search_space.device_data.amd import AMD
from search_space.device_data.gpus import GPUS
from search_space.device_data.intel import INTEL
from search_space.errors import UnknownDevice
from search_space.gpu_device import GpuDevice, as_gpu


def test_archs() -> None:
    v3, v4 = get_arch("x86-64-v3"), get_arch("x86-64-v4-vnni-bf16")
    assert (v3.lanes("f32"), v3.vector_registers, v3.masked) == (8, 16, False)
    assert (v4.lanes("f32"), v4.lanes("bf16"), v4.vector_registers, v4.masked) == (16, 32, 32, True)
    assert get_arch("sm_90a").kind == "cuda"
    with pytest.raises(FieldError, match="sm_90a"):
        get_arch("sm_90")


def test_peaks_of_known_cores() -> None:
    # Zen 3: two 256-bit FMA a cycle = 32 f32 flops. Sapphire Rapids: two of 512 = 64.
    zen3 = Device.for_key("cpu-amd-25-1-2c-x86-64-v3")
    assert zen3.flops_per_cycle("f32") == 32
    assert zen3.flops_per_cycle("f64") == 16
    assert zen3.codename == "zen3-server"
    spr = "cpu-intel-6-143-4c-x86-64-v4-vnni-bf16"
    assert Device.for_key(spr).flops_per_cycle("f32") == 64
    # AVX2 code fills half of a 512-bit unit.
    assert Device.for_key("cpu-intel-6-143-4c-x86-64-v3").flops_per_cycle("f32") == 32
    # Zen 4 has AVX-512 but no wider units for it.
    assert Device.for_key("cpu-amd-25-17-4c-x86-64-v4-vnni-bf16").flops_per_cycle("f32") == 32
    assert zen3.peak_gflops(cores=1) * 2 == zen3.peak_gflops()


@pytest.mark.parametrize("arch", X86_ARCHS)
def test_unknown_cpus_get_generic_numbers_and_say_so(arch: str) -> None:
    device = Device.for_key(f"cpu-acme-1-2-3c-{arch}")
    assert set(device.sources.values()) == {"generic"}
    assert device.peak_gflops() > 0
    assert device.memory_gbs() > 0


def test_no_two_entries_claim_one_cpu_and_all_are_plausible() -> None:
    for table in (INTEL, AMD):
        claimed: dict[tuple[int, int], str] = {}
        for entry in table:
            for low, high in entry.models:
                for model in range(low, high + 1):
                    assert (entry.family, model) not in claimed, (entry, claimed.get((entry.family, model)))
                    claimed[entry.family, model] = entry.codename
            assert entry.fma_units in (1, 2)
            assert entry.fma_bits in (128, 256, 512)
            assert 1.5 < entry.ghz < 6
            assert entry.l1d_bytes < entry.l2_bytes < entry.llc_bytes
            assert entry.dram_gbs_core <= entry.dram_gbs


def test_stored_devices_come_back() -> None:
    here = local_device()
    assert Device.from_json(here.to_json()) == here
    old = {"key": here.key, "l2_bytes": 12345, "sources": {"l2_bytes": "detected"}}
    back = CpuDevice.from_json(old)
    assert back.l2_bytes == 12345
    assert back.ghz == here.ghz
    hash(here)


def test_a_gpu_has_its_products_numbers_and_its_keys_own() -> None:
    a100 = Device.for_key("gpu-20b2-108sm-80g-p400")
    assert isinstance(a100, GpuDevice)
    assert (a100.kind, a100.arch.name, a100.sms, a100.memory_bytes) == ("cuda", "sm_80", 108, 80 * 2**30)
    assert (a100.peak_gflops("bf16"), a100.peak_gflops("s8"), a100.peak_gflops("e4m3")) == (312e3, 624e3, 0)
    assert (a100.memory_gbs(), a100.l2_bytes) == (2039, 40 * 2**20)
    assert (a100.smem_block_bytes, a100.smem_sm_bytes) == (166912, 167936)
    capped = Device.for_key("gpu-20b2-54sm-40g-p300")  # no MIG: fewer SMs, the same memory system
    assert isinstance(capped, GpuDevice)
    assert (capped.sms, capped.power_watts, capped.memory_gbs()) == (54, 300, 2039)
    assert capped.peak_gflops("bf16") == 156e3


def test_a_mig_instance_has_its_share() -> None:
    mig = Device.for_key("gpu-20b2-14sm-10g-mig1g.10gb-p400")
    assert isinstance(mig, GpuDevice)
    assert mig.memory_gbs() == 2039 / 8
    assert mig.l2_bytes == 5 * 2**20
    assert mig.peak_gflops("f16") == 312e3 * 14 / 108


def test_every_gpu_of_the_data_has_a_device_with_sane_numbers() -> None:
    for pci, model in GPUS.items():
        device = Device.for_key(f"gpu-{pci}-{model.sms}sm-{model.memory_gib}g-p{model.power_watts}")
        assert isinstance(device, GpuDevice)
        limits = device.arch.limits
        assert device.name == model.name
        assert limits.smem_block_bytes + limits.smem_reserved_bytes == limits.smem_sm_bytes
        # A tensor core does 2^k operations a cycle and SM; data sheets round, and clocks differ by product.
        rate = device.peak_gflops("f16") / device.sms / device.ghz
        assert any(0.8 < rate / per_cycle < 1.05 for per_cycle in (512, 1024, 2048, 4096, 8192)), (pci, rate)
        assert 0.2 < device.memory_gbs() / 1000 < 10
        again = Device.from_json(json.loads(json.dumps(device.to_json())))
        assert again == device
        assert hash(again) == hash(device)


def test_every_arch_has_a_typical_device() -> None:
    for name in ARCHS:
        device = Device.for_arch(name)
        assert device.arch.name == name
        assert Device.for_key(device.key) == device
    with pytest.raises(FieldError, match="sm_80"):
        Device.for_arch("sm_81")


def test_a_gpu_without_data_is_told_by_its_id() -> None:
    assert arch_of_key("gpu-2335-132sm-141g-p700") == "sm_90a"
    assert arch_of_key("gpu-ffff-1sm-1g-p1") is None
    assert arch_of_key("cpu-amd-25-1-2c-x86-64-v3") == "x86-64-v3"
    with pytest.raises(UnknownDevice, match="PCI device id ffff"):
        Device.for_key("gpu-ffff-1sm-1g-p1")
    with pytest.raises(FieldError):
        Device.for_key("my laptop")


def test_the_kinds_are_told_apart() -> None:
    with pytest.raises(TypeError, match="no CpuDevice"):
        CpuDevice.for_key("gpu-2335-132sm-141g-p700")
    with pytest.raises(TypeError, match="no GPU"):
        as_gpu(local_device())
