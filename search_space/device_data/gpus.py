"""What is known of a GPU product before anything is measured on it? By PCI device id.

Peaks are dense, with sums in f32 (s32 for integers), at the boost clock, from the vendor's data sheets and
architecture white papers (V100, A100, H100, Ada, Blackwell); memory rates and L2 sizes from the same. L2 of
the H200 is what the driver reports, 60 MB. Consumer parts do f16 with f32 sums at half the rate of f16 sums.
They order candidates before anything ran; figures that are shown or decide a release are measured.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GpuModel:
    """A product. `tflops`: 1e12 operations a second by element type of the operands."""

    name: str
    arch: str
    sms: int
    memory_gib: int
    ghz: float
    memory_gbs: float
    """Of the data sheet, 1e9 bytes a second."""
    l2_mib: float
    power_watts: int
    tflops: tuple[tuple[str, float], ...]

    @property
    def l2_bytes(self) -> int:
        """The whole second-level cache."""
        return int(self.l2_mib * 2**20)


def _peaks(
    f16: float, f32: float, tf32: float = 0, int8: float = 0, fp8: float = 0, f64: float = 0
) -> tuple[tuple[str, float], ...]:
    """Rates by dtype; 0: the tensor cores do not have it."""
    table = {"f16": f16, "bf16": f16 if tf32 else 0, "tf32": tf32, "f32": f32, "f64": f64 or f32 / 64}
    table |= {"s8": int8, "u8": int8, "e4m3": fp8, "e5m2": fp8}
    return tuple((name, rate) for name, rate in table.items() if rate)


_V100_SXM = _peaks(125, 15.7, f64=7.8)
_V100_PCIE = _peaks(112, 14, f64=7)
_A100 = _peaks(312, 19.5, 156, 624, f64=19.5)
_H100_SXM = _peaks(989.4, 66.9, 494.7, 1978.9, 1978.9, 66.9)
_H100_NVL = _peaks(835.5, 60, 417.7, 1670.9, 1670.9, 60)

GPUS: dict[str, GpuModel] = {
    # name, arch, SMs, GiB, GHz, GB/s, L2 MiB, W, peaks
    "1db1": GpuModel("V100 SXM2 16GB", "sm_70", 80, 16, 1.53, 900, 6, 300, _V100_SXM),
    "1db4": GpuModel("V100 PCIe 16GB", "sm_70", 80, 16, 1.38, 900, 6, 250, _V100_PCIE),
    "1db5": GpuModel("V100 SXM2 32GB", "sm_70", 80, 32, 1.53, 900, 6, 300, _V100_SXM),
    "1db6": GpuModel("V100 PCIe 32GB", "sm_70", 80, 32, 1.38, 900, 6, 250, _V100_PCIE),
    "20b0": GpuModel("A100 SXM4 40GB", "sm_80", 108, 40, 1.41, 1555, 40, 400, _A100),
    "20b2": GpuModel("A100 SXM4 80GB", "sm_80", 108, 80, 1.41, 2039, 40, 400, _A100),
    "20b5": GpuModel("A100 PCIe 80GB", "sm_80", 108, 80, 1.41, 1935, 40, 300, _A100),
    "20f1": GpuModel("A100 PCIe 40GB", "sm_80", 108, 40, 1.41, 1555, 40, 250, _A100),
    "2204": GpuModel("RTX 3090", "sm_86", 82, 24, 1.695, 936, 6, 350, _peaks(71, 35.6, 35.6, 284)),
    "2206": GpuModel("RTX 3080", "sm_86", 68, 10, 1.71, 760, 5, 320, _peaks(59.5, 29.8, 29.8, 238)),
    "2230": GpuModel("RTX A6000", "sm_86", 84, 48, 1.80, 768, 6, 300, _peaks(154.8, 38.7, 77.4, 309.7)),
    "2235": GpuModel("A40", "sm_86", 84, 48, 1.74, 696, 6, 300, _peaks(149.7, 37.4, 74.8, 299.3)),
    "2236": GpuModel("A10", "sm_86", 72, 24, 1.695, 600, 6, 150, _peaks(125, 31.2, 62.5, 250)),
    "2237": GpuModel("A10G", "sm_86", 80, 24, 1.71, 600, 6, 300, _peaks(70, 35, 35, 140)),
    "2684": GpuModel(
        "RTX 4090", "sm_89", 128, 24, 2.52, 1008, 72, 450, _peaks(165.2, 82.6, 82.6, 660.6, 330.3)
    ),
    "26b1": GpuModel(
        "RTX 6000 Ada", "sm_89", 142, 48, 2.505, 960, 96, 300, _peaks(364.2, 91.1, 182.1, 728.5, 728.5)
    ),
    "26b5": GpuModel("L40", "sm_89", 142, 48, 2.49, 864, 96, 300, _peaks(181, 90.5, 90.5, 362, 362)),
    "26b9": GpuModel("L40S", "sm_89", 142, 48, 2.52, 864, 96, 350, _peaks(362, 91.6, 183, 733, 733)),
    "27b8": GpuModel("L4", "sm_89", 58, 24, 2.04, 300, 48, 72, _peaks(121, 30.3, 60, 242.5, 242.5)),
    "2321": GpuModel("H100 NVL", "sm_90a", 132, 94, 1.785, 3938, 50, 400, _H100_NVL),
    "2330": GpuModel("H100 SXM5", "sm_90a", 132, 80, 1.83, 3352, 50, 700, _H100_SXM),
    "2331": GpuModel(
        "H100 PCIe", "sm_90a", 114, 80, 1.62, 2039, 50, 350, _peaks(756, 51.2, 378, 1513, 1513, 51.2)
    ),
    "2335": GpuModel("H200 SXM", "sm_90a", 132, 141, 1.83, 4800, 60, 700, _H100_SXM),
    "233b": GpuModel("H200 NVL", "sm_90a", 132, 141, 1.785, 4800, 60, 600, _H100_NVL),
    "2342": GpuModel("GH200", "sm_90a", 132, 96, 1.83, 4000, 50, 900, _H100_SXM),
    "2901": GpuModel(
        "B200", "sm_100a", 148, 180, 1.85, 8000, 126, 1000, _peaks(2250, 75, 1125, 4500, 4500, 37)
    ),
    "2b85": GpuModel(
        "RTX 5090", "sm_120a", 170, 32, 2.407, 1792, 96, 575, _peaks(209.5, 104.8, 104.8, 838, 419)
    ),
    "2bb1": GpuModel(
        "RTX PRO 6000", "sm_120a", 188, 96, 2.617, 1792, 128, 600, _peaks(503.8, 126, 251.9, 1007.6, 1007.6)
    ),
}

TYPICAL: dict[str, str] = {
    "sm_70": "1db1", "sm_80": "20b2", "sm_86": "2204", "sm_89": "2684", "sm_90a": "2330", "sm_100a": "2901",
    "sm_120a": "2b85",
}  # fmt: skip
"""The product that stands for an arch where a job names no device."""
