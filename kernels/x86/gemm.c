/* How is a GEMM computed in blocks: packed panels in the caches, a tile of C in the registers?
 *
 * After Goto and BLIS: a block of B (block_k x block_n) and a block of A (block_m x block_k) are packed into panels
 * that the inner loop reads in order; a tile of RT_MR x RT_NR of C stays in registers over block_k steps. Either
 * packing can be left out: a row-major A is read where it lies, a k x n B as well (only its last, partial strip is
 * copied). Threads form a grid over batch, k, m and n; those that share a block pack it together.
 *
 * While a block is computed, what comes next can be fetched: the next panel, and the next block where it lies in
 * memory, so that packing it does not wait.
 */
#include "rt_gemm.h"
#include "rt_tile.h"

RT_INLINE const float *a_at(const struct rt_gemm *g, const float *a, int64_t row, int64_t p)
{
    return RT_A_KM ? a + p * g->ld_a + row : a + row * g->ld_a + p;
}

RT_INLINE const float *b_at(const struct rt_gemm *g, const float *b, int64_t p, int64_t col)
{
    return RT_B_NK ? b + col * g->ld_b + p : b + p * g->ld_b + col;
}

/* Panels of A for tile rows `from` to `to` of a block that begins at tile row i0. */
RT_UNUSED RT_NOINLINE void pack_a(const struct rt_gemm *g, const float *a, int64_t p0, int64_t depth, int64_t i0,
                                  int64_t from, int64_t to, float *panels)
{
    for (int64_t i = from; i < to; i++) {
        const int64_t row = (i0 + i) * RT_MR;
        rt_pack(a_at(g, a, row, p0), g->ld_a, !RT_A_KM, depth, rt_min(RT_MR, g->m - row), RT_MR,
                panels + i * (RT_MR * depth + g->pad));
    }
}

#define ROWS_AT_ONCE 4

/* Panels of B likewise. B k x n is read a few rows at a time over all panels, because memory is fastest in long
 * rows; one panel after the other would take a cache line from each row, and each row is another page. */
RT_UNUSED RT_NOINLINE void pack_b(const struct rt_gemm *g, const float *b, int64_t p0, int64_t depth, int64_t j0, int64_t from,
                        int64_t to, float *panels)
{
    const int64_t size = RT_NR * depth + g->pad;
    int64_t p = 0;
    if (!RT_B_NK && from < to) {
        const int64_t whole = rt_min(to, g->n / RT_NR - j0);
        for (; p + ROWS_AT_ONCE <= depth; p += ROWS_AT_ONCE) {
            const float *rows = b_at(g, b, p0 + p, (j0 + from) * RT_NR);
            float *panel = panels + from * size + p * RT_NR;
            const int64_t ahead = p + 2 * ROWS_AT_ONCE <= depth ? ROWS_AT_ONCE * g->ld_b : 0;
            for (int64_t j = from; j < whole; j++, rows += RT_NR, panel += size) {
                RT_UNROLL for (int u = 0; u < ROWS_AT_ONCE; u++) RT_UNROLL for (int v = 0; v < RT_NR; v += RT_LINE_FLOATS)
                    rt_fetch(rows + ahead + u * g->ld_b + v);
                RT_UNROLL for (int u = 0; u < ROWS_AT_ONCE; u++) RT_UNROLL for (int v = 0; v < RT_NV; v++)
                    v_store(panel + u * RT_NR + v * RT_VL, v_load(rows + u * g->ld_b + v * RT_VL));
            }
        }
        for (int64_t j = rt_max(whole, from); j < to; j++) {
            const int64_t col = (j0 + j) * RT_NR;
            rt_pack(b_at(g, b, p0, col), g->ld_b, 0, p, rt_min(RT_NR, g->n - col), RT_NR, panels + j * size);
        }
    }
    for (int64_t j = from; j < to; j++) {
        const int64_t col = (j0 + j) * RT_NR;
        rt_pack(b_at(g, b, p0 + p, col), g->ld_b, RT_B_NK, depth - p, rt_min(RT_NR, g->n - col), RT_NR,
                panels + j * size + p * RT_NR);
    }
}

