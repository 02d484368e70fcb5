// How do a warpgroup's sums of wgmma get from its registers to global memory?
//
// Part by part: COLUMNS columns of 64 rows. The loop over parts is a real one, and its body is compiled once: written out
// for 128 sums it would be most of the kernel. Direct: each lane has two neighbours of a row. Staged: through a piece of
// shared memory of the warp's own, then whole vectors along the rows. TMA: finished in registers, into a panel of shared
// memory that the warpgroup shares, then one thread has it copied. TRANSPOSED: the result's rows run along the sums'
// columns (the product of B and A was computed); "row" and "column" below are those of the sums.
#pragma once

#include "epilogue/store.cuh"
#include "ptx/fence.cuh"
#include "ptx/named_barrier.cuh"
#include "ptx/opaque.cuh"
#include "ptx/stmatrix.cuh"
#include "ptx/tma.cuh"

namespace epilogue {

constexpr int WARPGROUP = 128, BLOCK_ROWS = 64;  // threads; rows of a product, 16 of each warp

/// Where a warpgroup's sums lie in the result, and how many of them, may be 0 or below, are inside it.
struct Window {
    int row;
    int column;
    int rows;
    int columns;
};

/// x = part `which` of the sums. Registers have no index, so each part has its own branch.
template <int WIDTH, int MI, int NI>
__device__ __forceinline__ void take(float (&x)[WIDTH][4], const float (&sums)[MI][NI][4], int which) {
    constexpr int ACROSS = NI / WIDTH;
    static_assert(NI % WIDTH == 0, "whole parts");
#pragma unroll
    for (int part = 0; part < MI * ACROSS; ++part)
        if (part == which) {
            ptx::branch();
#pragma unroll
            for (int j = 0; j < WIDTH; ++j)
#pragma unroll
                for (int e = 0; e < 4; ++e) x[j][e] = sums[part / ACROSS][part % ACROSS * WIDTH + j][e];
        }
}

/// The window of a warp's 16 rows of part `which`.
template <int COLUMNS, int NI>
__device__ __forceinline__ Window part_of_warp(const Window& w, int which) {
    constexpr int ACROSS = NI * 8 / COLUMNS;
    const int down = which / ACROSS * BLOCK_ROWS + threadIdx.x % WARPGROUP / 32 * 16, across = which % ACROSS * COLUMNS;
    return {w.row + down, w.column + across, w.rows - down, w.columns - across};
}

template <class Finish, bool TRANSPOSED, int COLUMNS, int VECTOR, int MI, int NI>
__device__ __forceinline__ void store_parts_direct(const Operands& o, const float (&sums)[MI][NI][4], const Window& window) {
    static_assert(VECTOR == 1 || (VECTOR == 2 && !TRANSPOSED), "a lane has two neighbours");
    constexpr int WIDTH = COLUMNS / 8;
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll 1
    for (int which = 0; which < MI * NI / WIDTH; ++which) {
        float x[WIDTH][4];
        take(x, sums, which);
        const Window w = part_of_warp<COLUMNS, NI>(window, which);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int r = half * 8 + g;
            if (r < w.rows) {
#pragma unroll
                for (int j = 0; j < WIDTH; ++j)
#pragma unroll
                    for (int e = 0; e < 2; e += VECTOR) {
                        const int c = j * 8 + t * 2 + e;
                        float y[VECTOR];
#pragma unroll
                        for (int v = 0; v < VECTOR; ++v) y[v] = x[j][half * 2 + e + v];
                        if (c < w.columns) {
                            if constexpr (TRANSPOSED)
                                Finish::template row<VECTOR>(o, y, w.column + c, w.row + r, w.rows - r);
                            else
                                Finish::template row<VECTOR>(o, y, w.row + r, w.column + c, w.columns - c);
                        }
                    }
            }
        }
    }
}

/// Bytes of a warp's piece.
__host__ __device__ constexpr int piece_bytes(bool transposed, int columns) {
    return transposed ? staged_bytes(columns, 16) : staged_bytes(16, columns);
}

