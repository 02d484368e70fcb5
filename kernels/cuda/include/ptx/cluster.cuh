// How do the blocks of a cluster know, meet and address each other (sm_90 and up)?
#pragma once

namespace ptx {

/// This block's number in its cluster.
__device__ __forceinline__ unsigned cluster_ctarank() {
    unsigned rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

/// The place in block `rank` of what lies at `address` in this one.
__device__ __forceinline__ unsigned mapa_shared_cluster_u32(unsigned address, unsigned rank) {
    unsigned there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    return there;
}

/// All threads of the cluster; what each did before is seen by all behind the wait.
__device__ __forceinline__ void barrier_cluster_arrive_release_aligned() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}

__device__ __forceinline__ void barrier_cluster_wait_acquire_aligned() {
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

}  // namespace ptx