/* A block of tiles: tile rows i0..i1, tile columns j0..j1, depth p0..p0 + depth. */
struct block {
    int64_t i0, i1, j0, j1, p0, depth;
    const float *panels_a, *panels_b, *edge_b;
    int last; /* the last block of k: the epilogue is due */
    struct rt_ahead panel, next_a, next_b;
};

RT_INLINE void block_tile(const struct rt_gemm *g, const struct rt_entry *e, struct block *blk, struct tile *t,
                          float *sums, int64_t i, int64_t j)
{
    const int64_t row = i * RT_MR, col = j * RT_NR;
    const int64_t rows = rt_min(RT_MR, g->m - row), cols = rt_min(RT_NR, g->n - col);
    t->a = RT_PACK_A ? blk->panels_a + (i - blk->i0) * (RT_MR * blk->depth + g->pad) : a_at(g, e->a, row, blk->p0);
    if (RT_PACK_B)
        t->b = blk->panels_b + (j - blk->j0) * (RT_NR * blk->depth + g->pad);
    else
        t->b = cols == RT_NR ? b_at(g, e->b, blk->p0, col) : blk->edge_b;
    t->out = (t->raw ? sums : e->out) + row * t->ld_out + col;
    if (RT_BETA)
        t->c = e->c + row * g->ld_c + col;
    rt_ahead_some(&blk->panel);
    rt_ahead_some(&blk->next_a);
    rt_ahead_some(&blk->next_b);
    if (cols == RT_NR)
        tiles[rows](t);
    else
        tile_at_edge(t, rows, cols);
    if (blk->last && !t->raw)
        rt_epilogue(g, e, row, col, rows, cols);
}

/* All tiles of a block. With fetch_panels the panel that is used next comes along: of B where the rows go round
 * first, else of A. */
RT_INLINE void block_tiles(const struct rt_gemm *g, const struct rt_entry *e, struct block *blk, struct tile *t,
                           float *sums)
{
    const int64_t rows = blk->i1 - blk->i0, cols = blk->j1 - blk->j0;
    if (g->rows_outer) {
        for (int64_t i = blk->i0; i < blk->i1; i++) {
            if (g->fetch_panels && i + 1 < blk->i1) {
                if (RT_PACK_A)
                    blk->panel = rt_ahead_of(blk->panels_a + (i + 1 - blk->i0) * (RT_MR * blk->depth + g->pad), 0, 1,
                                           RT_MR * blk->depth, cols);
                else
                    blk->panel = rt_ahead_of(a_at(g, e->a, (i + 1) * RT_MR, blk->p0), g->ld_a,
                                           RT_A_KM ? blk->depth : RT_MR, RT_A_KM ? RT_MR : blk->depth, cols);
            }
            for (int64_t j = blk->j0; j < blk->j1; j++)
                block_tile(g, e, blk, t, sums, i, j);
        }
    } else {
        for (int64_t j = blk->j0; j < blk->j1; j++) {
            if (RT_PACK_B && g->fetch_panels && j + 1 < blk->j1)
                blk->panel = rt_ahead_of(blk->panels_b + (j + 1 - blk->j0) * (RT_NR * blk->depth + g->pad), 0, 1,
                                       RT_NR * blk->depth, rows);
            for (int64_t i = blk->i0; i < blk->i1; i++)
                block_tile(g, e, blk, t, sums, i, j);
        }
    }
}

/* The tiles of one visit, handed out in pieces of block_m rows by some columns to whichever thread is free: cores
 * are not equally fast (other work, shared caches, clocks), and the slowest would set the time. Each tile is still
 * computed by one thread in one order, so the result does not depend on who takes what. */
