// How do the warps of a warpgroup hand registers to another (sm_90a)?
//
// All warps of the warpgroup execute it. What one gives back another can take, which waits until it is there. A
// kernel without launch bounds would be assembled to ignore it (ptxas C7508).
#pragma once

namespace ptx {

/// Down to COUNT registers a thread.
template <int COUNT>
__device__ __forceinline__ void setmaxnreg_dec_sync_aligned_u32() {
    static_assert(COUNT >= 24 && COUNT <= 256 && COUNT % 8 == 0, "24 to 256 in steps of 8 (PTX ISA)");
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

/// Up to COUNT registers a thread.
template <int COUNT>
__device__ __forceinline__ void setmaxnreg_inc_sync_aligned_u32() {
    static_assert(COUNT >= 24 && COUNT <= 256 && COUNT % 8 == 0, "24 to 256 in steps of 8 (PTX ISA)");
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

}  // namespace ptx
