"""What is known of AMD's cores (and Hygon's Dhyana), by (family, model)?

LLC is one core complex's cache, as the hardware shares it; a server has up to sixteen of them.
"""

from search_space.device_data.cpu_model import CpuModel

AMD: tuple[CpuModel, ...] = (
    # codename, family, models, units, bits, latency, load bits, GHz, L1 L2 KiB, LLC MiB, GB/s core, all
    # Zen and Zen+: 128-bit units, a 256-bit FMA takes both halves.
    CpuModel("zen", 23, ((1, 1), (8, 8)), 2, 128, 5, 256, 3.0, 32, 512, 8, 16, 120),
    CpuModel("zen-apu", 23, ((17, 17), (24, 24), (32, 32)), 2, 128, 5, 256, 3.4, 32, 512, 4, 16, 32),
    CpuModel("dhyana", 24, ((0, 255),), 2, 128, 5, 256, 2.8, 32, 512, 8, 16, 120),
    CpuModel("zen2-server", 23, ((49, 49),), 2, 256, 5, 512, 3.0, 32, 512, 16, 20, 150),
    CpuModel("zen2", 23, ((113, 113),), 2, 256, 5, 512, 4.0, 32, 512, 16, 24, 42),
    CpuModel("zen2-apu", 23, ((71, 71), (96, 96), (104, 104), (144, 145), (152, 160)), 2, 256, 5, 512, 3.6,
             32, 512, 4, 20, 40),
    CpuModel("zen3-server", 25, ((0, 15),), 2, 256, 4, 512, 3.1, 32, 512, 32, 22, 160),
    CpuModel("zen3", 25, ((32, 47),), 2, 256, 4, 512, 4.4, 32, 512, 32, 28, 44),
    CpuModel("zen3-apu", 25, ((64, 95),), 2, 256, 4, 512, 3.8, 32, 512, 16, 24, 50),
    # Zen 4: 512-bit instructions, run as two of 256.
    CpuModel("zen4-server", 25, ((16, 31), (160, 175)), 2, 256, 4, 512, 3.4, 32, 1024, 32, 28, 380),
    CpuModel("zen4", 25, ((96, 111),), 2, 256, 4, 512, 4.9, 32, 1024, 32, 40, 62),
    CpuModel("zen4-apu", 25, ((112, 127),), 2, 256, 4, 512, 4.2, 32, 1024, 16, 30, 70),
    # Zen 5: full 512-bit units, but for the mobile parts.
    CpuModel("zen5-server", 26, ((0, 31),), 2, 512, 4, 1024, 3.6, 48, 1024, 32, 32, 500),
    CpuModel("zen5-mobile", 26, ((32, 63), (96, 111)), 2, 256, 4, 512, 4.2, 48, 1024, 16, 35, 85),
    CpuModel("zen5", 26, ((64, 79), (112, 127)), 2, 512, 4, 1024, 5.0, 48, 1024, 32, 42, 70),
)  # fmt: skip