RT_INLINE void hand_out(const struct rt_gemm *g, const struct rt_entry *e, struct block *blk, struct tile *t,
                        float *sums, const float *panels_a, int64_t tile_rows, int64_t team, int64_t *taken)
{
    const int64_t cols = blk->j1 - blk->j0, j0 = blk->j0, j1 = blk->j1;
    const int64_t row_blocks = (tile_rows + g->block_m - 1) / g->block_m;
    /* Some 16 pieces for each thread, but none narrower than 4 strips. */
    const int64_t across = rt_max(1, rt_min(cols / 4, (16 * team + row_blocks - 1) / row_blocks));
    const float *panels_b = blk->panels_b;
    for (;;) {
        const int64_t piece = __atomic_fetch_add(taken, 1, __ATOMIC_RELAXED);
        if (piece >= row_blocks * across)
            return;
        int64_t from, to;
        rt_share(cols, across, piece % across, &from, &to);
        blk->i0 = piece / across * g->block_m, blk->i1 = rt_min(blk->i0 + g->block_m, tile_rows);
        blk->j0 = j0 + from, blk->j1 = j0 + to;
        blk->panels_a = panels_a + blk->i0 * (RT_MR * blk->depth + g->pad);
        blk->panels_b = panels_b + from * (RT_NR * blk->depth + g->pad);
        block_tiles(g, e, blk, t, sums);
        blk->j0 = j0, blk->j1 = j1, blk->panels_b = panels_b;
    }
}

