// Which one lane of a converged warp does what only one may do (sm_90 and up)?
#pragma once

namespace ptx {

/// True in one lane, always the same of a warp. All lanes take part.
__device__ __forceinline__ bool elect_sync() {
    unsigned chosen;
    asm volatile(
        "{\n\t"
        ".reg .pred p;\n\t"
        "elect.sync _|p, 0xffffffff;\n\t"
        "selp.u32 %0, 1, 0, p;\n\t"
        "}"
        : "=r"(chosen));
    return chosen != 0;
}

}  // namespace ptx
