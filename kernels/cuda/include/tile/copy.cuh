// How do the threads of a block bring one tile of an operand from global to shared memory?
//
// Each copies pieces of a row, its neighbours the pieces beside. Rows and bytes outside the operand become
// zeros, so that the products there add nothing. WIDTH 16, 8, 4: cp.async of that many bytes, to which base and
// rows must be aligned. WIDTH 0: element by element through registers, for any address: `load` before and
// `store` after whatever is to hide the way to memory.
#pragma once

#include "ptx/address.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/ld_st.cuh"
#include "tile/layout.cuh"

namespace tile {

/// The part of an operand that a tile covers.
struct Window {
    const char* safe;       // aligned, inside the operand: the address of copies that read nothing
    const char* start;      // of the tile
    long long pitch_bytes;  // between rows of the operand
    int rows;               // of the tile that are inside the operand
    int row_bytes;          // of each such row that are inside
};

template <class T, class Layout, int WIDTH, int THREADS>
struct Copy {
    static constexpr bool ASYNC = WIDTH != 0;
    static constexpr int PIECE = ASYNC ? WIDTH : CHUNK;
    static constexpr int PER_ROW = Layout::ROW_BYTES / PIECE;
    static constexpr int TOTAL = Layout::ROWS * PER_ROW;
    static constexpr int TURNS = ceil_div(TOTAL, THREADS);

    static_assert(WIDTH == 0 || WIDTH == 4 || WIDTH == 8 || WIDTH == 16, "what cp.async can copy");

    unsigned held[ASYNC ? 1 : TURNS][4];

    /// Row and piece of this thread's copy in turn `turn`; false: the tile has no more.
    static __device__ __forceinline__ bool place(int turn, int& row, int& piece) {
        const int thread = threadIdx.x;
        if constexpr (THREADS % PER_ROW == 0) {
            row = thread / PER_ROW + turn * (THREADS / PER_ROW);
            piece = thread % PER_ROW;
            return TOTAL % THREADS == 0 || row < Layout::ROWS;
        } else {
            const int i = thread + turn * THREADS;
            row = i / PER_ROW;
            piece = i % PER_ROW;
            return TOTAL % THREADS == 0 || i < TOTAL;
        }
    }

    static __device__ __forceinline__ int inside(const Window& w, int row, int piece) {
        const int bytes = w.row_bytes - piece * PIECE;
        return row < w.rows && bytes > 0 ? (bytes < PIECE ? bytes : PIECE) : 0;
    }

    /// Start the copies (WIDTH over 0), or read into registers (0).
    __device__ __forceinline__ void load(unsigned tile, const Window& w) {
#pragma unroll
        for (int turn = 0; turn < TURNS; ++turn) {
            int row, piece;
            const bool mine = place(turn, row, piece);
            if constexpr (ASYNC) {
                if (mine) {
                    const int bytes = inside(w, row, piece);
                    const char* from = bytes ? w.start + row * w.pitch_bytes + piece * PIECE : w.safe;
                    const int at = piece * PIECE;
                    const unsigned to = tile + Layout::at(row, at / CHUNK) + at % CHUNK;
                    if constexpr (WIDTH == 16)
                        ptx::cp_async_cg_shared_global_16(to, from, bytes);
                    else
                        ptx::cp_async_ca_shared_global<WIDTH>(to, from, bytes);
                }
            } else {
                const int bytes = mine ? inside(w, row, piece) : 0;
                read(held[turn], w.start + row * w.pitch_bytes + piece * PIECE, bytes);
            }
        }
    }

    /// Write what `load` read into registers.
    __device__ __forceinline__ void store(unsigned tile) const {
        if constexpr (!ASYNC) {
#pragma unroll
            for (int turn = 0; turn < TURNS; ++turn) {
                int row, piece;
                if (place(turn, row, piece))
                    ptx::st_shared_v4_b32(tile + Layout::at(row, piece), held[turn][0], held[turn][1], held[turn][2],
                                          held[turn][3]);
            }
        }
    }

  private:
    static __device__ __forceinline__ void read(unsigned (&words)[4], const char* from, int bytes) {
        using Bits = typename T::Bits;
        constexpr int SIZE = sizeof(Bits);
#pragma unroll
        for (int word = 0; word < 4; ++word) {
            unsigned bits = 0;
#pragma unroll
            for (int part = 0; part < 4 / SIZE; ++part) {
                const int at = word * 4 + part * SIZE;
                if (at < bytes) bits |= unsigned(*reinterpret_cast<const Bits*>(from + at)) << (8 * SIZE * part);
            }
            words[word] = bits;
        }
    }
};

}  // namespace tile
