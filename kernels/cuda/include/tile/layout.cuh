// Where does each 16-byte chunk of an operand's tile lie in shared memory?
//
// A tile is ROWS rows of ROW_BYTES that are contiguous in global memory: rows of m (or n) along k, or rows of k
// along m (or n). Eight rows that a warp reads at one column would share four banks; either a row is followed
// by padding, or the chunks of a row are exchanged by an XOR with the row's number, so that the eight fall into
// the eight groups of four banks.
#pragma once

#include "tile/types.cuh"

namespace tile {

constexpr int CHUNK = 16;  // bytes; what ldmatrix reads of a row, and the widest cp.async

/// `WORDS`: fragments are read word by word (four rows, two chunks at once) instead of by ldmatrix (eight rows,
/// one chunk); then the two chunks stay neighbours and four rows are told apart.
template <int ROWS_, int ROW_BYTES_, bool SWIZZLE, bool WORDS>
struct Layout {
    static constexpr int ROWS = ROWS_;
    static constexpr int ROW_BYTES = ROW_BYTES_;
    static constexpr int CHUNKS = ROW_BYTES / CHUNK;
    static constexpr int PITCH = ROW_BYTES + (SWIZZLE ? 0 : WORDS ? 2 * CHUNK : CHUNK);
    static constexpr int BYTES = ROWS * PITCH;
    // Chunks are exchanged within the largest power of two that divides a row, at most 8 (128 bytes, all banks).
    static constexpr int SPAN = least(8, CHUNKS & -CHUNKS);
    static constexpr int REPEAT = 8 / SPAN;  // rows whose own pitch already tells them apart

    static_assert(ROW_BYTES % CHUNK == 0, "rows are whole chunks");

    /// Bytes from the tile's start to chunk `chunk` of row `row`.
    static __device__ __forceinline__ int at(int row, int chunk) {
        if constexpr (SWIZZLE && WORDS && SPAN > 2) chunk ^= 2 * (row / REPEAT % (SPAN / 2));
        if constexpr (SWIZZLE && !WORDS && SPAN > 1) chunk ^= row / REPEAT % SPAN;
        return row * PITCH + chunk * CHUNK;
    }
};

/// Rows that lie PAD bytes apart and as they are in global memory.
template <int ROWS_, int ROW_BYTES_, int PAD>
struct Padded {
    static constexpr int ROWS = ROWS_;
    static constexpr int ROW_BYTES = ROW_BYTES_;
    static constexpr int PITCH = ROW_BYTES + PAD;
    static constexpr int BYTES = ROWS * PITCH;

    static_assert(ROW_BYTES % CHUNK == 0 && PAD % CHUNK == 0, "rows are whole chunks");

    static __device__ __forceinline__ int at(int row, int chunk) { return row * PITCH + chunk * CHUNK; }
};

}  // namespace tile
