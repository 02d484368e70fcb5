// GEMM for sm_80 and up: out = activation(alpha * A * B + beta * C + bias) + residual, per batch entry.
//
// Every warp copies, every warp multiplies. cp.async fills a ring of STAGES stages in shared memory while the tensor
// cores work on an earlier one through ldmatrix and mma.sync; a block computes one BM x BN tile of the result, or
// one part of k of it. A is m x k and B k x n in any order of their two dimensions; the result's n is contiguous (for
// one whose m is, the planner exchanges A and B). Sizes and pitches are arguments: one build serves all of them.
//
// The planner (search_space/plan/gemm_sm80_plan.py) gives the types, facets and the schedule as macros.
#include "epilogue/store.cuh"
#include "sched/arguments.cuh"
#include "sched/raster.cuh"
#include "sched/split_k.cuh"
#include "tile/stages.cuh"

using namespace tile;

namespace {

using A = RT_A;
using B = RT_B;
using Out = RT_OUT;
using Acc = A::Acc;

constexpr int BM = RT_BM, BN = RT_BN, BK = RT_BK, STAGES = RT_STAGES;
constexpr int WARPS_M = RT_WARPS_M, WARPS_N = RT_WARPS_N, THREADS = WARPS_M * WARPS_N * 32;
constexpr int WM = BM / WARPS_M, WN = BN / WARPS_N, MI = WM / 16, NI = WN / 8;
static_assert(BM % WARPS_M == 0 && WM % 16 == 0, "warps have whole fragments of 16 rows");
static_assert(BN % WARPS_N == 0 && WN % 8 == 0, "warps have whole fragments of 8 columns");
static_assert(STAGES >= 2, "one stage is filled while another is read");

using PlaceA = Operand<A, RT_A_K_CONTIGUOUS, BM, BK, RT_SWIZZLE>;
using PlaceB = Operand<B, RT_B_K_CONTIGUOUS, BN, BK, RT_SWIZZLE>;
// RT_COPY: bytes of a cp.async; 0: element by element through registers.
using StreamA = Stream<A, PlaceA, BM, BK, RT_COPY_A != 0, RT_COPY_A ? RT_COPY_A : BYTES<A>, THREADS>;
using StreamB = Stream<B, PlaceB, BN, BK, RT_COPY_B != 0, RT_COPY_B ? RT_COPY_B : BYTES<B>, THREADS>;
constexpr int STEPS = BK / PlaceA::STEP;

using Done = epilogue::Finish<Acc, Out, RT_BIAS_TYPE, RT_ALPHA, RT_BETA, RT_BIAS, RT_ACTIVATION, RT_RESIDUAL, RT_SCALE_A,
                              RT_SCALE_B>;

// Shared memory: all stages of A, then all of B. When all of k is done the same bytes serve the epilogue: a piece
// for each warp, or the word in which thread 0 tells how many parts of k are there.
constexpr int A_BYTES = PlaceA::Place::BYTES, B_BYTES = PlaceB::Place::BYTES;
constexpr int PIECE_BYTES = RT_STAGED ? epilogue::staged_bytes(16, WN) : 0;
constexpr int SMEM_BYTES = most(STAGES * (A_BYTES + B_BYTES), WARPS_M * WARPS_N * PIECE_BYTES);
static_assert(SMEM_BYTES == RT_SMEM_BYTES, "the planner asks for as much shared memory as is used");
static_assert(A_BYTES % 16 == 0 && B_BYTES % 16 == 0, "every tile begins aligned to 16 bytes");

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS, RT_RESIDENT) gemm(RT_ARGUMENTS) {
    extern __shared__ __align__(128) unsigned char shared[];

    const int tiles_m = ceil_div(m, BM), tiles_n = ceil_div(n, BN);
    const sched::Tile tile = sched::tile_of(blockIdx.x, tiles_m, tiles_n, splits, group, along_m != 0);
    const int first_row = tile.row * BM, first_column = tile.column * BN;
    const long long entry = tile.batch;

    const int k_tiles = sched::has_product<RT_ALPHA>(alpha) ? ceil_div(k, BK) : 0;
    const sched::Part part = sched::part_of(k_tiles, splits, tile.split);
    const int count = part.count;

    const View view_a = {a + entry * stride_a * BYTES<A>, ld_a * BYTES<A>, first_row, static_cast<int>(m) - first_row,
                         static_cast<int>(k)};
    const View view_b = {b + entry * stride_b * BYTES<B>, ld_b * BYTES<B>, first_column,
                         static_cast<int>(n) - first_column, static_cast<int>(k)};

    const int warp = threadIdx.x / 32, warp_row = warp / WARPS_N * WM, warp_column = warp % WARPS_N * WN;
    const unsigned ring_a = ptx::shared_address(shared), ring_b = ring_a + STAGES * A_BYTES;

    Acc sums[MI][NI][4];
#pragma unroll
    for (int i = 0; i < MI; ++i)
#pragma unroll
        for (int j = 0; j < NI; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) sums[i][j][e] = Acc(0);

    StreamA stream_a;
    StreamB stream_b;
    WarpTile<A, B, PlaceA, PlaceB, MI, NI> fragments[RT_LOOKAHEAD ? 2 : 1];

    // Fill all stages but one.
#pragma unroll 1
    for (int i = 0; i < STAGES - 1; ++i) {
        if (i < count) {
            stream_a.load(ring_a + i * A_BYTES, view_a, part.first + i);
            stream_b.load(ring_b + i * B_BYTES, view_b, part.first + i);
            stream_a.store(ring_a + i * A_BYTES);
            stream_b.store(ring_b + i * B_BYTES);
        }
        ptx::cp_async_commit_group();
    }

    int reading = 0, filling = STAGES - 1;  // stages; both go round the ring
    if (RT_LOOKAHEAD && count > 0) {
        ptx::cp_async_wait_group<STAGES - 2>();
        __syncthreads();
        fragments[0].load(ring_a, ring_b, warp_row, warp_column, 0);
    }
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
        if constexpr (!RT_LOOKAHEAD) {
            ptx::cp_async_wait_group<STAGES - 2>();
            __syncthreads();
        }
        const unsigned from_a = ring_a + reading * A_BYTES, from_b = ring_b + reading * B_BYTES;
        const unsigned to_a = ring_a + filling * A_BYTES, to_b = ring_b + filling * B_BYTES;
        const bool more = i + STAGES - 1 < count;
        if (more) {
            stream_a.load(to_a, view_a, part.first + i + STAGES - 1);
            stream_b.load(to_b, view_b, part.first + i + STAGES - 1);
        }
        ptx::cp_async_commit_group();
        reading = reading + 1 == STAGES ? 0 : reading + 1;
        filling = filling + 1 == STAGES ? 0 : filling + 1;
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            if constexpr (RT_LOOKAHEAD) {
                // Fragments of the next step come while this one is multiplied; those of the next tile once it is
                // there and every warp has read all of this one.
                if (step + 1 < STEPS) {
                    fragments[(step + 1) % 2].load(from_a, from_b, warp_row, warp_column, step + 1);
                } else if (i + 1 < count) {
                    if (more) {
                        stream_a.store(to_a);
                        stream_b.store(to_b);
                    }
                    ptx::cp_async_wait_group<STAGES - 2>();
                    __syncthreads();
                    fragments[(step + 1) % 2].load(ring_a + reading * A_BYTES, ring_b + reading * B_BYTES, warp_row,
                                                   warp_column, 0);
                }
                fragments[step % 2].multiply(sums);
            } else {
                fragments[0].load(from_a, from_b, warp_row, warp_column, step);
                fragments[0].multiply(sums);
            }
        }
        // Each tile begins with the first set: with an odd count of steps the next fragments lie in the second.
        if constexpr (RT_LOOKAHEAD && STEPS % 2 == 1)
            if (i + 1 < count) fragments[0] = fragments[1];
        if constexpr (!RT_LOOKAHEAD) {
            if (more) {
                stream_a.store(to_a);
                stream_b.store(to_b);
            }
        }
    }

    if constexpr (RT_SPLIT == sched::LAST) {
        const long long place = (entry * tiles_m + tile.row) * tiles_n + tile.column;
        unsigned* counters = reinterpret_cast<unsigned*>(workspace);
        unsigned char* partials = workspace + partials_at + place * splits * (static_cast<long long>(BM) * BN * 4);
        __syncthreads();  // the last stage is read, so its bytes can hold the flag
        if (!sched::last_to_arrive<THREADS>(sums, partials, counters + place, splits, tile.split,
                                                    reinterpret_cast<unsigned*>(shared)))
            return;
    }
    if constexpr (RT_STAGED) __syncthreads();  // the last stage (or the flag) is read, so its bytes can hold pieces

    const int rows = static_cast<int>(m) - first_row - warp_row, columns = static_cast<int>(n) - first_column - warp_column;
    const int row = first_row + warp_row, column = first_column + warp_column;
    unsigned char* piece = shared + warp * PIECE_BYTES;
    if constexpr (RT_SPLIT == sched::REDUCE) {
        const epilogue::Operands parts = sched::parts_of(workspace + partials_at, m, n, batch, tile.split, entry);
        if constexpr (RT_STAGED)
            epilogue::store_staged<epilogue::Keep<Acc>, MI, NI, 4>(parts, sums, row, column, rows, columns, piece);
        else
            epilogue::store_direct<epilogue::Keep<Acc>, MI, NI, 2>(parts, sums, row, column, rows, columns);
    } else {
        const epilogue::Operands operands = RT_OPERANDS_OF(entry);
        if constexpr (RT_STAGED)
            epilogue::store_staged<Done, MI, NI, RT_VECTOR>(operands, sums, row, column, rows, columns, piece);
        else
            epilogue::store_direct<Done, MI, NI, RT_VECTOR>(operands, sums, row, column, rows, columns);
    }
}

#if RT_SPLIT == 1
#include "sched/reduce_entry.cuh"
#endif
