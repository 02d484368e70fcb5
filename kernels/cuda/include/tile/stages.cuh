// How do tiles of A and B stream through a ring of stages in shared memory, and who may touch a stage when?
//
// Tile i of k lies in stage i % STAGES. Before tile i is read every thread has waited for its own copies of it, and
// then met all others at a barrier. That barrier also says that tile i-1 is read, so its stage takes tile
// i + STAGES - 1. One group of copies is committed per tile, empty ones where k has ended, so that "all but the
// newest STAGES - 2 groups" always means "tile i and before".
#pragma once

#include "tile/fragment.cuh"
#include "tile/stream.cuh"

namespace tile {

/// What one warp multiplies: MI x NI fragments at row `row`, column `column` of the block's tile.
template <class A, class B, class OA, class OB, int MI, int NI>
struct WarpTile {
    using Acc = typename A::Acc;

    unsigned a[MI][4];
    unsigned b[NI][2];

    __device__ __forceinline__ void load(unsigned tile_a, unsigned tile_b, int row, int column, int step) {
#pragma unroll
        for (int i = 0; i < MI; ++i) OA::load_a(a[i], tile_a, row + i * 16, step);
#pragma unroll
        for (int j = 0; j + 1 < NI; j += 2) OB::load_b2(b[j], b[j + 1], tile_b, column + j * 8, step);
        if constexpr (NI % 2) OB::load_b(b[NI - 1], tile_b, column + (NI - 1) * 8, step);
    }

    __device__ __forceinline__ void multiply(Acc (&sums)[MI][NI][4]) const {
#pragma unroll
        for (int i = 0; i < MI; ++i)
#pragma unroll
            for (int j = 0; j < NI; ++j) Mma<A, B>::run(sums[i][j], a[i], b[j]);
    }
};

}  // namespace tile
