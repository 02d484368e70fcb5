// How do the blocks that share a tile's k put their sums together, the same way every time?
//
// Each writes its sums to the workspace and then counts itself. Whoever counts last adds all of them up in the order
// of k, its own among them, and finishes the tile. Nobody waits for a block that may not have started.
#pragma once

#include "epilogue/element.cuh"
#include "ptx/atom.cuh"
#include "ptx/named_barrier.cuh"

namespace sched {

/// False: another block finishes this tile. True: `sums` are those of all splits. `partials`: of this tile,
/// `splits` times as many 16-byte quads as the block has fragments and threads; `counter` was 0 at the launch.
/// `flag` is a word of shared memory that nobody else uses. All threads of the block take part; without WHOLE_BLOCK
/// THREADS of them, of which this is `thread`, that meet at `barrier`.
template <int THREADS, bool WHOLE_BLOCK = true, class Acc, int MI, int NI, int SIZE>
__device__ __forceinline__ bool last_to_arrive(Acc (&sums)[MI][NI][SIZE], unsigned char* partials, unsigned* counter,
                                               unsigned splits, unsigned split, unsigned* flag, int thread = threadIdx.x,
                                               int barrier = 0) {
    constexpr int QUADS = SIZE / 4;  // of a fragment
    constexpr long long QUAD_BYTES = THREADS * 16, SPLIT_BYTES = MI * NI * QUADS * QUAD_BYTES;
    unsigned char* mine = partials + split * SPLIT_BYTES + thread * 16;
#pragma unroll
    for (int i = 0; i < MI; ++i)
#pragma unroll
        for (int j = 0; j < NI; ++j)
#pragma unroll
            for (int q = 0; q < QUADS; ++q) {
                epilogue::Pack<tile::F32, 4> quad;
#pragma unroll
                for (int e = 0; e < 4; ++e) quad.words[e] = epilogue::word(sums[i][j][q * 4 + e]);
                quad.store(mine + ((i * NI + j) * QUADS + q) * QUAD_BYTES, 4);
            }
    // All sums are written, and thread 0 publishes them.
    if constexpr (WHOLE_BLOCK) {
        __syncthreads();
    } else {
        ptx::bar_sync<THREADS>(barrier);
    }
    if (thread == 0) *flag = ptx::atom_acq_rel_gpu_global_add_u32(counter, 1u);
    if constexpr (WHOLE_BLOCK) {
        __syncthreads();
    } else {
        ptx::bar_sync<THREADS>(barrier);
    }
    if (*flag != splits - 1) return false;
    // A few rows of fragments at a time: those after them are not in registers yet, which leaves room to have many
    // reads under way.
    constexpr int ROWS = tile::most(1, 16 / (NI * QUADS));
#pragma unroll
    for (int first = 0; first < MI; first += ROWS) {
#pragma unroll
        for (int i = first; i < first + ROWS && i < MI; ++i)
#pragma unroll
            for (int j = 0; j < NI; ++j)
#pragma unroll
                for (int e = 0; e < SIZE; ++e) sums[i][j][e] = Acc(0);
        const unsigned char* from = partials + thread * 16;
#pragma unroll 1
        for (unsigned s = 0; s < splits; ++s, from += SPLIT_BYTES) {
#pragma unroll
            for (int i = first; i < first + ROWS && i < MI; ++i)
#pragma unroll
                for (int j = 0; j < NI; ++j)
#pragma unroll
                    for (int q = 0; q < QUADS; ++q) {
                        epilogue::Pack<tile::F32, 4> quad;
                        quad.load(from + ((i * NI + j) * QUADS + q) * QUAD_BYTES, 4);
#pragma unroll
                        for (int e = 0; e < 4; ++e) {
                            Acc part;
                            epilogue::from_word(part, quad.words[e]);
                            sums[i][j][q * 4 + e] += part;
                        }
                    }
        }
    }
    return true;
}

}  // namespace sched
