"""Kernels of ours as a HostCuda runs them: their own PTX in the emulator, at the addresses the launcher gave.

So launcher and checks meet real kernels without a GPU: what is emulated is each single launch, with the bytes
that the launcher packed; memory is the host's.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rooftile.launch.cuda import CudaKernel
from rooftile.launch.cuda_workspace import Workspaces
from rooftile.plan import NO_TENSOR, Launch, LaunchPlan, arg_offsets
from support.host_cuda import HostCuda, LaunchSeen, view

from emulator import Limits, Order, Program
from emulator.machine.launch import Launching, Watch, symbols_of
from emulator.machine.memory import SLOT_BITS, Buffer, GlobalMemory
from emulator.machine.tensor_maps import TensorMaps
from worker.compile import Artifact


class EmulatedCuda(HostCuda):
    """A runtime for one artifact. `written` are the buffers, by argument name, that its kernels may write."""

    def __init__(self, program: Program, plan: LaunchPlan, **more: Any) -> None:
        super().__init__(dict.fromkeys(plan.entries, self._emulate), **more)
        self._program = program
        self._steps = {step.entry: step for step in plan.steps if isinstance(step, Launch)}
        self.instructions = 0

    def _emulate(self, seen: LaunchSeen) -> None:
        step = self._steps[seen.entry]
        args = step.args
        kernel = self._program.kernel(seen.entry)
        memory = GlobalMemory()
        watch = Watch(memory, Order(), Limits(), (), None, 108, kernel.global_granule, True, False)
        packed, size = bytearray(), arg_offsets([arg.type for arg in args])[1]
        packed += bytes(size)
        offsets, _ = arg_offsets([arg.type for arg in args])
        placed: list[tuple[int, int, Buffer]] = []
        maps = TensorMaps()
        for arg, offset, piece in zip(args, offsets, seen.parameters, strict=True):
            if arg.type == "ptr":
                address = int.from_bytes(piece, "little")
                piece = self._place(memory, watch, placed, address).to_bytes(8, "little")
            elif arg.type == "tensor_map" and piece != NO_TENSOR:
                tensor, address = self.map_of(piece)
                piece = maps.encode(tensor, self._place(memory, watch, placed, address))
            packed[offset : offset + len(piece)] = piece
        launching = Launching(
            kernel, watch, 0, seen.grid, seen.block, seen.smem_bytes, bytes(packed),
            step.cluster or (1, 1, 1), maps.tensors,
        )  # fmt: skip
        launching.symbols = symbols_of(kernel, memory, watch)
        launching.run()
        assert not watch.faults, [fault.message for fault in watch.faults.values()]
        self.instructions += watch.instructions
        for low, high, buffer in placed:
            view(low, (high - low,), (1,), np.uint8)[...] = buffer.data[: high - low]

    def _place(
        self, memory: GlobalMemory, watch: Watch, placed: list[tuple[int, int, Buffer]], address: int
    ) -> int:
        """The emulator's address of a host address, its whole allocation copied in."""
        if address == 0:
            return 0
        for low, high, buffer in placed:
            if low <= address < high:
                return buffer.base + address - low
        low, high = next((a, b) for a, b, _ in reversed(self.places) if a <= address < b)
        buffer = Buffer.of(f"at {low:x}", memory.next_slot, (high - low,), (1,), 1, True, low % 256)
        assert buffer.base >> SLOT_BITS == memory.next_slot
        memory.add(buffer)
        buffer.data[: high - low] = view(low, (high - low,), (1,), np.uint8)
        watch.watch(buffer, written=True)
        placed.append((low, high, buffer))
        return buffer.base + address - low


def emulated_kernel(artifact: Artifact, plan: LaunchPlan, folder: Path, problem: Any = None) -> CudaKernel:
    """The artifact behind the client's launcher, its launches emulated."""
    path = folder / f"{artifact.sha256}.cubin"
    path.write_bytes(artifact.data)
    assert artifact.ptx is not None
    arch = int(plan.arch.removeprefix("sm_").rstrip("a"))
    capability = (arch // 10, arch % 10)
    smem_bytes = (227 if arch == 90 else 163) * 1024
    runtime = EmulatedCuda(
        Program.from_ptx(artifact.ptx), plan, devices=(capability,), max_smem_bytes=smem_bytes
    )
    return CudaKernel(path, plan, problem, runtime=runtime, workspaces=Workspaces(runtime))


__all__: Sequence[str] = ["EmulatedCuda", "emulated_kernel"]
