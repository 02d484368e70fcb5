// How do the threads of a block bring one tile of an operand from global to shared memory?
//
// Each copies pieces of rows, its neighbours the pieces beside. Rows and bytes outside the operand become zeros, so
// that the products there add nothing. ASYNC: cp.async of WIDTH bytes (16, 8 or 4). Else through registers, by reads of
// WIDTH bytes (one element, for any address, up to 16): `load` before and `store` after whatever is to hide the way to
// memory. Base and rows are aligned to WIDTH.
#pragma once

#include "ptx/address.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/ld_st.cuh"
#include "ptx/opaque.cuh"
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

template <class T, class Layout, bool ASYNC, int WIDTH, int THREADS>
struct Copy {
    static constexpr int PIECE = ASYNC ? WIDTH : CHUNK;
    static constexpr int PER_ROW = Layout::ROW_BYTES / PIECE;
    // The block is ACROSS threads wide and DOWN rows high; it goes down the tile, and then for the rest of wider rows.
    static constexpr int ACROSS = least(PER_ROW, THREADS);
    static constexpr int DOWN = THREADS / ACROSS;
    static constexpr int TURNS_ACROSS = ceil_div(PER_ROW, ACROSS);
    static constexpr int TURNS_DOWN = ceil_div(Layout::ROWS, DOWN);
    static constexpr int TURNS = TURNS_ACROSS * TURNS_DOWN;
    static constexpr int UNROLL = TURNS_DOWN <= 8 ? TURNS_DOWN : 4;

    static_assert(WIDTH == 4 || WIDTH == 8 || WIDTH == 16 || (!ASYNC && WIDTH == BYTES<T>), "what one access can move");

    unsigned held[ASYNC ? 1 : TURNS][4];

    /// Start the copies, or read into registers.
    __device__ __forceinline__ void load(unsigned tile, const Window& w) {
        const int thread = threadIdx.x, first = thread / ACROSS;
        const long long stride = DOWN * w.pitch_bytes;
#pragma unroll
        for (int across = 0; across < TURNS_ACROSS; ++across) {
            const int at = (thread % ACROSS + across * ACROSS) * PIECE;  // bytes from the row's start
            const int left = w.row_bytes - at;
            const int piece = left < 0 ? 0 : left < PIECE ? left : PIECE;  // bytes of it inside the operand
            const char* from = w.start + first * w.pitch_bytes + at;
            if constexpr (ASYNC) {
#pragma unroll UNROLL
                for (int down = 0; down < TURNS_DOWN; ++down) {
                    const int row = first + down * DOWN;
                    if (mine(row, at)) {
                        const int bytes = row < w.rows ? piece : 0;
                        const unsigned to = tile + Layout::at(row, at / CHUNK) + at % CHUNK;
                        if constexpr (WIDTH == 16)
                            ptx::cp_async_cg_shared_global_16(to, bytes ? from : w.safe, bytes);
                        else
                            ptx::cp_async_ca_shared_global<WIDTH>(to, bytes ? from : w.safe, bytes);
                    }
                    from = ptx::opaque(from + stride);
                }
            } else {
#pragma unroll
                for (int down = 0; down < TURNS_DOWN; ++down) {
                    const int row = first + down * DOWN;
                    read(held[across * TURNS_DOWN + down], from, mine(row, at) && row < w.rows ? piece : 0);
                    from = ptx::opaque(from + stride);
                }
            }
        }
    }

    /// Write what `load` read into registers.
    __device__ __forceinline__ void store(unsigned tile) const {
        if constexpr (!ASYNC) {
            const int thread = threadIdx.x, first = thread / ACROSS;
#pragma unroll
            for (int across = 0; across < TURNS_ACROSS; ++across)
#pragma unroll
                for (int down = 0; down < TURNS_DOWN; ++down) {
                    const int row = first + down * DOWN, at = (thread % ACROSS + across * ACROSS) * PIECE;
                    const unsigned(&x)[4] = held[across * TURNS_DOWN + down];
                    if (mine(row, at)) ptx::st_shared_v4_b32(tile + Layout::at(row, at / CHUNK), x[0], x[1], x[2], x[3]);
                }
        }
    }

  private:
    /// Whether the tile has this piece at all, and it is this thread's. Known beforehand where everything divides.
    static __device__ __forceinline__ bool mine(int row, int at) {
        return (THREADS % ACROSS == 0 || threadIdx.x < DOWN * ACROSS) && (Layout::ROWS % DOWN == 0 || row < Layout::ROWS) &&
               (PER_ROW % ACROSS == 0 || at < Layout::ROW_BYTES);
    }

    /// The first `bytes` bytes at `from`, then zeros. Nothing past them is read: a row may be the operand's last.
    static __device__ __forceinline__ void read(unsigned (&words)[4], const char* from, int bytes) {
        if constexpr (WIDTH > BYTES<T>) {
            if (bytes == CHUNK) {
                if constexpr (WIDTH == 16) {
                    const uint4 x = *reinterpret_cast<const uint4*>(from);
                    words[0] = x.x, words[1] = x.y, words[2] = x.z, words[3] = x.w;
                } else if constexpr (WIDTH == 8) {
                    const uint2 x = reinterpret_cast<const uint2*>(from)[0], y = reinterpret_cast<const uint2*>(from)[1];
                    words[0] = x.x, words[1] = x.y, words[2] = y.x, words[3] = y.y;
                } else {
#pragma unroll
                    for (int i = 0; i < 4; ++i) words[i] = reinterpret_cast<const unsigned*>(from)[i];
                }
                return;
            }
        }
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
