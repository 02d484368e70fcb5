"""How is a candidate proved right before anybody times it?

arena.py      buffers between pages that nobody may touch
poison.py     bit patterns that say "nobody wrote here"
cases.py      which sizes, pitches, alignments, scalars and seeds are run
elements.py   the numpy dtype of an element type
reference.py  the float64 result
bounds.py     how far from it an element may be
prepared.py   a case with its operands and reference in memory, ready to be shared by fork
checks.py     one run of a candidate on a prepared case, and what is wrong with it
device_*.py   the same on a GPU: words, buffers with margins, reference, cases, checks
emulated.py   the emulated verdict of a CUDA schedule: its PTX run on small problems, early and late
proof_main.py the process that does it, and that may be killed
"""
