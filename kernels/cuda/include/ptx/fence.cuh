// How does what ordinary instructions wrote become visible to copies and products that run beside them (sm_90 and up)?
#pragma once

namespace ptx {

/// Barriers that this thread has made are there for the cluster and for TMA; a barrier of threads follows.
__device__ __forceinline__ void fence_mbarrier_init_release_cluster() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/// This thread's writes to shared memory come before what the async proxy (TMA, wgmma) does after the next barrier.
__device__ __forceinline__ void fence_proxy_async_shared_cta() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

}  // namespace ptx
