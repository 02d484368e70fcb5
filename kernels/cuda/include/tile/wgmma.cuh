// How does a warpgroup multiply one tile of k that lies in shared memory?
#pragma once

#include "ptx/wgmma.cuh"
#include "tile/panels.cuh"

namespace tile {

/// d += a * b for one type; d: 64 rows.
template <class T> struct Wgmma;

template <> struct Wgmma<F16> {
    template <bool TA, bool TB, int NI>
    static __device__ __forceinline__ void run(float (&d)[NI][4], unsigned long long a, unsigned long long b, int keep) {
        ptx::wgmma_mma_async_sync_aligned_f32_f16_f16<TA, TB>(d, a, b, keep);
    }
};
template <> struct Wgmma<BF16> {
    template <bool TA, bool TB, int NI>
    static __device__ __forceinline__ void run(float (&d)[NI][4], unsigned long long a, unsigned long long b, int keep) {
        ptx::wgmma_mma_async_sync_aligned_f32_bf16_bf16<TA, TB>(d, a, b, keep);
    }
};

/// Issue the products of a tile and close their group. `a`, `b`: descriptors of what of the tile this warpgroup
/// multiplies; MI blocks of 64 rows below each other.
template <class T, int STEPS, class PanelsA, class PanelsB, int MI, int NI>
__device__ __forceinline__ void multiply(float (&sums)[MI][NI][4], unsigned long long a, unsigned long long b) {
    ptx::wgmma_fence_sync_aligned();
#pragma unroll
    for (int step = 0; step < STEPS; ++step)
#pragma unroll
        for (int i = 0; i < MI; ++i)
            Wgmma<T>::template run<!PanelsA::K_CONTIGUOUS, !PanelsB::K_CONTIGUOUS>(
                sums[i], a + PanelsA::offset(i * 64, step), b + PanelsB::offset(0, step), 1);
    ptx::wgmma_commit_group_sync_aligned();
}

/// Wait for all products; the sums may be read behind this.
template <int MI, int NI>
__device__ __forceinline__ void finish(float (&sums)[MI][NI][4]) {
#pragma unroll
    for (int i = 0; i < MI; ++i) ptx::wgmma_wait_group_sync_aligned_0(sums[i]);
}

}  // namespace tile
