"""What does bench.emulator run? Schedules by pairwise design: cases.py; kernels from outside: witnesses.py."""
