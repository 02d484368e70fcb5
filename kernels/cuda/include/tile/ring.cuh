// Which stage of the ring is next, and when may it be filled or read?
//
// Each stage has two barriers. `full`: one arrival, of whoever has the stage loaded, and the bytes of the load. `empty`:
// one arrival of each warp that reads it. Stages and their phases run on from tile to tile: they are never started anew.
#pragma once

#include "ptx/mbarrier.cuh"

namespace tile {

template <int STAGES>
struct Turn {
    int stage = 0;
    unsigned parity = 0;  // of the phase of this turn round the ring

    __device__ __forceinline__ void next() {
        if (++stage == STAGES) {
            stage = 0;
            parity ^= 1;
        }
    }

    /// As `next` so many times.
    __device__ __forceinline__ void skip(int count) {
        const int turns = (stage + count) / STAGES;
        stage += count - turns * STAGES;
        parity ^= turns & 1;
    }
};

/// Wait for the phase of that parity. CLUSTER: other blocks arrive too.
template <bool CLUSTER>
__device__ __forceinline__ void wait(unsigned barrier, unsigned parity) {
    if constexpr (CLUSTER) {
        while (!ptx::mbarrier_try_wait_parity_acquire_cluster_shared_cta_b64(barrier, parity)) {
        }
    } else {
        while (!ptx::mbarrier_try_wait_parity_shared_cta_b64(barrier, parity)) {
        }
    }
}

}  // namespace tile
