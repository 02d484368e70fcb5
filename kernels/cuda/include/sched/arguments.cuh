// What are the arguments of every GEMM entry, and which part of the work do they make a block's?
//
// The planner's list is search_space/plan/gemm_cuda_plan.py. Pitches and strides are in elements; `splits` parts of k;
// `group` and `along_m` as in raster.cuh; `partials_at` bytes into the workspace the parts of k begin.
#pragma once

#include "epilogue/finish.cuh"

#define RT_ARGUMENTS                                                                                                 \
    const char *a, const char *b, const char *c, char *out, const char *bias, const char *residual,                  \
        const float *scale_a, const float *scale_b, unsigned char *workspace, long long m, long long n, long long k, \
        long long batch, long long ld_a, long long ld_b, long long ld_c, long long ld_out, long long ld_residual,    \
        long long stride_a, long long stride_b, long long stride_c, long long stride_out, long long stride_residual, \
        long long splits, long long group, long long along_m, long long partials_at, float alpha, float beta

/// The epilogue's operands of batch entry ENTRY.
#define RT_OPERANDS_OF(ENTRY)                                                                             \
    {                                                                                                     \
        c + (ENTRY) * stride_c * tile::BYTES<Out>, out + (ENTRY) * stride_out * tile::BYTES<Out>, bias,   \
            residual + (ENTRY) * stride_residual * tile::BYTES<Out>,                                      \
            scale_a + (RT_SCALE_A == 2 ? (ENTRY) * m : 0), scale_b + (RT_SCALE_B == 2 ? (ENTRY) * n : 0), \
            ld_c, ld_out, ld_residual, alpha, beta                                                        \
    }

namespace sched {

enum Split { WHOLE = 0, REDUCE = 1, LAST = 2 };  // who adds up the parts of k: nobody, a second entry, the last block

/// Whether A and B are read at all: with alpha 0 they are not, so that NaN in them does not matter.
template <int ALPHA>
__device__ __forceinline__ bool has_product(float alpha) {
    return ALPHA == epilogue::ONE || (ALPHA == epilogue::ANY && alpha != 0.0f);
}

/// A block's part of k, in tiles: `count` of them from `first` on; none where k has ended.
struct Part {
    int first;
    int count;
};

__device__ __forceinline__ Part part_of(int k_tiles, int splits, int split) {
    const int each = tile::ceil_div(k_tiles, splits);
    const long long first = static_cast<long long>(split) * each;
    Part part;
    part.first = first < k_tiles ? static_cast<int>(first) : k_tiles;
    part.count = tile::least(each, k_tiles - part.first);
    return part;
}

/// Where a block keeps its part of the sums for the second entry: rows padded to whole vectors of 16 bytes.
__device__ __forceinline__ epilogue::Operands parts_of(unsigned char* workspace, long long m, long long n, long long batch,
                                                       long long split, long long entry) {
    epilogue::Operands parts = {};
    parts.ld_out = (n + 3) / 4 * 4;
    parts.out = reinterpret_cast<char*>(workspace) + (split * batch + entry) * m * parts.ld_out * 4;
    return parts;
}

}  // namespace sched
