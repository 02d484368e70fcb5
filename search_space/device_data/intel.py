"""What is known of Intel's cores, by (family, model)?

Products of one model number differ: Skylake servers of the Bronze and Silver lines have one 512-bit FMA unit
instead of two, which cpuid does not tell. The entries are of the better one: the bounds they give then hold
for both.
"""

from search_space.device_data.cpu_model import CpuModel

INTEL: tuple[CpuModel, ...] = (
    # codename, family, models, units, bits, latency, load bits, GHz, L1 L2 KiB, LLC MiB, GB/s core, all
    CpuModel("haswell", 6, ((60, 60), (69, 70)), 2, 256, 5, 512, 3.4, 32, 256, 8, 12, 22),
    CpuModel("haswell-ep", 6, ((63, 63),), 2, 256, 5, 512, 2.6, 32, 256, 30, 11, 58),
    CpuModel("broadwell", 6, ((61, 61), (71, 71)), 2, 256, 5, 512, 3.2, 32, 256, 6, 12, 24),
    CpuModel("broadwell-ep", 6, ((79, 79), (86, 86)), 2, 256, 5, 512, 2.5, 32, 256, 35, 11, 65),
    CpuModel(
        "skylake", 6, ((78, 78), (94, 94), (142, 142), (158, 158), (165, 166)),
        2, 256, 4, 512, 3.8, 32, 256, 12, 15, 34,
    ),
    # Skylake-SP, Cascade Lake and Cooper Lake share the number; bf16 in the arch tells the last apart.
    CpuModel("skylake-sp", 6, ((85, 85),), 2, 512, 4, 1024, 2.4, 32, 1024, 32, 12, 105),
    CpuModel("cannon-lake", 6, ((102, 102),), 1, 512, 4, 1024, 2.4, 32, 256, 4, 12, 28),
    CpuModel("ice-lake", 6, ((125, 126),), 1, 512, 4, 1024, 3.0, 48, 512, 8, 18, 45),
    CpuModel("ice-lake-sp", 6, ((106, 106), (108, 108)), 2, 512, 4, 1024, 2.6, 48, 1280, 48, 13, 160),
    CpuModel("tiger-lake", 6, ((140, 141),), 1, 512, 4, 1024, 3.5, 48, 1280, 12, 18, 50),
    CpuModel("rocket-lake", 6, ((167, 167),), 1, 512, 4, 1024, 4.4, 48, 512, 16, 20, 42),
    # Hybrid chips: the figures are of a performance core; AVX-512 is fused off.
    CpuModel("alder-lake", 6, ((151, 151), (154, 154)), 2, 256, 4, 768, 4.4, 48, 1280, 30, 25, 68),
    CpuModel(
        "raptor-lake", 6, ((183, 183), (186, 186), (191, 191)),
        2, 256, 4, 768, 4.8, 48, 2048, 36, 27, 76,
    ),
    CpuModel("meteor-lake", 6, ((170, 170), (172, 172)), 2, 256, 4, 768, 4.0, 48, 2048, 24, 22, 85),
    CpuModel("arrow-lake", 6, ((181, 181), (197, 198)), 2, 256, 4, 768, 4.6, 48, 3072, 36, 27, 85),
    CpuModel("lunar-lake", 6, ((189, 189),), 2, 256, 4, 768, 4.2, 48, 2560, 12, 27, 110),
    # Small cores on their own: two 128-bit halves a 256-bit operation.
    CpuModel("gracemont", 6, ((190, 190),), 2, 128, 6, 256, 2.8, 32, 2048, 6, 10, 30),
    CpuModel("sierra-forest", 6, ((175, 175),), 2, 128, 6, 256, 2.6, 32, 4096, 108, 10, 300),
    CpuModel("sapphire-rapids", 6, ((143, 143),), 2, 512, 4, 1024, 2.6, 48, 2048, 105, 13, 230),
    CpuModel("emerald-rapids", 6, ((207, 207),), 2, 512, 4, 1024, 2.7, 48, 2048, 260, 14, 270),
    CpuModel("granite-rapids", 6, ((173, 174),), 2, 512, 4, 1024, 2.8, 48, 2048, 432, 14, 480),
)  # fmt: skip
