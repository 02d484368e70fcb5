// How are the parts of k that a first entry left behind added up, in the order of k, and finished?
//
// One thread for four neighbours of a row, in blocks of 256.
#pragma once

#include "epilogue/finish.cuh"

namespace epilogue {

constexpr int REDUCE_THREADS = 256;
constexpr int QUAD = 4;

/// The quad of this thread: batch entry, row, column, and its place in each part. `entry` is `batch` or more: none.
struct Quad {
    long long entry;
    int row;
    int column;
    long long place;
    long long all;  // of a part
};

__device__ __forceinline__ Quad quad_of(long long m, long long n, long long batch) {
    const long long per_row = (n + QUAD - 1) / QUAD;
    Quad quad;
    quad.place = static_cast<long long>(blockIdx.x) * REDUCE_THREADS + threadIdx.x;
    const long long line = quad.place / per_row;
    quad.entry = line / m;
    quad.row = static_cast<int>(line % m);
    quad.column = static_cast<int>(quad.place % per_row) * QUAD;
    quad.all = batch * m * per_row;
    return quad;
}

/// Add up the parts of a quad of which `columns` are inside the result, and finish them, VECTOR at a time.
template <class Finish, int VECTOR>
__device__ __forceinline__ void add_parts(const Operands& o, const unsigned char* parts, const Quad& quad, long long splits,
                                          int columns) {
    using Acc = typename Finish::Acc;
    Acc sums[QUAD] = {};
#pragma unroll 1
    for (long long split = 0; split < splits; ++split) {
        Pack<F32, QUAD> part;
        part.load(parts + (split * quad.all + quad.place) * (QUAD * 4), columns);
#pragma unroll
        for (int i = 0; i < QUAD; ++i) {
            Acc x;
            from_word(x, part.words[i]);
            sums[i] += x;
        }
    }
#pragma unroll
    for (int i = 0; i < QUAD; i += VECTOR) {
        Acc x[VECTOR];
#pragma unroll
        for (int v = 0; v < VECTOR; ++v) x[v] = sums[i + v];
        if (i < columns) Finish::template row<VECTOR>(o, x, quad.row, quad.column + i, columns - i);
    }
}

}  // namespace epilogue
