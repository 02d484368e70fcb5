"""What does bench.emulator run? Schedules by pairwise design (cases.py), outside kernels (witnesses.py)."""
