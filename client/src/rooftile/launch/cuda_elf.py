"""Which GPU is a cubin for, by its own header?

Checked before the driver sees it: two GPUs have reported one capability string before, and a cubin of the
sibling arch either does not load or, worse, does. Layout found by looking at what NVRTC 12.9 and 13.5 write
(machine 190; the sm number is the low byte of e_flags at ABI version 7, the second byte at version 8). The
`a` of an arch is not in the header at version 8, so it is not judged here.
"""

from __future__ import annotations

import struct
from pathlib import Path

from rooftile.errors import ArtifactError

_EM_CUDA = 190
_HEADER = struct.Struct("<4sBBBBB7xHHIQQQI")


def cubin_sm(data: bytes) -> int:
    """The number of the arch, such as 80. ArtifactError when the bytes are no cubin."""
    if len(data) < _HEADER.size:
        raise ArtifactError(f"{len(data)} bytes are no cubin")
    magic, bits, order, _, _, abi, _, machine, *_, flags = _HEADER.unpack_from(data)
    if magic != b"\x7fELF" or (bits, order) != (2, 1) or machine != _EM_CUDA:
        raise ArtifactError("these bytes are no cubin (a 64-bit ELF file for CUDA)")
    return int(flags >> 8 & 0xFF if abi >= 8 else flags & 0xFF)


def check_cubin(path: Path, arch: str) -> None:
    """The file must be a cubin for `arch`."""
    try:
        with open(path, "rb") as file:
            found = cubin_sm(file.read(_HEADER.size))
    except OSError as error:
        raise ArtifactError(f"the cubin {path} cannot be read: {error.strerror}") from None
    if f"sm_{found}" != arch.rstrip("af"):
        raise ArtifactError(f"the cubin is for sm_{found}, the plan says {arch}")
