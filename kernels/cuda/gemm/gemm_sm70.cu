// GEMM for sm_70 and up by WMMA: out = activation(alpha * A * B + beta * C + bias) + residual, per batch entry.
//
// f16 operands, f32 sums. There is no asynchronous copy: each thread reads its pieces of the next tile of k into
// registers, the warps multiply the present one out of shared memory, and then the pieces are written to the other
// stage (or, with one stage, to the same one once everybody has read it). A block computes one BM x BN tile of the
// result, or one part of k of it. How WMMA's fragments lie in registers is not specified, so results leave through
// shared memory. Sizes and pitches are arguments: one build serves all of them.
//
// The planner (search_space/plan/gemm_sm70_plan.py) gives the types, facets and the schedule as macros.
#include "epilogue/store.cuh"
#include "sched/arguments.cuh"
#include "sched/raster.cuh"
#include "sched/split_k.cuh"
#include "tile/stream.cuh"
#include "tile/wmma.cuh"

using namespace tile;

namespace {

using A = RT_A;
using B = RT_B;
using Out = RT_OUT;
using Acc = float;

constexpr int BM = RT_BM, BN = RT_BN, BK = RT_BK, STAGES = RT_STAGES;
constexpr int FM = RT_FRAGMENT_M, FN = RT_FRAGMENT_N;
constexpr int WARPS_M = RT_WARPS_M, WARPS_N = RT_WARPS_N, THREADS = WARPS_M * WARPS_N * 32;
constexpr int WM = BM / WARPS_M, WN = BN / WARPS_N, MI = WM / FM, NI = WN / FN;
static_assert(Same<A, F16>::value && Same<B, F16>::value, "WMMA of sm_70 multiplies f16");
static_assert(BM % WARPS_M == 0 && WM % FM == 0, "warps have whole rows of fragments");
static_assert(BN % WARPS_N == 0 && WN % FN == 0, "warps have whole columns of fragments");
static_assert(STAGES == 1 || STAGES == 2, "one tile of k is under way in registers");

using PlaceA = PaddedOperand<RT_A_K_CONTIGUOUS, BM, BK, RT_PAD>;
using PlaceB = PaddedOperand<RT_B_K_CONTIGUOUS, BN, BK, RT_PAD>;
using StreamA = Stream<A, PlaceA, BM, BK, false, RT_COPY_A, THREADS>;
using StreamB = Stream<B, PlaceB, BN, BK, false, RT_COPY_B, THREADS>;
using Warp = WmmaTile<PlaceA, PlaceB, FM, FN, MI, NI>;
constexpr int STEPS = BK / WMMA_DEPTH;

using Done = epilogue::Finish<Acc, Out, RT_BIAS_TYPE, RT_ALPHA, RT_BETA, RT_BIAS, RT_ACTIVATION, RT_RESIDUAL, RT_SCALE_A,
                              RT_SCALE_B>;

// Shared memory: all stages of A, then all of B. When all of k is done the same bytes serve the epilogue: a piece of
// FM rows for each warp, or the word in which thread 0 tells how many parts of k are there.
constexpr int A_BYTES = PlaceA::Place::BYTES, B_BYTES = PlaceB::Place::BYTES;
constexpr int PIECE_BYTES = epilogue::staged_bytes(FM, WN);
constexpr int SMEM_BYTES = most(STAGES * (A_BYTES + B_BYTES), WARPS_M * WARPS_N * PIECE_BYTES);
static_assert(SMEM_BYTES == RT_SMEM_BYTES, "the planner asks for as much shared memory as is used");
static_assert(A_BYTES % 32 == 0 && B_BYTES % 32 == 0 && PIECE_BYTES % 32 == 0, "WMMA's addresses are multiples of 32");

/// Finish (or keep) a warp's tile: its rows of fragments one after the other through the warp's piece.
template <class Finish, int VECTOR>
__device__ __forceinline__ void store_fragments(const epilogue::Operands& o, const Acc (&sums)[MI][NI][8], int row, int column,
                                                int rows, int columns, unsigned char* piece) {
    const unsigned at = ptx::shared_address(piece);
#pragma unroll
    for (int i = 0; i < MI; ++i) {
        __syncwarp();  // the rows before are read, and the warp is together for the store
#pragma unroll
        for (int j = 0; j < NI; ++j)
            Wmma<FM, FN>::store(at + j * FN * 4, sums[i][j], epilogue::staged_pitch(WN));
        __syncwarp();  // these rows are written
        epilogue::store_piece<Finish, FM, WN, VECTOR>(o, piece, row + i * FM, column, rows - i * FM, columns);
    }
}

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

    Acc sums[MI][NI][8];
#pragma unroll
    for (int i = 0; i < MI; ++i)
#pragma unroll
        for (int j = 0; j < NI; ++j)
#pragma unroll
            for (int e = 0; e < 8; ++e) sums[i][j][e] = 0.0f;

    StreamA stream_a;
    StreamB stream_b;
    if (count > 0) {
        stream_a.load(ring_a, view_a, part.first);
        stream_b.load(ring_b, view_b, part.first);
        stream_a.store(ring_a);
        stream_b.store(ring_b);
    }
    __syncthreads();  // the first tile is there

    int reading = 0;
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
        const int filling = STAGES == 2 ? reading ^ 1 : 0;
        const bool more = i + 1 < count;
        if (more) {
            stream_a.load(ring_a, view_a, part.first + i + 1);
            stream_b.load(ring_b, view_b, part.first + i + 1);
        }
        __syncwarp();  // lanes that read different tails are together again for WMMA
#pragma unroll
        for (int step = 0; step < STEPS; ++step)
            Warp::step(sums, ring_a + reading * A_BYTES, ring_b + reading * B_BYTES, warp_row, warp_column, step);
        // With two stages the other one was read before the last barrier; with one this tile has to be read first.
        if (STAGES == 1 && more) __syncthreads();
        if (more) {
            stream_a.store(ring_a + filling * A_BYTES);
            stream_b.store(ring_b + filling * B_BYTES);
        }
        __syncthreads();  // the next tile is there; after the last one: the stages are free for the epilogue
        reading = filling;
    }

    if constexpr (RT_SPLIT == sched::LAST) {
        const long long place = (entry * tiles_m + tile.row) * tiles_n + tile.column;
        unsigned* counters = reinterpret_cast<unsigned*>(workspace);
        unsigned char* partials = workspace + partials_at + place * splits * (static_cast<long long>(BM) * BN * 4);
        if (!sched::last_to_arrive<THREADS>(sums, partials, counters + place, splits, tile.split,
                                            reinterpret_cast<unsigned*>(shared)))
            return;
        __syncthreads();  // everybody has read the count, so its bytes can hold pieces
    }

    const int rows = static_cast<int>(m) - first_row - warp_row, columns = static_cast<int>(n) - first_column - warp_column;
    const int row = first_row + warp_row, column = first_column + warp_column;
    unsigned char* piece = shared + warp * PIECE_BYTES;
    if constexpr (RT_SPLIT == sched::REDUCE) {
        const epilogue::Operands parts = sched::parts_of(workspace + partials_at, m, n, batch, tile.split, entry);
        store_fragments<epilogue::Keep<Acc>, 4>(parts, sums, row, column, rows, columns, piece);
    } else {
        const epilogue::Operands operands = RT_OPERANDS_OF(entry);
        store_fragments<Done, RT_VECTOR>(operands, sums, row, column, rows, columns, piece);
    }
}

#if RT_SPLIT == 1
#include "sched/reduce_entry.cuh"
#endif
