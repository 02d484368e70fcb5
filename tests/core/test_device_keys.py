"""Do device keys survive the round trip, and are malformed ones refused as field `device`?"""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rooftile.device import ARCHS, X86_ARCHS, CpuKey, GpuKey, arch_of, check_arch, parse_device_key
from rooftile.errors import DeviceError, FieldError

cpus = st.builds(
    CpuKey,
    vendor=st.sampled_from(["intel", "amd", "hygon", "x86maker"]),
    family=st.integers(0, 9999),
    model=st.integers(0, 9999),
    cores=st.integers(1, 99999),
    arch=st.sampled_from(X86_ARCHS),
)
gpus = st.builds(
    GpuKey,
    pci_device_id=st.from_regex(r"[0-9a-f]{4}", fullmatch=True),
    sms=st.integers(1, 9999),
    memory_gib=st.integers(1, 99999),
    mig_profile=st.sampled_from([None, "1g.18gb", "3g.40gb", "1g.10gb.me"]),
    power_class=st.integers(1, 99999),
)


@given(key=cpus | gpus)
def test_round_trip(key: CpuKey | GpuKey) -> None:
    assert parse_device_key(str(key)) == key
    assert str(parse_device_key(str(key))) == str(key)


def test_spelling() -> None:
    assert str(CpuKey("amd", 25, 1, 2, "x86-64-v3")) == "cpu-amd-25-1-2c-x86-64-v3"
    assert str(GpuKey("2335", 132, 141, None, 700)) == "gpu-2335-132sm-141g-p700"
    assert str(GpuKey("2335", 16, 18, "1g.18gb", 700)) == "gpu-2335-16sm-18g-mig1g.18gb-p700"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "cpu",
        "gpu",
        "auto",
        "NVIDIA H200",
        "cpu-amd-25-1-2c",
        "cpu-amd-25-1-2c-sm_90a",
        "cpu-amd-25-1-2c-x86-64-v2",
        "cpu-amd-25-1-0c-x86-64-v3",
        "cpu-amd-25-1-02c-x86-64-v3",
        "cpu-amd-025-1-2c-x86-64-v3",
        "cpu-amd-25-1-2-x86-64-v3",
        "cpu-amd--1-2c-x86-64-v3",
        "cpu-AMD-25-1-2c-x86-64-v3",
        "cpu-amd-25-1-2c-x86-64-v4-bf16-vnni",
        "cpu-amd-25-1-2c-x86-64-v3-vnni",
        "cpu-amd-25-1-2c-x86-64-v3\n",
        " cpu-amd-25-1-2c-x86-64-v3",
        "gpu-2335-132sm-141g",
        "gpu-2335-132sm-141g-p0",
        "gpu-233-132sm-141g-p700",
        "gpu-233g-132sm-141g-p700",
        "gpu-2335-132sm-141g-mig-p700",
        "gpu-2335-132sm-141g-p700x",
        "gpu-2335-\u0661\u0663sm-141g-p700",
        "x" * 10**6,
        None,
        5,
        True,
        ["cpu-amd-25-1-2c-x86-64-v3"],
        {},
    ],
)
def test_malformed_keys(text: object) -> None:
    with pytest.raises(FieldError) as caught:
        parse_device_key(text)
    assert caught.value.field == "device"
    assert len(str(caught.value)) < 500


def test_nearest_key() -> None:
    with pytest.raises(FieldError) as caught:
        parse_device_key(" CPU-AMD-25-1-2C-X86-64-V3 ")
    assert caught.value.nearest == "cpu-amd-25-1-2c-x86-64-v3"


def test_arch_names() -> None:
    assert ARCHS[:7] == ("sm_70", "sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a")
    for name in ARCHS:
        assert check_arch(name) == name
    for wrong, nearest in (("sm_90", "sm_90a"), ("x86-64-v4-bf16-vnni", "x86-64-v4-vnni-bf16"), (7, None)):
        with pytest.raises(FieldError) as caught:
            check_arch(wrong)
        assert (caught.value.field, caught.value.nearest) == ("arch", nearest)


V3 = ["avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "abm"]
V4 = [*V3, *["avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"]]


@pytest.mark.parametrize(
    ("features", "arch"),
    [
        (V3, "x86-64-v3"),
        ([*V3, "avx512f"], "x86-64-v3"),
        ([*V3, "avx_vnni", "avx512_vnni"], "x86-64-v3"),
        (V4, "x86-64-v4"),
        ([*V4, "avx512_vnni"], "x86-64-v4-vnni"),
        ([*V4, "avx512_bf16", "avx512_vnni"], "x86-64-v4-vnni-bf16"),
    ],
)
def test_arch_of_features(features: list[str], arch: str) -> None:
    assert arch_of(features) == arch
    assert arch in ARCHS


def test_a_cpu_without_avx2_is_refused_with_what_it_lacks() -> None:
    with pytest.raises(DeviceError, match="lacks avx2;"):
        arch_of(set(V3) - {"avx2"})
