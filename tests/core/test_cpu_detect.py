"""Is the CPU at hand described rightly, on bare metal, in containers, and where Linux hides half of it?

The trees are small copies of the files that Linux shows.
"""

import os
from pathlib import Path

import pytest
from rooftile.cpu_detect import cgroup_cpus, detect, parse_cpu_list
from rooftile.device import local_cpu, parse_device_key
from rooftile.errors import DeviceError

from search_space.device import device_of

FLAGS = "fpu avx avx2 bmi1 bmi2 f16c fma movbe abm"
V4 = " avx512f avx512bw avx512cd avx512dq avx512vl avx512_vnni avx512_bf16"


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def cpuinfo(
    cpus: int,
    threads_per_core: int = 1,
    flags: str = FLAGS,
    vendor: str = "AuthenticAMD",
    family: int = 25,
    model: int = 1,
    ids: bool = True,
) -> str:
    blocks = []
    cores = cpus // threads_per_core
    for cpu in range(cpus):
        lines = [
            f"processor\t: {cpu}",
            f"vendor_id\t: {vendor}",
            f"cpu family\t: {family}",
            f"model\t\t: {model}",
            "model name\t: AMD  EPYC 7763 64-Core Processor",
        ]
        if ids:
            lines += ["physical id\t: 0", f"core id\t\t: {cpu % cores}"]
        blocks.append("\n".join([*lines, f"flags\t\t: {flags}"]) + "\n")
    return "\n".join(blocks)


def caches(cpu: int, l3_shared: str) -> dict[str, str]:
    base = f"sys/devices/system/cpu/cpu{cpu}/cache"
    rows = [
        ("1", "Data", "32K", str(cpu)),
        ("1", "Instruction", "64K", str(cpu)),
        ("2", "Unified", "512K", str(cpu)),
        ("3", "Unified", "32768K", l3_shared),
    ]
    files = {}
    for i, (level, kind, size, shared) in enumerate(rows):
        names = {"level": level, "type": kind, "size": size, "shared_cpu_list": shared}
        files |= {f"{base}/index{i}/{name}": value + "\n" for name, value in names.items()}
    return files


def usable(n: int) -> frozenset[int]:
    return frozenset(range(n))


def test_plain_machine(tmp_path: Path) -> None:
    root = write(
        tmp_path, {"proc/cpuinfo": cpuinfo(4)} | caches(0, "0-1") | caches(1, "0-1") | caches(2, "2-3")
    )
    cpu = detect(root, usable(4))
    assert cpu.key == "cpu-amd-25-1-4c-x86-64-v3"
    assert cpu.name == "AMD EPYC 7763 64-Core Processor"
    assert (cpu.l1d_bytes, cpu.l2_bytes, cpu.llc_bytes) == (32 * 1024, 512 * 1024, 32 * 2**20)
    assert cpu.llc_total_bytes == 2 * 32 * 2**20  # two complexes
    assert cpu.one_per_core == (0, 1, 2, 3)


def test_hyper_threads_count_once_by_sysfs(tmp_path: Path) -> None:
    files = {"proc/cpuinfo": cpuinfo(8, ids=False)}
    for n in range(8):
        files[f"sys/devices/system/cpu/cpu{n}/topology/thread_siblings_list"] = f"{n % 4},{n % 4 + 4}\n"
    root = write(tmp_path, files)
    assert detect(root, usable(8)).cores == 4
    assert detect(root, usable(8)).one_per_core == (0, 1, 2, 3)
    assert detect(root, frozenset({1, 5, 6})).one_per_core == (1, 6)


def test_hyper_threads_count_once_by_cpuinfo_alone(tmp_path: Path) -> None:
    root = write(tmp_path, {"proc/cpuinfo": cpuinfo(8, threads_per_core=2)})
    assert detect(root, usable(8)).cores == 4


def test_hidden_topology_counts_every_cpu(tmp_path: Path) -> None:
    root = write(tmp_path, {"proc/cpuinfo": cpuinfo(3, ids=False)})
    assert detect(root, usable(3)).cores == 3


def test_affinity_limits_the_cores(tmp_path: Path) -> None:
    root = write(tmp_path, {"proc/cpuinfo": cpuinfo(8)})
    assert detect(root, frozenset({2, 7})).key == "cpu-amd-25-1-2c-x86-64-v3"


