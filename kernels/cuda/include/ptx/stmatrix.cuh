// How does a warp write 8 x 8 matrices of 16-bit elements to shared memory (sm_90 and up)?
//
// Lane l gives the address of row l%8 of matrix l/8 (16 bytes, 16-byte aligned) and the 32-bit word at row l/4, word
// l%4 of each matrix. All lanes of the warp take part; the x2 form uses the addresses of lanes 0 to 15 only.
#pragma once

namespace ptx {

__device__ __forceinline__ void stmatrix_sync_aligned_m8n8_x4_shared_b16(unsigned address, unsigned r0, unsigned r1,
                                                                         unsigned r2, unsigned r3) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r0), "r"(r1), "r"(r2),
                 "r"(r3)
                 : "memory");
}

__device__ __forceinline__ void stmatrix_sync_aligned_m8n8_x2_shared_b16(unsigned address, unsigned r0, unsigned r1) {
    asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(r0), "r"(r1) : "memory");
}

}  // namespace ptx
