// GEMM for sm_90a: out = activation(alpha * A * B + beta * C + bias) + residual, per batch entry; f16 or bf16, f32 sums.
//
// Warpgroups have roles. One thread of the first has tiles of A and B copied by TMA into a ring of STAGES stages; the
// others multiply them by wgmma straight out of shared memory. Cooperative: the consumers share a tile, below or beside
// each other. Ping-pong: two consumers take tiles in turn, and one stores while the other multiplies. Blocks of a cluster
// lie CLUSTER_M below and CLUSTER_N beside each other; those in a row share A and those in a column share B, each loads
// a slice for all. A block computes tile after tile until none is left (PERSISTENT), or one.
//
// TRANSPOSED: B^T * A^T is computed, whose rows are the result's columns. "Rows" are those of the product.
// The planner (search_space/plan/gemm_sm90_plan.py) gives the types, facets and the schedule as macros.
#include "epilogue/warpgroup.cuh"
#include "ptx/cluster.cuh"
#include "ptx/elect.cuh"
#include "ptx/fence.cuh"
#include "ptx/setmaxnreg.cuh"
#include "sched/arguments.cuh"
#include "sched/raster.cuh"
#include "sched/split_k.cuh"
#include "tile/panels.cuh"
#include "tile/ring.cuh"
#include "tile/wgmma.cuh"

using namespace tile;

namespace {

using A = RT_A;
using B = RT_B;
using Out = RT_OUT;

constexpr int BM = RT_BM, BN = RT_BN, BK = RT_BK, STAGES = RT_STAGES;
constexpr bool PINGPONG = RT_PINGPONG, PERSISTENT = RT_PERSISTENT, TRANSPOSED = RT_TRANSPOSED;
constexpr int CONSUMERS_M = RT_CONSUMERS_M, CONSUMERS_N = RT_CONSUMERS_N, SHARERS = CONSUMERS_M * CONSUMERS_N;
constexpr int WARPGROUP = epilogue::WARPGROUP, CONSUMERS = PINGPONG ? 2 : SHARERS, THREADS = WARPGROUP * (1 + CONSUMERS);
constexpr int CLUSTER_M = RT_CLUSTER_M, CLUSTER_N = RT_CLUSTER_N, CLUSTER = CLUSTER_M * CLUSTER_N;
static_assert(!PINGPONG || (SHARERS == 1 && PERSISTENT), "consumers that take turns have a tile each, and several");

// A product has 64 rows. Of a lower tile the rest stays zero.
constexpr int ROWS = most(BM, 64), WM = ROWS / CONSUMERS_M, WN = BN / CONSUMERS_N, MI = WM / 64, NI = WN / 8;
static_assert(ROWS % (CONSUMERS_M * 64) == 0, "consumers have whole products of 64 rows");
static_assert(BN % CONSUMERS_N == 0 && NI == RT_WGMMA_EIGHTHS, "the product in use is the consumer's");

using PanelsA = Panels<RT_A_K_CONTIGUOUS, ROWS, BM, BK, RT_SWIZZLE_A, CLUSTER_N, RT_HINT_A>;
using PanelsB = Panels<RT_B_K_CONTIGUOUS, BN, BN, BK, RT_SWIZZLE_B, CLUSTER_M, RT_HINT_B>;
static_assert(PanelsB::K_CONTIGUOUS || WN % PanelsB::WIDTH == 0, "a consumer's columns are whole panels");

using Done = epilogue::Finish<float, Out, RT_BIAS_TYPE, RT_ALPHA, RT_BETA, RT_BIAS, RT_ACTIVATION, RT_RESIDUAL, RT_SCALE_A,
                              RT_SCALE_B>;
enum Store { DIRECT = 0, STAGED = 1, TMA = 2 };
constexpr int STORE = RT_STORE, COLUMNS = RT_STORE_COLUMNS, PANELS = RT_STORE_PANELS;

// Shared memory, from its first multiple of 1024 on: all stages of A, then of B; what is on its way out, a piece for each
// warp or panels for each warpgroup (consumers that take turns use the same); barriers; the words in which a thread
// tells how many parts of k are there.
constexpr int A_AT = 0, B_AT = A_AT + STAGES * PanelsA::BYTES;
constexpr int OUT_AT = ceil_div(B_AT + STAGES * PanelsB::BYTES, 1024) * 1024;
constexpr int PIECE_BYTES = STORE == STAGED ? epilogue::piece_bytes(TRANSPOSED, COLUMNS) : 0;
constexpr int OUT_BYTES = STORE == TMA ? PANELS * 64 * COLUMNS * BYTES<Out> : 4 * PIECE_BYTES;  // of a warpgroup
constexpr int FULL_AT = OUT_AT + SHARERS * OUT_BYTES, EMPTY_AT = FULL_AT + STAGES * 8, FLAG_AT = EMPTY_AT + STAGES * 8;
constexpr int SMEM_BYTES = FLAG_AT + 16 + 1024;
static_assert(SMEM_BYTES == RT_SMEM_BYTES, "the planner asks for as much shared memory as is used");
static_assert(PanelsA::BYTES % (8 * RT_SWIZZLE_A) == 0 && PanelsB::BYTES % (8 * RT_SWIZZLE_B) == 0, "stages are aligned");
static_assert(B_AT % 1024 == 0 && FULL_AT % 8 == 0, "as are the rings and the barriers");

// Named barriers; 0 is __syncthreads.
enum Barrier { ALL_CONSUMERS = 1, OWN = 2, MULTIPLY_TURN = 5, STORE_TURN = 7 };
static_assert(ptx::ARE_NAMED_BARRIERS<ALL_CONSUMERS, STORE_TURN + 1>, "a block has 15");
static_assert(ALL_CONSUMERS < OWN && OWN + CONSUMERS <= MULTIPLY_TURN && MULTIPLY_TURN + 2 <= STORE_TURN, "each has one use");

// A stage is free when each warp that reads it said so, of every block that this one loads a slice for.
constexpr int PEERS = CLUSTER_M + CLUSTER_N - 1;
constexpr int READERS = 4 * SHARERS * PEERS;
static_assert(ptx::IS_MBARRIER_COUNT<READERS>, "a phase counts so many arrivals");

/// Which blocks of the cluster this one shares with.
struct Place {
    int row;
    int column;

