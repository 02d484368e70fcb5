// How are bytes copied from global to shared memory without passing registers (sm_80 and up)?
//
// Both addresses are multiples of the size. `src_bytes` of them are read and the rest is filled with zeros;
// with 0 nothing is read, but the address must still be aligned (PTX ISA, cp.async).
#pragma once

namespace ptx {

/// 16 bytes, past L1.
__device__ __forceinline__ void cp_async_cg_shared_global_16(unsigned dst, const void* src, int src_bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(__cvta_generic_to_global(src)),
                 "r"(src_bytes)
                 : "memory");
}

/// 4 or 8 bytes, through L1: the .cg form takes 16 only.
template <int BYTES>
__device__ __forceinline__ void cp_async_ca_shared_global(unsigned dst, const void* src, int src_bytes) {
    static_assert(BYTES == 4 || BYTES == 8, "cp.async.ca copies 4, 8 or 16 bytes, and 16 go past L1 here");
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(dst), "l"(__cvta_generic_to_global(src)),
                 "n"(BYTES), "r"(src_bytes)
                 : "memory");
}

/// Close the group of this thread's copies since the last commit. An empty group counts as well.
__device__ __forceinline__ void cp_async_commit_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/// Wait until at most the newest `PENDING` groups of this thread are under way.
template <int PENDING>
__device__ __forceinline__ void cp_async_wait_group() {
    static_assert(PENDING >= 0, "a count of groups");
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

}  // namespace ptx
