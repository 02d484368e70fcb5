// How do a warp's sums get from its registers to global memory?
//
// Direct: each lane has two neighbours of a row. Staged: 16 rows at a time through a piece of shared memory that
// is the warp's own, then whole vectors along the rows, so that neighbouring lanes write neighbouring bytes.
#pragma once

#include "epilogue/finish.cuh"
#include "ptx/address.cuh"
#include "ptx/ld_st.cuh"

namespace epilogue {

/// One warp's tile of MI x NI fragments of 16 x 8. `rows` and `columns`: what of it lies inside the result; both
/// may be 0 or below. VECTOR: elements an access moves.
template <class Finish, int MI, int NI, int VECTOR>
__device__ __forceinline__ void store_direct(const Operands& o, const typename Finish::Acc (&sums)[MI][NI][4], int row,
                                             int column, int rows, int columns) {
    static_assert(VECTOR == 1 || VECTOR == 2, "a lane has two neighbours");
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int i = 0; i < MI; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int r = i * 16 + half * 8 + g;
            if (r < rows) {
#pragma unroll
                for (int j = 0; j < NI; ++j)
#pragma unroll
                    for (int e = 0; e < 2; e += VECTOR) {
                        const int c = j * 8 + t * 2 + e;
                        typename Finish::Acc x[VECTOR];
#pragma unroll
                        for (int v = 0; v < VECTOR; ++v) x[v] = sums[i][j][half * 2 + e + v];
                        if (c < columns) Finish::template row<VECTOR>(o, x, row + r, column + c, columns - c);
                    }
            }
        }
}

/// V sums that lie side by side in shared memory; aligned to 16 bytes, or to all of them where they are fewer.
template <int V, class Acc>
__device__ __forceinline__ void read(Acc (&x)[V], const Acc* from) {
    constexpr int AT_ONCE = V < 4 ? V : 4;
#pragma unroll
    for (int i = 0; i < V; i += AT_ONCE) {
        Pack<F32, AT_ONCE> words;
        words.load(from + i, AT_ONCE);
#pragma unroll
        for (int e = 0; e < AT_ONCE; ++e) from_word(x[i + e], words.words[e]);
    }
}

/// Words between two rows of a warp's piece: 8 or 24 more than a multiple of 32, so that the four rows that half a
/// warp writes at once use different banks.
__host__ __device__ constexpr int staged_pitch(int columns) { return columns % 16 ? columns : columns + 8; }
__host__ __device__ constexpr int staged_bytes(int rows, int columns) { return rows * staged_pitch(columns) * 4; }

/// Finish ROWS rows that lie in the warp's piece, and write them. `rows` and `columns`: what of them is inside.
template <class Finish, int ROWS, int COLUMNS, int VECTOR>
__device__ __forceinline__ void store_piece(const Operands& o, const unsigned char* piece, int row, int column, int rows,
                                            int columns) {
    using Acc = typename Finish::Acc;
    constexpr int PER_ROW = COLUMNS / VECTOR;
    static_assert(COLUMNS % VECTOR == 0, "rows are whole vectors");
    const Acc* staged = reinterpret_cast<const Acc*>(piece);
#pragma unroll 1
    for (int slot = threadIdx.x % 32; slot < ROWS * PER_ROW; slot += 32) {
        const int r = slot / PER_ROW, c = slot % PER_ROW * VECTOR;
        if (r < rows && c < columns) {
            Acc x[VECTOR];
            read<VECTOR>(x, &staged[r * staged_pitch(COLUMNS) + c]);
            Finish::template row<VECTOR>(o, x, row + r, column + c, columns - c);
        }
    }
}

template <class Finish, int MI, int NI, int VECTOR>
__device__ __forceinline__ void store_staged(const Operands& o, const typename Finish::Acc (&sums)[MI][NI][4], int row,
                                             int column, int rows, int columns, unsigned char* piece) {
    constexpr int COLUMNS = NI * 8, PITCH = staged_pitch(COLUMNS);
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const unsigned write = ptx::shared_address(piece) + (g * PITCH + t * 2) * 4;
#pragma unroll
    for (int i = 0; i < MI; ++i) {
        if (i > 0) __syncwarp();  // the rows before are read
#pragma unroll
        for (int j = 0; j < NI; ++j)
#pragma unroll
            for (int half = 0; half < 2; ++half)
                ptx::st_shared_v2_b32(write + (half * 8 * PITCH + j * 8) * 4, word(sums[i][j][half * 2]),
                                      word(sums[i][j][half * 2 + 1]));
        __syncwarp();  // these rows are written
        store_piece<Finish, 16, COLUMNS, VECTOR>(o, piece, row + i * 16, column, rows - i * 16, columns);
    }
}

}  // namespace epilogue
