"""Which numbers do PTX instructions compute?

Pure functions over numpy arrays; no state of the machine. A register is an unsigned array of raw bits
(uint16, uint32, uint64) of any shape, usually (warps, 32) or what broadcasts to it; a predicate is a bool
array. Functions are called as the instruction is, the type first: `integers.add("s32", a, b, sat=True)` is
add.sat.s32. A trailing underscore keeps a name apart from Python's own (`abs_`, `min_`, `not_`).

integers.py   add … dp2a                    bits.py      and … lop3, shl … prmt
compare.py    set, setp, selp, slct, testp  floats.py    f32, f64          halves.py  f16, bf16 and pairs
convert.py    cvt                           rounding.py  one rounding from exact values
matrix.py     mma                           fragments.py wmma, ldmatrix, stmatrix, movmatrix
shuffle.py    shfl, vote, match, redux, elect
"""
