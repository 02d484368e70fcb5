// How do some of a block's warps meet, the others left alone?
//
// Barriers 0 to 15; 0 is that of __syncthreads. THREADS: how many take part, of whole warps, arrivals included. Which
// barrier is told at run time, so who numbers them checks that all of them are there.
#pragma once

namespace ptx {

/// Whether the barriers from FIRST to LAST exist and none is that of __syncthreads.
template <int FIRST, int LAST>
constexpr bool ARE_NAMED_BARRIERS = 0 < FIRST && FIRST <= LAST && LAST < 16;

template <int THREADS>
__device__ __forceinline__ void bar_sync(int barrier) {
    static_assert(THREADS > 0 && THREADS <= 1024 && THREADS % 32 == 0, "whole warps (PTX ISA)");
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(THREADS) : "memory");
}

/// Arrive without waiting.
template <int THREADS>
__device__ __forceinline__ void bar_arrive(int barrier) {
    static_assert(THREADS > 0 && THREADS <= 1024 && THREADS % 32 == 0, "whole warps (PTX ISA)");
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "n"(THREADS) : "memory");
}

}  // namespace ptx
