// How does a warp read 8 x 8 matrices of 16-bit elements from shared memory (sm_75 and up)?
//
// Lane l gives the address of row l%8 of matrix l/8 (16 bytes, 16-byte aligned) and receives of each matrix the
// 32-bit word at row l/4, word l%4; with .trans of the transposed matrix. All lanes of the warp take part. The
// x2 forms use the addresses of lanes 0 to 15 only.
#pragma once

namespace ptx {

__device__ __forceinline__ void ldmatrix_sync_aligned_m8n8_x4_shared_b16(unsigned& r0, unsigned& r1, unsigned& r2,
                                                                         unsigned& r3, unsigned address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3)
                 : "r"(address)
                 : "memory");
}

__device__ __forceinline__ void ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16(unsigned& r0, unsigned& r1,
                                                                               unsigned& r2, unsigned& r3,
                                                                               unsigned address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3)
                 : "r"(address)
                 : "memory");
}

__device__ __forceinline__ void ldmatrix_sync_aligned_m8n8_x2_shared_b16(unsigned& r0, unsigned& r1,
                                                                         unsigned address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r0), "=r"(r1)
                 : "r"(address)
                 : "memory");
}

__device__ __forceinline__ void ldmatrix_sync_aligned_m8n8_x2_trans_shared_b16(unsigned& r0, unsigned& r1,
                                                                               unsigned address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r0), "=r"(r1)
                 : "r"(address)
                 : "memory");
}

}  // namespace ptx
