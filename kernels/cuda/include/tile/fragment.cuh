// How does a warp get its fragments of A and B for one step of 32 bytes along k, and multiply them?
//
// 16-bit operands: 16 values of k, 8-bit: 32, tf32: 8. In bytes the fragments are the same (ptx/mma.cuh), so one
// ldmatrix serves all types whose k is contiguous. Rows of k along m (or n) need ldmatrix's transposition, which
// moves 16-bit elements only; tf32 is read word by word there, and 8-bit operands cannot lie so.
#pragma once

#include "ptx/cvt.cuh"
#include "ptx/ld_st.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/mma.cuh"
#include "tile/layout.cuh"

namespace tile {

constexpr int STEP_BYTES = 32;

/// How the tile of an operand of T lies: EXTENT of m (or n) by DEPTH of k.
template <class T, bool K_CONTIGUOUS_, int EXTENT, int DEPTH, bool SWIZZLE>
struct Operand {
    static constexpr bool K_CONTIGUOUS = K_CONTIGUOUS_;
    static constexpr bool WORDS = !K_CONTIGUOUS && BYTES<T> == 4;
    static constexpr int STEP = STEP_BYTES / BYTES<T>;
    static constexpr int ROWS = K_CONTIGUOUS ? EXTENT : DEPTH;
    static constexpr int ROW_BYTES = (K_CONTIGUOUS ? DEPTH : EXTENT) * BYTES<T>;
    using Place = Layout<ROWS, ROW_BYTES, SWIZZLE, WORDS>;

    static_assert(K_CONTIGUOUS || BYTES<T> != 1, "ldmatrix transposes 16-bit elements, not bytes");
    static_assert(DEPTH % STEP == 0, "the tile's k is whole steps");

    /// The 16 x 32-byte fragment of A at row `row` of the tile, step `step` of its k.
    static __device__ __forceinline__ void load_a(unsigned (&f)[4], unsigned tile, int row, int step) {
        const int lane = threadIdx.x % 32;
        if constexpr (WORDS) {
            const int g = lane / 4, t = lane % 4;
#pragma unroll
            for (int i = 0; i < 4; ++i)
                f[i] = word(tile, step * STEP + t + i / 2 * 4, row + g + i % 2 * 8);
        } else if constexpr (K_CONTIGUOUS) {
            ptx::ldmatrix_sync_aligned_m8n8_x4_shared_b16(
                f[0], f[1], f[2], f[3], tile + Place::at(row + lane % 16, step * 2 + lane / 16));
        } else {
            ptx::ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16(
                f[0], f[1], f[2], f[3],
                tile + Place::at(step * STEP + lane % 8 + lane / 16 * 8, row / 8 + lane / 8 % 2));
        }
        round(f);
    }

    /// Two 32-byte x 8 fragments of B, at columns `column` and `column` + 8.
    static __device__ __forceinline__ void load_b2(unsigned (&f)[2], unsigned (&h)[2], unsigned tile, int column,
                                                   int step) {
        const int lane = threadIdx.x % 32;
        if constexpr (WORDS) {
            load_b(f, tile, column, step);
            load_b(h, tile, column + 8, step);
            return;
        } else if constexpr (K_CONTIGUOUS) {
            ptx::ldmatrix_sync_aligned_m8n8_x4_shared_b16(
                f[0], f[1], h[0], h[1],
                tile + Place::at(column + lane % 8 + lane / 16 * 8, step * 2 + lane / 8 % 2));
        } else {
            ptx::ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16(
                f[0], f[1], h[0], h[1], tile + Place::at(step * STEP + lane % 16, column / 8 + lane / 16));
        }
        round(f);
        round(h);
    }

    /// One 32-byte x 8 fragment of B.
    static __device__ __forceinline__ void load_b(unsigned (&f)[2], unsigned tile, int column, int step) {
        const int lane = threadIdx.x % 32;
        if constexpr (WORDS) {
            const int g = lane / 4, t = lane % 4;
            f[0] = word(tile, step * STEP + t, column + g);
            f[1] = word(tile, step * STEP + t + 4, column + g);
        } else if constexpr (K_CONTIGUOUS) {
            ptx::ldmatrix_sync_aligned_m8n8_x2_shared_b16(
                f[0], f[1], tile + Place::at(column + lane % 8, step * 2 + lane / 8 % 2));
        } else {
            ptx::ldmatrix_sync_aligned_m8n8_x2_trans_shared_b16(
                f[0], f[1], tile + Place::at(step * STEP + lane % 16, column / 8));
        }
        round(f);
    }

  private:
    static __device__ __forceinline__ unsigned word(unsigned tile, int k, int x) {
        return ptx::ld_shared_b32(tile + Place::at(k, x / 4) + x % 4 * 4);
    }

    /// f32 in memory is rounded to tf32: the unit would just cut the last 13 bits off.
    template <int N>
    static __device__ __forceinline__ void round(unsigned (&f)[N]) {
        if constexpr (Same<T, TF32>::value) {
#pragma unroll
            for (int i = 0; i < N; ++i) f[i] = ptx::cvt_rna_tf32_f32(__uint_as_float(f[i]));
        }
    }
};

/// d += a * b for one pair of types.
template <class A, class B> struct Mma;

#define RT_PAIR(A, B, ACC, NAME)                                                                              \
    template <> struct Mma<A, B> {                                                                            \
        static __device__ __forceinline__ void run(ACC (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) { \
            ptx::NAME(d, a, b);                                                                               \
        }                                                                                                     \
    };

RT_PAIR(F16, F16, float, mma_sync_aligned_m16n8k16_row_col_f32_f16_f16_f32)
RT_PAIR(BF16, BF16, float, mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32)
RT_PAIR(TF32, TF32, float, mma_sync_aligned_m16n8k8_row_col_f32_tf32_tf32_f32)
RT_PAIR(S8, S8, int, mma_sync_aligned_m16n8k32_row_col_s32_s8_s8_s32)
RT_PAIR(S8, U8, int, mma_sync_aligned_m16n8k32_row_col_s32_s8_u8_s32)
RT_PAIR(U8, S8, int, mma_sync_aligned_m16n8k32_row_col_s32_u8_s8_s32)
RT_PAIR(U8, U8, int, mma_sync_aligned_m16n8k32_row_col_s32_u8_u8_s32)
RT_PAIR(E4M3, E4M3, float, mma_sync_aligned_m16n8k32_row_col_f32_e4m3_e4m3_f32)
RT_PAIR(E4M3, E5M2, float, mma_sync_aligned_m16n8k32_row_col_f32_e4m3_e5m2_f32)
RT_PAIR(E5M2, E4M3, float, mma_sync_aligned_m16n8k32_row_col_f32_e5m2_e4m3_f32)
RT_PAIR(E5M2, E5M2, float, mma_sync_aligned_m16n8k32_row_col_f32_e5m2_e5m2_f32)

#undef RT_PAIR

}  // namespace tile
