"""Which scratch memory does a launch get, so that no two launches that may run together share it?

One buffer for each device and stream, shared by all kernels: what is enqueued on one stream runs in order. It
only grows, and an outgrown buffer is kept, because kernels that were enqueued, and graphs, still use it.

A CUDA graph keeps the addresses it was captured with and may be replayed on any stream while others launch
eagerly, so a capture never gets a stream's eager buffer. It gets one that was set aside at an eager launch
before (the warm-up), because nothing may be allocated while a graph is captured. Graphs captured on one
stream share theirs: like graphs that share a memory pool in torch, they may not be replayed at the same time.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from rooftile.launch.cuda_runtime import Runtime
from rooftile.launch.errors import UnsuitableError

# Few sizes, so that a slightly larger problem does not take a new buffer: 2 MiB is cudaMalloc's own granule.
_GRANULE_BYTES = 2 << 20


@dataclass(frozen=True)
class _Buffer:
    address: int
    size_bytes: int


class Workspaces:
    """The scratch buffers of one process (or, in tests, of one runtime)."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._lock = threading.Lock()
        self._eager: dict[tuple[int, int], _Buffer] = {}
        self._captured: dict[tuple[int, int], _Buffer] = {}
        self._spare: dict[int, _Buffer] = {}
        self.kept: list[_Buffer] = []
        """Outgrown buffers that somebody may still use."""

    def get(self, device: int, stream: int, size_bytes: int) -> int:
        """The address of at least `size_bytes` bytes for launches on this stream; any contents.

        UnsuitableError while a graph is captured and no buffer was set aside."""
        if self._runtime.capturing(stream):
            return self._for_capture(device, stream, size_bytes)
        key = (device, stream)
        found = self._eager.get(key)
        spare = self._spare.get(device)
        if found is not None and spare is not None and min(found.size_bytes, spare.size_bytes) >= size_bytes:
            return found.address
        with self._lock:
            found = self._grown(self._eager, key, size_bytes, device)
            self._grown(self._spare, device, size_bytes, device)
            return found.address

    def _for_capture(self, device: int, stream: int, size_bytes: int) -> int:
        key = (device, stream)
        with self._lock:
            found = self._captured.get(key)
            if found is not None and found.size_bytes >= size_bytes:
                return found.address
            spare = self._spare.get(device)
            if spare is None or spare.size_bytes < size_bytes:
                raise UnsuitableError(
                    f"a CUDA graph is being captured and no {size_bytes} bytes of scratch memory were set "
                    "aside: call the kernel once before the capture (or its warm_up())"
                )
            if found is not None:
                self.kept.append(found)
            del self._spare[device]
            self._captured[key] = spare
            return spare.address

    def _grown(
        self,
        table: dict[tuple[int, int], _Buffer] | dict[int, _Buffer],
        key: object,
        size_bytes: int,
        device: int,
    ) -> _Buffer:
        found: _Buffer | None = table.get(key)  # type: ignore[call-overload]
        if found is None or found.size_bytes < size_bytes:
            if found is not None:
                self.kept.append(found)
            size = -(-size_bytes // _GRANULE_BYTES) * _GRANULE_BYTES
            found = _Buffer(self._runtime.malloc(size, device), size)
            table[key] = found  # type: ignore[index]
        return found