    static __device__ __forceinline__ Place of(unsigned rank) { return {int(rank % CLUSTER_M), int(rank / CLUSTER_M)}; }

    /// Those in the same row, that need the same A; those in the same column.
    __device__ __forceinline__ unsigned short mask_a() const {
        unsigned mask = 0;
#pragma unroll
        for (int i = 0; i < CLUSTER_N; ++i) mask |= 1u << (i * CLUSTER_M);
        return mask << row;
    }
    __device__ __forceinline__ unsigned short mask_b() const { return ((1u << CLUSTER_M) - 1) << (column * CLUSTER_M); }

    /// Block number i of PEERS: first those of the row, then the others of the column.
    __device__ __forceinline__ unsigned peer(int i) const {
        if (i < CLUSTER_N) return i * CLUSTER_M + row;
        const int other = i - CLUSTER_N;
        return column * CLUSTER_M + other + (other >= row);
    }
};

/// The tiles of this block: every role goes through the same ones in the same order.
struct Tiles {
    long long splits, group, along_m;
    int rows, columns, k_tiles;
    unsigned total, step;

    struct One {
        int row;     // first of the product
        int column;
        sched::Tile tile;
        sched::Part part;
    };

    __device__ __forceinline__ One at(unsigned index, const Place& place) const {
        One one;
        if constexpr (RT_HILBERT)
            one.tile = sched::hilbert_tile_of(index, rows, columns, splits, group);
        else
            one.tile = sched::tile_of(index, rows, columns, splits, group, along_m != 0);
        one.tile.row = one.tile.row * CLUSTER_M + place.row;
        one.tile.column = one.tile.column * CLUSTER_N + place.column;
        one.row = one.tile.row * BM;
        one.column = one.tile.column * BN;
        one.part = sched::part_of(k_tiles, splits, one.tile.split);
        return one;
    }
};

}  // namespace