template <class Finish, bool TRANSPOSED, int COLUMNS, int VECTOR, int MI, int NI>
__device__ __forceinline__ void store_parts_staged(const Operands& o, const float (&sums)[MI][NI][4], const Window& window,
                                                   unsigned char* piece) {
    constexpr int WIDTH = COLUMNS / 8, PITCH = staged_pitch(TRANSPOSED ? 16 : COLUMNS);
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const unsigned write = ptx::shared_address(piece) + (TRANSPOSED ? t * 2 * PITCH + g : g * PITCH + t * 2) * 4;
#pragma unroll 1
    for (int which = 0; which < MI * NI / WIDTH; ++which) {
        float x[WIDTH][4];
        take(x, sums, which);
#pragma unroll
        for (int j = 0; j < WIDTH; ++j)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                if constexpr (TRANSPOSED) {
                    ptx::st_shared_b32(write + (j * 8 * PITCH + half * 8) * 4, word(x[j][half * 2]));
                    ptx::st_shared_b32(write + ((j * 8 + 1) * PITCH + half * 8) * 4, word(x[j][half * 2 + 1]));
                } else {
                    ptx::st_shared_v2_b32(write + (half * 8 * PITCH + j * 8) * 4, word(x[j][half * 2]),
                                          word(x[j][half * 2 + 1]));
                }
            }
        __syncwarp();  // the piece is written
        const Window w = part_of_warp<COLUMNS, NI>(window, which);
        if constexpr (TRANSPOSED)
            store_piece<Finish, COLUMNS, 16, VECTOR>(o, piece, w.column, w.row, w.columns, w.rows);
        else
            store_piece<Finish, 16, COLUMNS, VECTOR>(o, piece, w.row, w.column, w.rows, w.columns);
        __syncwarp();  // and read
    }
}

/// A panel of 64 rows of COLUMNS elements of T, as TMA takes them: dense, chunks of a row exchanged within the row.
template <class T, int COLUMNS>
struct StorePanel {
    static constexpr int ROW_BYTES = COLUMNS * BYTES<T>;
    static constexpr int BYTES_ = BLOCK_ROWS * ROW_BYTES;
    static constexpr int MASK = ROW_BYTES == 128 ? 0x70 : ROW_BYTES == 64 ? 0x30 : ROW_BYTES == 32 ? 0x10 : 0;

    static_assert(ROW_BYTES == 16 || ROW_BYTES == 32 || ROW_BYTES == 64 || ROW_BYTES == 128, "a row of a swizzled box");

    /// Bytes from the panel's start to byte `byte` of row `row`.
    static __device__ __forceinline__ unsigned at(int row, int byte) {
        return row * ROW_BYTES + (byte ^ (row * ROW_BYTES >> 3 & MASK));
    }
};

/// Two finished neighbours in one or two words; zeros outside the result, where nothing may be read.
template <class Finish>
__device__ __forceinline__ Pack<typename Finish::Out, 2> finished(const Operands& o, const Window& w, float x, float y, int r,
                                                                  int c) {
    Pack<typename Finish::Out, 2> pack = {};
    const float pair[2] = {x, y};
    if (r < w.rows && c < w.columns) pack = Finish::template result<2>(o, pair, w.row + r, w.column + c, w.columns - c);
    return pack;
}

