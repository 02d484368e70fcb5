// How do the blocks of a grid count together?
#pragma once

namespace ptx {

/// Adds and returns what was there. What this thread (and those it met at a barrier before) wrote is visible to
/// whoever reads the sum later the same way. sm_70 and up.
__device__ __forceinline__ unsigned atom_acq_rel_gpu_global_add_u32(unsigned* address, unsigned value) {
    unsigned old;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"
                 : "=r"(old)
                 : "l"(__cvta_generic_to_global(address)), "r"(value)
                 : "memory");
    return old;
}

}  // namespace ptx
