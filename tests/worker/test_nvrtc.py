"""Does the same CUDA recipe give the same cubin and PTX anywhere, and is what the log says kept as data?"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from support.planted_cuda import KINDS, SOURCE, spec, template, write_cuda_template

from worker.compile import Artifact, compile_kernel, cuda, get_toolchain, rebuild
from worker.compile.cubin import CubinError, summarise
from worker.compile.nvrtc import cuda_archs_here, find_nvrtc
from worker.compile.sources import gather
from worker.errors import RebuildError

ARCHS = ("sm_70", "sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_cuda_template(tmp_path / "kernels")


def test_two_roots_give_the_same_bytes_and_the_same_key(tmp_path: Path, root: Path) -> None:
    other_root = write_cuda_template(tmp_path / "some where" / "else")
    one = compile_kernel(spec(), home=tmp_path / "a", root=root)
    other = compile_kernel(spec(), home=tmp_path / "b", root=other_root)
    assert not other.cached
    assert one.data == other.data
    assert one.ptx == other.ptx
    assert (one.sha256, one.recipe, one.log) == (other.sha256, other.recipe, other.log)
    for text in (one.data, one.ptx or b"", str(one.recipe).encode(), one.log.encode()):
        for path in (str(tmp_path), sys.prefix, "site-packages"):
            assert path.encode() not in text


def test_lines_are_told_under_virtual_names(tmp_path: Path, root: Path) -> None:
    artifact = compile_kernel(spec(), home=tmp_path / "h", root=root)
    assert artifact.ptx is not None
    files = [line.split('"')[1] for line in artifact.ptx.decode().splitlines() if ".file" in line]
    assert all(name.startswith("/rooftile/kernels/cuda/") for name in files)
    assert "/rooftile/kernels/cuda/include/ptx/twice.cuh" in files
    # The multiplication stands in line 4 of the header, whatever was included before it.
    number = files.index("/rooftile/kernels/cuda/include/ptx/twice.cuh") + 1
    assert f".loc\t{number} 4 " in artifact.ptx.decode()


def test_the_environment_is_not_in_the_bytes(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = (
        "import sys; from pathlib import Path; from support.planted_cuda import spec\n"
        "from worker.compile import compile_kernel\n"
        "print(compile_kernel(spec(), home=Path(sys.argv[1]), root=Path(sys.argv[2])).sha256)\n"
    )
    hashes = set()
    for number, extra in enumerate(
        ({}, {"NVRTC_DISABLE_PCH": "1", "LANG": "de_DE.UTF-8", "CPPCX_INCLUDE_PATH": "/x"})
    ):
        env = {**os.environ, **extra, "PYTHONPATH": "tests:."}
        done = subprocess.run(
            [sys.executable, "-c", script, str(tmp_path / f"h{number}"), str(root)],
            env=env, capture_output=True, text=True, check=True,
        )  # fmt: skip
        hashes.add(done.stdout.strip())
    assert len(hashes) == 1


@pytest.mark.parametrize("arch", ARCHS)
def test_every_arch_compiles_with_the_nvrtc_that_knows_it(tmp_path: Path, root: Path, arch: str) -> None:
    assert arch in cuda_archs_here()
    artifact = compile_kernel(spec(arch=arch), home=tmp_path / "h", root=root)
    assert artifact.toolchain["compiler"] == "nvrtc"
    assert str(artifact.toolchain["version"]).startswith("12.9." if arch == "sm_70" else "13.")
    assert artifact.toolchain["version"].count(".") == 2  # with the build, which 13.5 would leave out
    assert artifact.arch == arch
    assert artifact.ptx is not None
    assert f".target {arch}" in artifact.ptx.decode()
    found = summarise(artifact.data)
    assert found.entries == ("gemm",)
    assert f"sm_{found.sm}" == arch.rstrip("a")


def test_hit_and_miss_give_the_same_record(tmp_path: Path, root: Path) -> None:
    miss = compile_kernel(spec(), home=tmp_path / "h", root=root)
    hit = compile_kernel(spec(), home=tmp_path / "h", root=root)
    assert (miss.cached, hit.cached) == (False, True)
    assert hit == miss
    assert (hit.ptx, hit.log, hit.resources, hit.recipe) == (miss.ptx, miss.log, miss.resources, miss.recipe)


def test_resources_are_those_of_the_kernel(tmp_path: Path, root: Path) -> None:
    artifact = compile_kernel(spec("shared"), home=tmp_path / "h", root=root)
    mine = artifact.resources["entries"]["gemm"]
    assert mine["static_smem_bytes"] == 64 * 4
    assert mine["barriers"] == 1
    assert 8 <= mine["registers"] <= 32
    assert mine["spill_stores_bytes"] == mine["spill_loads_bytes"] == mine["stack_bytes"] == 0
    assert mine["constant_bytes"] >= 12  # a pointer and an int, at least
    assert artifact.resources["registers"] == mine["registers"]
    assert artifact.resources["size_bytes"] == len(artifact.data)
    plain = compile_kernel(spec("good"), home=tmp_path / "h", root=root)
    assert plain.resources["static_smem_bytes"] == plain.resources["barriers"] == 0
    assert "Compile time" not in artifact.log


def test_arch_defines_flags_headers_and_template_are_in_the_key(tmp_path: Path, root: Path) -> None:
    home = tmp_path / "h"
    plain = compile_kernel(spec(), home=home, root=root)
    others = [
        compile_kernel(spec(number=1), home=home, root=root),
        compile_kernel(spec(flags=("--maxrregcount=40",)), home=home, root=root),
        compile_kernel(spec(arch="sm_89"), home=home, root=root),
    ]
    header = root / "cuda" / "include" / "ptx" / "one.cuh"
    header.write_text(header.read_text() + "// changed\n")
    others.append(compile_kernel(spec(), home=home, root=root))
    source = root / SOURCE
    source.write_text(source.read_text() + "\n")
    others.append(compile_kernel(spec(), home=home, root=root))
    assert not any(other.cached for other in others)
    assert len({str(each.recipe) for each in [plain, *others]}) == 6


def test_includes_of_both_spellings_are_followed_and_made_full_names(root: Path) -> None:
    sources = gather(SOURCE, root)
    assert [name for name, _ in sources.files] == [
        "cuda/gemm/planted.cu",
        "cuda/include/ptx/one.cuh",
        "cuda/include/ptx/twice.cuh",
    ]
    texts = dict(sources.virtual())
    main = texts[f"/rooftile/kernels/{SOURCE}"]
    assert main.startswith(
        '#include "/rooftile/kernels/cuda/include/ptx/twice.cuh"\n'
        '#include "/rooftile/kernels/cuda/include/ptx/one.cuh"\n'
    )
    # A header includes its neighbour by its bare name.
    assert (
        '"/rooftile/kernels/cuda/include/ptx/one.cuh"'
        in texts["/rooftile/kernels/cuda/include/ptx/twice.cuh"]
    )
    assert main.count("\n") == template().count("\n")


def test_a_rebuilt_artifact_has_the_hash_it_had(tmp_path: Path, root: Path) -> None:
    built = compile_kernel(spec(), home=tmp_path / "one", root=root)
    again = rebuild(built.recipe, built.sha256, home=tmp_path / "other", root=root)
    assert (again.data, again.ptx, again.log) == (built.data, built.ptx, built.log)
    changed = {**built.recipe, "toolchain": {**built.toolchain, "version": "13.0.1"}}
    with pytest.raises(RebuildError, match="version"):
        rebuild(changed, built.sha256, home=tmp_path / "other", root=root)
    (root / SOURCE).unlink()
    with pytest.raises(RebuildError, match="missing"):
        rebuild(built.recipe, built.sha256, home=tmp_path / "third", root=root)


def test_the_toolchain_is_known_before_anything_is_built(root: Path) -> None:
    toolchain = get_toolchain("sm_80", SOURCE, root=root)
    assert toolchain.version == find_nvrtc("sm_80").version
    assert "-arch=sm_80" in toolchain.flags
    assert "-lineinfo" in toolchain.flags
    assert toolchain.key == get_toolchain("sm_80", SOURCE, root=root).key
    assert toolchain.key != get_toolchain("sm_86", SOURCE, root=root).key


def test_the_compiling_process_is_lean(tmp_path: Path, root: Path) -> None:
    compile_kernel(spec(), home=tmp_path / "h", root=root)
    pid = find_nvrtc("sm_80").host.pid
    mapped = Path(f"/proc/{pid}/maps").read_text()
    assert "libnvrtc" in mapped
    for heavy in ("numpy", "cupy", "sqlalchemy", "libcuda.so", "site-packages/pydantic"):
        assert heavy not in mapped
    # NVRTC is never called in the process that forks, so no thread of it can be lost in a fork.
    assert len(list(Path(f"/proc/{pid}/task").iterdir())) == 1
    environment = Path(f"/proc/{pid}/environ").read_text().split("\0")
    names = {pair.partition("=")[0] for pair in environment if pair}
    assert names <= {"LC_ALL", "GLIBC_TUNABLES", "LD_LIBRARY_PATH"}


def test_many_threads_at_once_lose_nothing(tmp_path: Path, root: Path) -> None:
    done: dict[int, Artifact] = {}

    def build(number: int) -> None:
        done[number] = compile_kernel(spec(number=number), home=tmp_path / "h", root=root)

    threads = [threading.Thread(target=build, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(done) == list(range(12))
    # The define is unused: the code is the same, and so are the bytes.
    assert len({artifact.ptx for artifact in done.values()}) == 1


def test_cubin_reader_refuses_what_is_no_whole_cubin(tmp_path: Path, root: Path) -> None:
    good = compile_kernel(spec(), home=tmp_path / "h", root=root).data
    for bad in (
        b"",
        b"\x7fELF",
        good[:64],
        good[: len(good) // 2],
        b"MZ" + good[2:],
        good[:18] + b"\x3e" + good[19:],
    ):
        with pytest.raises(CubinError):
            summarise(bad)


def test_a_kind_for_each_failure_is_planted() -> None:
    assert len(KINDS) == 10
    assert cuda.is_cuda("sm_999")
    assert not cuda.is_cuda("x86-64-v3")


def test_of_two_headers_of_one_name_the_nearer_is_meant(tmp_path: Path, root: Path) -> None:
    include = root / "cuda" / "include"
    (include / "one.cuh").write_text(
        "#pragma once\n__device__ __forceinline__ float far() { return 2.0f; }\n"
    )
    source = root / SOURCE
    source.write_text('#include "one.cuh"\n' + source.read_text())
    texts = dict(gather(SOURCE, root).virtual())
    main = texts[f"/rooftile/kernels/{SOURCE}"]
    assert main.startswith('#include "/rooftile/kernels/cuda/include/one.cuh"\n')
    # The neighbour of twice.cuh, though the other was met first.
    assert (
        '"/rooftile/kernels/cuda/include/ptx/one.cuh"'
        in texts["/rooftile/kernels/cuda/include/ptx/twice.cuh"]
    )
    assert compile_kernel(spec(), home=tmp_path / "h", root=root).ptx
