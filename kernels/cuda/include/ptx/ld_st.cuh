// How are words read from and written to shared memory by their 32-bit address?
#pragma once

namespace ptx {

__device__ __forceinline__ unsigned ld_shared_b32(unsigned address) {
    unsigned x;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(address) : "memory");
    return x;
}

__device__ __forceinline__ void st_shared_b32(unsigned address, unsigned x) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(x) : "memory");
}

/// The address is a multiple of 8.
__device__ __forceinline__ void st_shared_v2_b32(unsigned address, unsigned x, unsigned y) {
    asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(address), "r"(x), "r"(y) : "memory");
}

/// The address is a multiple of 16.
__device__ __forceinline__ void st_shared_v4_b32(unsigned address, unsigned x, unsigned y, unsigned z, unsigned w) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(x), "r"(y), "r"(z), "r"(w)
                 : "memory");
}

}  // namespace ptx