RT_EXPORT void run(const void *args, int thread, int threads, rt_barrier *barrier)
{
    const struct rt_gemm *g = args;
    const struct rt_place at = rt_place_of(g, thread);
    const int64_t tile_rows = (g->m + RT_MR - 1) / RT_MR, tile_cols = (g->n + RT_NR - 1) / RT_NR;
    const int64_t k = rt_depth(g), blocks_k = (k + g->block_k - 1) / g->block_k;
    /* Every thread makes the same number of turns, so that it meets the others at each barrier. */
    const int64_t most_rows = (tile_rows + g->grid_m - 1) / g->grid_m;
    const int64_t most_cols = (tile_cols + g->grid_n - 1) / g->grid_n;
    const int64_t most_k = (blocks_k + g->grid_k - 1) / g->grid_k;
    const int64_t blocks_n = (most_cols + g->block_n - 1) / g->block_n;
    const int64_t turns = (g->batch + g->grid_batch - 1) / g->grid_batch;
    const int split_k = g->grid_k > 1;
    /* Threads of one row of the grid need the same A, those of one column the same B: they pack it together, or
     * each for itself. Shared buffers come in pairs: nobody packs over what a slower thread still reads. */
    const int handed_out = g->hand_out == 1 && g->grid_m > 1, by_columns = g->hand_out == 2 && g->grid_n > 1;
    const int share_a = (g->share && g->grid_n > 1) || handed_out, share_b = g->share && g->grid_m > 1;
    int64_t row0 = 0, row1 = tile_rows, col0, col1;
    if (!handed_out)
        rt_share(tile_rows, g->grid_m, at.m, &row0, &row1);
    rt_share(tile_cols, g->grid_n, at.n, &col0, &col1);

    RT_UNUSED const int64_t whole_step = (row1 - row0) * (RT_MR * g->block_k + g->pad);
    const int64_t group = at.batch * g->grid_k + at.k;
    RT_UNUSED float *area_a = g->workspace + g->at_a;
    RT_UNUSED float *area_b = g->workspace + g->at_b;
    /* Handed out, all threads of a part of k share one A. */
    area_a += share_a ? (handed_out ? group : group * g->grid_m + at.m) * 2 * g->size_a : thread * g->size_a;
    area_b += share_b ? (group * g->grid_n + at.n) * 2 * g->size_b : thread * g->size_b;
    float *partial = g->workspace + g->at_partial + at.batch * g->grid_k * g->size_partial;
    RT_UNUSED float *edge = g->workspace + g->at_edge + thread * g->size_edge;
    const int64_t partial_pitch = tile_cols * RT_NR;
    RT_UNUSED int flip_a = 0, flip_b = 0;
    int64_t *counters = (int64_t *)(g->workspace + g->at_counters) + group * 16; /* two, a cache line apart */
    int64_t visited = 0, mine = 0;

    struct tile t = {0};
    t.ld_a = g->ld_a, t.ld_b = g->ld_b, t.ld_c = g->ld_c;
    t.ld_out = split_k ? partial_pitch : g->ld_out;
    t.alpha = g->alpha, t.beta = rt_beta(g), t.raw = split_k;

    for (int64_t turn = 0; turn < turns; turn++) {
        const int64_t index = turn * g->grid_batch + at.batch;
        const int present = index < g->batch;
        const struct rt_entry e = rt_entry_of(g, present ? index : 0);
        const int64_t visits = by_columns && most_k ? INT64_MAX : blocks_n * most_k;
        if (by_columns && at.n == 0) /* read after the barrier that follows the packing of A */
            __atomic_store_n(counters + (turn & 1) * 8, 0, __ATOMIC_RELAXED);
        for (int64_t visit = 0; visit < visits; visit++) {
            int64_t jb = (g->k_outer ? visit % blocks_n : visit / most_k) * g->block_n;
            const int64_t pb = g->k_outer ? visit / blocks_n : visit % most_k;
            struct block blk = {0};
            blk.j0 = col0 + jb, blk.j1 = present ? rt_min(blk.j0 + g->block_n, col1) : blk.j0;
            blk.p0 = (at.k * most_k + pb) * g->block_k;
            blk.depth = rt_max(0, rt_min(g->block_k, k - blk.p0));
            blk.last = blk.p0 + blk.depth == k;
            t.depth = blk.depth, t.first = pb == 0;
            RT_UNUSED int64_t from, to;
#if RT_PACK_A
            /* A thread without columns still packs its share of A for the others. */
            const int helps = blk.depth > 0 && present;
            if (g->whole_a ? visit == 0 : g->k_outer && jb == 0) {
                area_a += share_a ? (flip_a ? -g->size_a : g->size_a) : 0, flip_a ^= 1;
                if (handed_out)
                    rt_share(row1 - row0, g->grid_m, at.m, &from, &to);
                else
                    rt_share(row1 - row0, share_a ? g->grid_n : 1, share_a ? at.n : 0, &from, &to);
                const int64_t times = g->whole_a ? most_k : 1;
                for (int64_t q = 0; q < times && present; q++) {
                    const int64_t p0 = blk.p0 + q * g->block_k, depth = rt_min(g->block_k, k - p0);
                    if (depth > 0)
                        pack_a(g, e.a, p0, depth, row0, from, to, area_a + q * whole_step);
                }
                if ((share_a && !handed_out) || by_columns)
                    barrier->wait(barrier, thread);
            }
            const float *kept_a = area_a + (g->whole_a ? pb * whole_step : 0);
#else
            const float *kept_a = NULL;
            if (by_columns && visit == 0)
                barrier->wait(barrier, thread);
#endif
            if (by_columns) {
                if (pb == 0)
                    mine = __atomic_fetch_add(counters + (turn & 1) * 8, 1, __ATOMIC_RELAXED) * g->block_n;
                if (mine >= tile_cols)
                    break;
                blk.j0 = mine, blk.j1 = present ? rt_min(mine + g->block_n, tile_cols) : mine;
            }
            const int busy = blk.depth > 0 && blk.j1 > blk.j0;
#if RT_PACK_B
            area_b += share_b ? (flip_b ? -g->size_b : g->size_b) : 0, flip_b ^= 1;
            blk.panels_b = area_b;
            rt_share(rt_max(0, blk.j1 - blk.j0), share_b ? g->grid_m : 1, share_b ? at.m : 0, &from, &to);
            if (busy)
                pack_b(g, e.b, blk.p0, blk.depth, blk.j0, from, to, area_b);
            if (share_b && !handed_out)
                barrier->wait(barrier, thread);
            if (g->fetch_blocks && busy && visit + 1 < visits) {
                const int64_t next_jb = (g->k_outer ? (visit + 1) % blocks_n : (visit + 1) / most_k) * g->block_n;
                const int64_t next_pb = g->k_outer ? (visit + 1) / blocks_n : (visit + 1) % most_k;
                const int64_t j0 = by_columns ? blk.j0 : col0 + next_jb;
                const int64_t j1 = by_columns ? (next_pb ? blk.j1 : j0) : rt_min(j0 + g->block_n, col1);
                const int64_t p0 = (at.k * most_k + next_pb) * g->block_k;
                const int64_t depth = rt_max(0, rt_min(g->block_k, k - p0));
                rt_share(rt_max(0, j1 - j0), share_b ? g->grid_m : 1, share_b ? at.m : 0, &from, &to);
                const int64_t cols = rt_min((j0 + to) * RT_NR, g->n) - (j0 + from) * RT_NR;
                const int64_t tile_count = (row1 - row0) * (blk.j1 - blk.j0);
                if (cols > 0 && depth > 0)
                    blk.next_b = rt_ahead_of(b_at(g, e.b, p0, (j0 + from) * RT_NR), g->ld_b, RT_B_NK ? cols : depth,
                                          RT_B_NK ? depth : cols, tile_count);
            }
#else
            if (busy && blk.j1 * RT_NR > g->n) {
                const int64_t col = (blk.j1 - 1) * RT_NR;
                rt_pack(b_at(g, e.b, blk.p0, col), g->ld_b, RT_B_NK, blk.depth, g->n - col, RT_NR, edge);
                blk.edge_b = edge;
            }
#endif
            if (handed_out) {
                int64_t *taken = counters + (visited++ & 1) * 8;
                if (at.m == 0)
                    __atomic_store_n(taken, 0, __ATOMIC_RELAXED);
                barrier->wait(barrier, thread);
                if (busy)
                    hand_out(g, &e, &blk, &t, partial + at.k * g->size_partial, kept_a, tile_rows, g->grid_m, taken);
                continue;
            }
            for (int64_t ib = 0; ib < most_rows; ib += g->block_m) {
                blk.i0 = row0 + ib, blk.i1 = rt_min(blk.i0 + g->block_m, row1);
#if RT_PACK_A
                if (g->k_outer || g->whole_a) {
                    blk.panels_a = kept_a + ib * (RT_MR * blk.depth + g->pad);
                } else {
                    area_a += share_a ? (flip_a ? -g->size_a : g->size_a) : 0, flip_a ^= 1;
                    blk.panels_a = area_a;
                    rt_share(rt_max(0, blk.i1 - blk.i0), share_a ? g->grid_n : 1, share_a ? at.n : 0, &from, &to);
                    if (helps)
                        pack_a(g, e.a, blk.p0, blk.depth, blk.i0, from, to, area_a);
                    if (share_a)
                        barrier->wait(barrier, thread);
                    const int64_t i0 = blk.i1, i1 = rt_min(i0 + g->block_m, row1);
                    if (g->fetch_blocks && i1 > i0) {
                        const int64_t rows = rt_min(i1 * RT_MR, g->m) - i0 * RT_MR;
                        blk.next_a = rt_ahead_of(a_at(g, e.a, i0 * RT_MR, blk.p0), g->ld_a, RT_A_KM ? blk.depth : rows,
                                              RT_A_KM ? rows : blk.depth, (blk.i1 - blk.i0) * (blk.j1 - blk.j0));
                    }
                }
#endif
                if (busy && blk.i1 > blk.i0)
                    block_tiles(g, &e, &blk, &t, partial + at.k * g->size_partial);
            }
        }
        if (k == 0) {
            if (present) {
                int64_t from, to;
                rt_share(g->m, threads / g->grid_batch, thread % (threads / g->grid_batch), &from, &to);
                rt_finish(g, &e, from, 0, to - from, g->n, NULL, 0, 0, 0);
            }
        } else if (split_k) {
            const int64_t team = threads / g->grid_batch, parts = (blocks_k + most_k - 1) / most_k;
            int64_t from, to;
            barrier->wait(barrier, thread);
            rt_share(g->m, team, thread % team, &from, &to);
            if (present)
                rt_finish(g, &e, from, 0, to - from, g->n, partial + from * partial_pitch, partial_pitch, parts,
                          g->size_partial);
            barrier->wait(barrier, thread); /* the next entry writes its sums over these */
        }
    }
}
