// How do threads and asynchronous copies count each other in shared memory (mbarrier, sm_90 and up)?
//
// A barrier has a phase. The phase completes when as many arrivals came as it was made for and every byte that was
// expected has been copied; then the next one begins. A wait names the parity of the phase it waits for: on a new
// barrier the phase of parity 1 counts as complete. Addresses are of shared memory, multiples of 8.
#pragma once

namespace ptx {

/// Whether a phase can wait for that many arrivals (PTX ISA, mbarrier objects).
template <unsigned COUNT>
constexpr bool IS_MBARRIER_COUNT = 1 <= COUNT && COUNT <= (1u << 20) - 1;

/// `count`: arrivals of a phase (IS_MBARRIER_COUNT). By one thread; others use it after fence_mbarrier_init and a barrier.
__device__ __forceinline__ void mbarrier_init_shared_cta_b64(unsigned barrier, unsigned count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

/// One arrival, after which the phase waits for `bytes` more.
__device__ __forceinline__ void mbarrier_arrive_expect_tx_shared_cta_b64(unsigned barrier, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

/// One arrival at a barrier of this block.
__device__ __forceinline__ void mbarrier_arrive_shared_cta_b64(unsigned barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/// One arrival at a barrier of any block of the cluster (an address by mapa), seen by all of the cluster.
__device__ __forceinline__ void mbarrier_arrive_release_cluster_shared_cluster_b64(unsigned barrier) {
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/// Whether the phase of that parity is complete; may wait a while before it says no.
__device__ __forceinline__ bool mbarrier_try_wait_parity_shared_cta_b64(unsigned barrier, unsigned parity) {
    unsigned done;
    asm volatile(
        "{\n\t"
        ".reg .pred p;\n\t"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
        "selp.u32 %0, 1, 0, p;\n\t"
        "}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
    return done != 0;
}

/// The same where arrivals come from other blocks of the cluster.
__device__ __forceinline__ bool mbarrier_try_wait_parity_acquire_cluster_shared_cta_b64(unsigned barrier, unsigned parity) {
    unsigned done;
    asm volatile(
        "{\n\t"
        ".reg .pred p;\n\t"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n\t"
        "selp.u32 %0, 1, 0, p;\n\t"
        "}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
    return done != 0;
}

}  // namespace ptx
