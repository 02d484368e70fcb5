// Which part of an operand is the tile of k that a block needs next, and who copies it?
#pragma once

#include "tile/copy.cuh"

namespace tile {

/// One operand as this block sees it: EXTENT of m (or n) from `first` on, all of k.
struct View {
    const char* data;       // of the batch entry
    long long pitch_bytes;  // between its rows
    int first;
    int left;               // of m (or n) from `first` on, over 0
    int k;
};

template <class T, class O, int EXTENT, int DEPTH, bool ASYNC, int WIDTH, int THREADS>
struct Stream {
    using Mover = Copy<T, typename O::Place, ASYNC, WIDTH, THREADS>;
    static constexpr int SIZE = BYTES<T>;

    Mover mover;

    /// Tile `index` of k, whose first k is inside the operand.
    static __device__ __forceinline__ Window window(const View& v, int index) {
        const int from = index * DEPTH;
        const int deep = least(v.k - from, DEPTH), wide = least(v.left, EXTENT);
        Window w;
        w.safe = v.data;
        w.pitch_bytes = v.pitch_bytes;
        if constexpr (O::K_CONTIGUOUS) {
            w.start = v.data + v.first * v.pitch_bytes + static_cast<long long>(from) * SIZE;
            w.rows = wide;
            w.row_bytes = deep * SIZE;
        } else {
            w.start = v.data + from * v.pitch_bytes + static_cast<long long>(v.first) * SIZE;
            w.rows = deep;
            w.row_bytes = wide * SIZE;
        }
        return w;
    }

    __device__ __forceinline__ void load(unsigned stage, const View& v, int index) { mover.load(stage, window(v, index)); }
    __device__ __forceinline__ void store(unsigned stage) const { mover.store(stage); }
};

}  // namespace tile