#if RT_STORE == 2
#define RT_MAPS const __grid_constant__ ptx::TensorMap map_a, const __grid_constant__ ptx::TensorMap map_b, \
                const __grid_constant__ ptx::TensorMap map_out
#else
#define RT_MAPS const __grid_constant__ ptx::TensorMap map_a, const __grid_constant__ ptx::TensorMap map_b
#endif

extern "C" __global__ void
#if RT_CLUSTER_M * RT_CLUSTER_N > 1
    __cluster_dims__(RT_CLUSTER_M * RT_CLUSTER_N, 1, 1)
#endif
    __launch_bounds__(THREADS, 1) gemm(RT_MAPS, RT_ARGUMENTS) {
    extern __shared__ __align__(128) unsigned char shared[];
    const unsigned from = ptx::shared_address(shared), base = (from + 1023) / 1024 * 1024;
    unsigned char* const memory = shared + (base - from);
    const unsigned full = base + FULL_AT, empty = base + EMPTY_AT;

    const int warpgroup = __shfl_sync(0xffffffff, threadIdx.x / WARPGROUP, 0);  // alike in a warp, and known to be
    const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);
    const Place place = Place::of(CLUSTER > 1 ? ptx::cluster_ctarank() : 0);

    const int extent_m = TRANSPOSED ? n : m, extent_n = TRANSPOSED ? m : n;
    Tiles tiles;
    tiles.splits = splits, tiles.group = group, tiles.along_m = along_m;
    tiles.rows = ceil_div(extent_m, BM * CLUSTER_M);
    tiles.columns = ceil_div(extent_n, BN * CLUSTER_N);
    tiles.k_tiles = sched::has_product<RT_ALPHA>(alpha) ? ceil_div(k, BK) : 0;
    tiles.total = static_cast<unsigned>(tiles.rows) * tiles.columns * static_cast<unsigned>(splits * batch);
    tiles.step = gridDim.x / CLUSTER;
    const unsigned first = blockIdx.x / CLUSTER;

    if (threadIdx.x == 0) {
        if (tiles.k_tiles > 0) {
            ptx::prefetch_tensormap(map_a);
            ptx::prefetch_tensormap(map_b);
        }
#pragma unroll 1
        for (int i = 0; i < STAGES; ++i) {
            ptx::mbarrier_init_shared_cta_b64(full + i * 8, 1);
            ptx::mbarrier_init_shared_cta_b64(empty + i * 8, READERS);
        }
        ptx::fence_mbarrier_init_release_cluster();
    }
    if constexpr (BM < 64) {
        // Rows that are never loaded, but multiplied; their products are not stored.
#pragma unroll 1
        for (int i = threadIdx.x; i < STAGES * PanelsA::BYTES / 16; i += THREADS)
            ptx::st_shared_v4_b32(base + A_AT + i * 16, 0, 0, 0, 0);
        ptx::fence_proxy_async_shared_cta();
    }
    if constexpr (CLUSTER > 1) {
        ptx::barrier_cluster_arrive_release_aligned();
        ptx::barrier_cluster_wait_acquire_aligned();
    } else {
        __syncthreads();
    }

    Turn<STAGES> turn;
    if (warpgroup == 0) {
#if RT_PRODUCER_REGISTERS
        ptx::setmaxnreg_dec_sync_aligned_u32<RT_PRODUCER_REGISTERS>();
#endif
        // The whole warp goes through the loops, so that its values are known to be alike and need few registers.
        if (warp == 0) {
            const bool issues = ptx::elect_sync();
            const unsigned long long policy_a = PanelsA::policy(), policy_b = PanelsB::policy();
#pragma unroll 1
            for (unsigned at = first; at < tiles.total; at += tiles.step) {
                const Tiles::One one = tiles.at(at, place);
#pragma unroll 1
                for (int i = 0; i < one.part.count; ++i) {
                    const int from_k = (one.part.first + i) * BK;
                    const unsigned barrier = full + turn.stage * 8;
                    wait<(CLUSTER > 1)>(empty + turn.stage * 8, turn.parity ^ 1);
                    if (issues) {
                        ptx::mbarrier_arrive_expect_tx_shared_cta_b64(barrier, PanelsA::LOADED_BYTES + PanelsB::LOADED_BYTES);
                        PanelsA::load(base + A_AT + turn.stage * PanelsA::BYTES, map_a, one.row, from_k, one.tile.batch, barrier,
                                      place.column, place.mask_a(), policy_a);
                        PanelsB::load(base + B_AT + turn.stage * PanelsB::BYTES, map_b, one.column, from_k, one.tile.batch,
                                      barrier, place.row, place.mask_b(), policy_b);
                    }
                    turn.next();
                }
                if constexpr (!PERSISTENT) break;
            }
        }
        __syncwarp();
    } else {
#if RT_PRODUCER_REGISTERS
#if RT_CONSUMERS_TAKE
        ptx::setmaxnreg_inc_sync_aligned_u32<RT_CONSUMER_REGISTERS>();
#else
        ptx::setmaxnreg_dec_sync_aligned_u32<RT_CONSUMER_REGISTERS>();
#endif
#endif
        const int consumer = warpgroup - 1, lane = threadIdx.x % 32;
        const int share = PINGPONG ? 0 : consumer, down = share / CONSUMERS_N * WM, across = share % CONSUMERS_N * WN;
        const unsigned long long first_a = PanelsA::descriptor(base + A_AT) + PanelsA::offset(0, 0) + down / 64 * PanelsA::offset(64, 0);
        const unsigned long long first_b = PanelsB::descriptor(base + B_AT) + share % CONSUMERS_N * PanelsB::offset(WN, 0);
        // Lane i of each warp tells peer i that a stage is read.
        const bool tells = lane < PEERS;
        const unsigned told = CLUSTER > 1 ? ptx::mapa_shared_cluster_u32(empty, place.peer(tells ? lane : 0)) : empty;
        auto release = [&](int stage) {
            if (tells) {
                if constexpr (CLUSTER > 1)
                    ptx::mbarrier_arrive_release_cluster_shared_cluster_b64(told + stage * 8);
                else
                    ptx::mbarrier_arrive_shared_cta_b64(told + stage * 8);
            }
        };
        [[maybe_unused]] int out_turn = 0;  // of panels on their way out
        int mine = 0;                       // tiles before this one
#pragma unroll 1
        for (unsigned at = first; at < tiles.total; at += tiles.step, ++mine) {
            const Tiles::One one = tiles.at(at, place);
            const bool more = PERSISTENT && tiles.total - at > tiles.step;
            const int count = one.part.count;
            if constexpr (PINGPONG) {
                if (mine % 2 != consumer) {
                    turn.skip(count);
                    continue;
                }
                if (mine > 0) ptx::bar_sync<2 * WARPGROUP>(MULTIPLY_TURN + consumer);
            }

            float sums[MI][NI][4];
#pragma unroll
            for (int i = 0; i < MI; ++i)
#pragma unroll
                for (int j = 0; j < NI; ++j)
#pragma unroll
                    for (int e = 0; e < 4; ++e) sums[i][j][e] = 0.0f;

            // One tile of k is multiplied while the one before it ends.
            int before = 0;
#pragma unroll 1
            for (int i = 0; i < count; ++i) {
                wait<(CLUSTER > 1)>(full + turn.stage * 8, turn.parity);
                multiply<A, BK / PanelsA::STEP, PanelsA, PanelsB>(sums, first_a + turn.stage * (PanelsA::BYTES / 16),
                                              first_b + turn.stage * (PanelsB::BYTES / 16));
                ptx::wgmma_wait_group_sync_aligned<1>();
                if (i > 0) release(before);
                before = turn.stage;
                turn.next();
            }
            if constexpr (PINGPONG)
                if (more) ptx::bar_arrive<2 * WARPGROUP>(MULTIPLY_TURN + 1 - consumer);
            finish(sums);
            if (count > 0) release(before);

            bool finishes = true;
            if constexpr (RT_SPLIT == sched::LAST) {
                const long long grid_m = static_cast<long long>(tiles.rows) * CLUSTER_M;
                const long long grid_n = static_cast<long long>(tiles.columns) * CLUSTER_N;
                const long long number = (one.tile.batch * grid_m + one.tile.row) * grid_n + one.tile.column;
                unsigned* counters = reinterpret_cast<unsigned*>(workspace);
                unsigned char* partials = workspace + partials_at + number * splits * (static_cast<long long>(ROWS) * BN * 4);
                unsigned* flag = reinterpret_cast<unsigned*>(memory + FLAG_AT) + (PINGPONG ? consumer : 0);
                finishes = sched::last_to_arrive<WARPGROUP * SHARERS, false>(
                    sums, partials, counters + number, splits, one.tile.split, flag,
                    PINGPONG ? threadIdx.x % WARPGROUP : threadIdx.x - WARPGROUP, PINGPONG ? OWN + consumer : ALL_CONSUMERS);
            }

            constexpr bool ORDERED = PINGPONG && STORE != DIRECT;
            if constexpr (ORDERED)
                if (mine > 0) ptx::bar_sync<2 * WARPGROUP>(STORE_TURN + consumer);
            if (finishes) {
                const epilogue::Window window = {one.row + down, one.column + across, least(extent_m - one.row, BM) - down,
                                                 extent_n - one.column - across};
                unsigned char* piece = memory + OUT_AT + share * OUT_BYTES + warp % 4 * PIECE_BYTES;
                if constexpr (RT_SPLIT == sched::REDUCE) {
                    const epilogue::Operands parts =
                        sched::parts_of(workspace + partials_at, m, n, batch, one.tile.split, one.tile.batch);
                    if constexpr (STORE == STAGED)
                        epilogue::store_parts_staged<epilogue::Keep<float>, TRANSPOSED, COLUMNS, 4>(parts, sums, window, piece);
                    else
                        epilogue::store_parts_direct<epilogue::Keep<float>, TRANSPOSED, COLUMNS, TRANSPOSED ? 1 : 2>(parts, sums,
                                                                                                                 window);
                } else {
                    const long long entry = one.tile.batch;
                    const epilogue::Operands operands = RT_OPERANDS_OF(entry);
#if RT_STORE == 2
                    epilogue::store_parts_tma<Done, COLUMNS, RT_STORE_PART, PANELS>(operands, map_out, one.tile.batch, sums, window,
                                                                     base + OUT_AT + share * OUT_BYTES, out_turn,
                                                                     OWN + consumer);
#else
                    if constexpr (STORE == STAGED)
                        epilogue::store_parts_staged<Done, TRANSPOSED, COLUMNS, RT_VECTOR>(operands, sums, window, piece);
                    else
                        epilogue::store_parts_direct<Done, TRANSPOSED, COLUMNS, RT_VECTOR>(operands, sums, window);
#endif
                }
            }
            if constexpr (ORDERED) {
                if constexpr (STORE == TMA) {
                    if (threadIdx.x % WARPGROUP == 0) ptx::cp_async_bulk_wait_group_read<0>();
                }
                if (more) ptx::bar_arrive<2 * WARPGROUP>(STORE_TURN + 1 - consumer);
            }
            if constexpr (!PERSISTENT) break;
        }
        if constexpr (STORE == TMA) {
            if (threadIdx.x % WARPGROUP == 0) ptx::cp_async_bulk_wait_group<0>();
            __syncwarp();
        }
    }
    if constexpr (CLUSTER > 1) {
        // Nobody leaves while a peer may still tell it of a stage.
        ptx::barrier_cluster_arrive_release_aligned();
        ptx::barrier_cluster_wait_acquire_aligned();
    }
}

#if RT_SPLIT == 1
#include "sched/reduce_entry.cuh"
#endif