@pytest.mark.parametrize(
    ("limit", "cores"),
    [
        ("200000 100000", 2),
        ("150000 100000", 1),
        ("50000 100000", 1),
        ("max 100000", 8),
        ("900000 100000", 8),
    ],
)
def test_cgroup_v2_quota(tmp_path: Path, limit: str, cores: int) -> None:
    files = {
        "proc/cpuinfo": cpuinfo(8),
        "proc/self/cgroup": "0::/app/web\n",
        "sys/fs/cgroup/app/cpu.max": limit + "\n",
        "sys/fs/cgroup/app/web/cpu.max": "max 100000\n",
    }
    assert detect(write(tmp_path, files), usable(8)).cores == cores


def test_cgroup_v2_in_a_container_whose_path_is_the_hosts(tmp_path: Path) -> None:
    files = {"proc/self/cgroup": "0::/docker/abc\n", "sys/fs/cgroup/cpu.max": "300000 100000\n"}
    assert cgroup_cpus(write(tmp_path, files)) == 3.0


def test_cgroup_v1_quota(tmp_path: Path) -> None:
    files = {
        "proc/cpuinfo": cpuinfo(8),
        "proc/self/cgroup": "4:memory:/x\n3:cpu,cpuacct:/x\n1:cpuset:/x\n0::/\n",
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "400000\n",
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_quota_us": "-1\n",
        "sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_period_us": "100000\n",
    }
    assert detect(write(tmp_path, files), usable(8)).cores == 4


def test_nonsense_in_cgroup_files_is_no_limit(tmp_path: Path) -> None:
    files = {"proc/self/cgroup": "garbage\n0::/../../etc\n", "sys/fs/cgroup/cpu.max": "much more\n"}
    assert cgroup_cpus(write(tmp_path, files)) is None


def test_hidden_caches_come_from_the_data(tmp_path: Path) -> None:
    cpu = detect(write(tmp_path, {"proc/cpuinfo": cpuinfo(2)}), usable(2))
    assert (cpu.l1d_bytes, cpu.l2_bytes, cpu.llc_bytes, cpu.llc_total_bytes) == (None, None, None, None)
    device = device_of(cpu)
    assert (device.l1d_bytes, device.l2_bytes, device.llc_bytes) == (32 * 1024, 512 * 1024, 32 * 2**20)
    assert device.sources["llc_bytes"] == "data"


def test_caches_that_are_shown_go_before_the_data(tmp_path: Path) -> None:
    files = {"proc/cpuinfo": cpuinfo(2, model=999)} | caches(0, "0-1")
    device = device_of(detect(write(tmp_path, files), usable(2)))
    assert (device.llc_bytes, device.sources["llc_bytes"], device.sources["ghz"]) == (
        32 * 2**20,
        "detected",
        "generic",
    )


def test_extensions_and_vendor(tmp_path: Path) -> None:
    text = cpuinfo(2, flags=FLAGS + V4, vendor="GenuineIntel", family=6, model=143)
    assert (
        detect(write(tmp_path, {"proc/cpuinfo": text}), usable(2)).key
        == "cpu-intel-6-143-2c-x86-64-v4-vnni-bf16"
    )


def test_unknown_vendor_still_makes_a_key_that_parses(tmp_path: Path) -> None:
    root = write(tmp_path, {"proc/cpuinfo": cpuinfo(1, vendor="8th Wonder & Sons, Ltd.")})
    key = detect(root, usable(1)).key
    assert str(parse_device_key(key)) == key


def test_machines_without_kernels_of_ours_say_why(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="only Linux"):
        detect(tmp_path, usable(1))
    with pytest.raises(DeviceError, match="no x86 CPU"):
        detect(write(tmp_path / "arm", {"proc/cpuinfo": "processor\t: 0\nFeatures\t: fp asimd\n"}), usable(1))
    old = cpuinfo(1, flags=FLAGS.replace(" avx2", ""))
    with pytest.raises(DeviceError, match="lacks avx2"):
        detect(write(tmp_path / "old", {"proc/cpuinfo": old}), usable(1))
    with pytest.raises(DeviceError, match="none of the CPUs"):
        detect(write(tmp_path / "other", {"proc/cpuinfo": cpuinfo(1)}), frozenset({5}))


def test_cpu_lists() -> None:
    assert parse_cpu_list("0-2,5\n") == [0, 1, 2, 5]
    assert parse_cpu_list("") == []
    assert parse_cpu_list("x-y,3") == [3]


def test_this_machine() -> None:
    cpu = local_cpu()
    assert str(parse_device_key(cpu.key)) == cpu.key
    assert 1 <= cpu.cores <= len(os.sched_getaffinity(0))
    assert len(cpu.one_per_core) == cpu.cores
    assert set(cpu.one_per_core) <= set(cpu.logical_cpus) == os.sched_getaffinity(0)
