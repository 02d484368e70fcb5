// How does a warp get whole WMMA fragments of a tile, in either order of its dimensions, and multiply them?
#pragma once

#include "ptx/wmma.cuh"
#include "tile/layout.cuh"

namespace tile {

constexpr int WMMA_DEPTH = 16;  // of k in one product, of every shape

template <int M, int N> struct Wmma;

#define RT_SHAPE(M, N, SHAPE)                                                                                        \
    template <> struct Wmma<M, N> {                                                                                  \
        template <bool ROW>                                                                                          \
        static __device__ __forceinline__ void load_a(unsigned (&f)[8], unsigned address, unsigned stride) {         \
            if constexpr (ROW)                                                                                       \
                ptx::wmma_load_a_sync_aligned_row_##SHAPE##_shared_f16(f, address, stride);                          \
            else                                                                                                     \
                ptx::wmma_load_a_sync_aligned_col_##SHAPE##_shared_f16(f, address, stride);                          \
        }                                                                                                            \
        template <bool ROW>                                                                                          \
        static __device__ __forceinline__ void load_b(unsigned (&f)[8], unsigned address, unsigned stride) {         \
            if constexpr (ROW)                                                                                       \
                ptx::wmma_load_b_sync_aligned_row_##SHAPE##_shared_f16(f, address, stride);                          \
            else                                                                                                     \
                ptx::wmma_load_b_sync_aligned_col_##SHAPE##_shared_f16(f, address, stride);                          \
        }                                                                                                            \
        template <bool ROW_A, bool ROW_B>                                                                            \
        static __device__ __forceinline__ void multiply(float (&d)[8], const unsigned (&a)[8],                       \
                                                        const unsigned (&b)[8]) {                                    \
            if constexpr (ROW_A && ROW_B)                                                                            \
                ptx::wmma_mma_sync_aligned_row_row_##SHAPE##_f32_f32(d, a, b);                                       \
            else if constexpr (ROW_A)                                                                                \
                ptx::wmma_mma_sync_aligned_row_col_##SHAPE##_f32_f32(d, a, b);                                       \
            else if constexpr (ROW_B)                                                                                \
                ptx::wmma_mma_sync_aligned_col_row_##SHAPE##_f32_f32(d, a, b);                                       \
            else                                                                                                     \
                ptx::wmma_mma_sync_aligned_col_col_##SHAPE##_f32_f32(d, a, b);                                       \
        }                                                                                                            \
        static __device__ __forceinline__ void store(unsigned address, const float (&d)[8], unsigned stride) {       \
            ptx::wmma_store_d_sync_aligned_row_##SHAPE##_shared_f32(address, d, stride);                             \
        }                                                                                                            \
    };

RT_SHAPE(16, 16, m16n16k16)
RT_SHAPE(32, 8, m32n8k16)
RT_SHAPE(8, 32, m8n32k16)

#undef RT_SHAPE

/// How the tile of an f16 operand lies: EXTENT of m (or n) by DEPTH of k, rows PAD bytes apart.
template <bool K_CONTIGUOUS_, int EXTENT, int DEPTH, int PAD>
struct PaddedOperand {
    static constexpr bool K_CONTIGUOUS = K_CONTIGUOUS_;
    using Place = Padded<(K_CONTIGUOUS ? EXTENT : DEPTH), (K_CONTIGUOUS ? DEPTH : EXTENT) * 2, PAD>;
    static constexpr unsigned STRIDE = Place::PITCH / 2;  // in elements

    static_assert(DEPTH % WMMA_DEPTH == 0, "the tile's k is whole steps");
    static_assert(Place::PITCH % 16 == 0, "strides of WMMA are multiples of 16 bytes");

    /// Where the fragment at `x` of m (or n) and step `step` of k begins.
    static __device__ __forceinline__ unsigned at(unsigned tile, int x, int step) {
        return K_CONTIGUOUS ? tile + x * Place::PITCH + step * WMMA_DEPTH * 2 : tile + step * WMMA_DEPTH * Place::PITCH + x * 2;
    }
};

/// What one warp multiplies: MI x NI fragments of FM x FN at row `row`, column `column` of the block's tile.
template <class OA, class OB, int FM, int FN, int MI, int NI>
struct WmmaTile {
    using Shape = Wmma<FM, FN>;

    static __device__ __forceinline__ void step(float (&sums)[MI][NI][8], unsigned tile_a, unsigned tile_b, int row, int column,
                                                int step) {
        unsigned a[MI][8];
#pragma unroll
        for (int i = 0; i < MI; ++i)
            Shape::template load_a<OA::K_CONTIGUOUS>(a[i], OA::at(tile_a, row + i * FM, step), OA::STRIDE);
#pragma unroll
        for (int j = 0; j < NI; ++j) {
            unsigned b[8];
            Shape::template load_b<!OB::K_CONTIGUOUS>(b, OB::at(tile_b, column + j * FN, step), OB::STRIDE);
#pragma unroll
            for (int i = 0; i < MI; ++i) Shape::template multiply<OA::K_CONTIGUOUS, !OB::K_CONTIGUOUS>(sums[i][j], a[i], b);
        }
    }
};

}  // namespace tile