/// Write a part, finished, to the panel at `panel`, from column `first` of it on; each warp its 16 rows.
template <class Finish, int COLUMNS, int WIDTH>
__device__ __forceinline__ void write_panel(const Operands& o, const float (&x)[WIDTH][4], const Window& w, unsigned panel,
                                            int first) {
    using Out = typename Finish::Out;
    using Panel = StorePanel<Out, COLUMNS>;
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, mine = threadIdx.x % WARPGROUP / 32 * 16;
    if constexpr (BYTES<Out> == 4) {
#pragma unroll
        for (int j = 0; j < WIDTH; ++j)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const auto pack = finished<Finish>(o, w, x[j][half * 2], x[j][half * 2 + 1], half * 8 + g, j * 8 + t * 2);
                ptx::st_shared_v2_b32(panel + Panel::at(mine + half * 8 + g, first * 4 + j * 32 + t * 8), pack.words[0],
                                      pack.words[1]);
            }
    } else {
        static_assert(BYTES<Out> == 2, "stmatrix writes 16-bit elements");
        // Matrices 0 and 1 are the upper and the lower eight rows of eight columns, 2 and 3 those of the next eight.
        const int row = mine + lane % 16, right = lane / 16 * 16 + first * 2;
        constexpr int AT_ONCE = WIDTH % 2 ? 1 : 2;
#pragma unroll
        for (int j = 0; j < WIDTH; j += AT_ONCE) {
            unsigned words[AT_ONCE * 2];
#pragma unroll
            for (int i = 0; i < AT_ONCE * 2; ++i)
                words[i] = finished<Finish>(o, w, x[j + i / 2][i % 2 * 2], x[j + i / 2][i % 2 * 2 + 1], i % 2 * 8 + g,
                                            (j + i / 2) * 8 + t * 2).words[0];
            if constexpr (AT_ONCE == 2)
                ptx::stmatrix_sync_aligned_m8n8_x4_shared_b16(panel + Panel::at(row, j * 16 + right), words[0], words[1],
                                                              words[2], words[3]);
            else
                ptx::stmatrix_sync_aligned_m8n8_x2_shared_b16(panel + Panel::at(row, j * 16 + first * 2), words[0], words[1]);
        }
    }
}

/// Panels of COLUMNS, each of one or more parts of PART. `panels`: PANELS of this warpgroup, used in turn from `turn` on;
/// `barrier`: its own. Its thread 0 has the panels copied, and must wait for its copies before the block ends.
template <class Finish, int COLUMNS, int PART, int PANELS, int MI, int NI>
__device__ __forceinline__ void store_parts_tma(const Operands& o, const ptx::TensorMap& map, int entry,
                                                const float (&sums)[MI][NI][4], const Window& window, unsigned panels,
                                                int& turn, int barrier) {
    using Panel = StorePanel<typename Finish::Out, COLUMNS>;
    constexpr int WIDTH = PART / 8, PARTS = COLUMNS / PART, ACROSS = NI * 8 / COLUMNS;
    static_assert(COLUMNS % PART == 0 && NI * 8 % COLUMNS == 0, "whole parts and panels");
    const bool leads = threadIdx.x % WARPGROUP == 0;
#pragma unroll 1
    for (int which = 0; which < MI * ACROSS * PARTS; ++which) {
        float x[WIDTH][4];
        take(x, sums, which);
        const unsigned panel = panels + turn * Panel::BYTES_;
        const int part = which % PARTS;
        if (part == 0) {
            if (leads) ptx::cp_async_bulk_wait_group_read<PANELS - 1>();
            ptx::bar_sync<WARPGROUP>(barrier);  // the panel is read
        }
        write_panel<Finish, COLUMNS>(o, x, part_of_warp<PART, NI>(window, which), panel, part * PART);
        if (part < PARTS - 1) continue;
        ptx::fence_proxy_async_shared_cta();
        ptx::bar_sync<WARPGROUP>(barrier);  // and written
        if (leads) {
            const int number = which / PARTS, down = number / ACROSS * BLOCK_ROWS, across = number % ACROSS * COLUMNS;
            if (down < window.rows && across < window.columns)
                ptx::cp_async_bulk_tensor_3d_global_shared_cta(map, window.column + across, window.row + down, entry, panel);
            // A group for each panel, empty or not: the wait above counts them.
            ptx::cp_async_bulk_commit_group();
        }
        turn = turn + 1 == PANELS ? 0 : turn + 1;
    }
}

}  // namespace epilogue
