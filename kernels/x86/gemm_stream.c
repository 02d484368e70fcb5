/* How is a GEMM of few rows computed, with B read from memory once and as fast as memory gives it?
 *
 * B is k x n here (n x k: gemm_dots.c). Whole rows of B are walked, a few at a time and as wide as the thread's share,
 * because memory and its prefetchers are at their best with few long streams: walking down k in a narrow strip meets a
 * new page, and on power-of-two pitches the same cache set, in every row. So sums do not stay in registers; they wait
 * in L1 or L2, strip by strip (RT_NR columns, all rows), and each visit adds block_k steps of k to them. Either the
 * piece of B is held in registers (RT_HOLD_B 1: RT_STEP x RT_NV vectors, and every row of A runs past them), or a tile
 * of sums (RT_HOLD_B 0: RT_MR x RT_NV, RT_STEP steps unrolled).
 *
 * Threads share n, or parts of k whose sums are added in a fixed order. A is small; it is packed once.
 */
#include "rt_gemm.h"

#if RT_B_NK
#error "B stored n x k is for gemm_dots.c"
#endif

#ifndef RT_PREFETCH
#define RT_PREFETCH 0 /* floats ahead in each row of B, 0: only what the hardware does */
#endif

#ifndef RT_HOLD_B
#define RT_HOLD_B 0
#endif
#define STRIP(rows) ((rows)*RT_NR)

RT_INLINE void fetch_ahead(const float *b, const int ahead)
{
    if (ahead)
        RT_UNROLL for (int j = 0; j < RT_NR; j += RT_LINE_FLOATS) rt_fetch(b + j + ahead);
}

#if RT_HOLD_B

/* A packed: RT_STEP values of a row side by side, all rows, then the next RT_STEP. */
RT_INLINE void piece(const float *b, int64_t ld_b, const float *a, float *sums, int64_t rows, const int ahead)
{
    vf held[RT_STEP][RT_NV];
    RT_UNROLL for (int u = 0; u < RT_STEP; u++)
    {
        fetch_ahead(b + u * ld_b, ahead);
        RT_UNROLL for (int j = 0; j < RT_NV; j++)
        {
            held[u][j] = v_load(b + u * ld_b + j * RT_VL);
            rt_keep(held[u][j]);
        }
    }
    for (int64_t i = 0; i < rows; i++, a += RT_STEP, sums += RT_NR) {
        vf acc[RT_NV];
        RT_UNROLL for (int j = 0; j < RT_NV; j++) acc[j] = v_load(sums + j * RT_VL);
        RT_UNROLL for (int u = 0; u < RT_STEP; u++)
        {
            vf x = v_broadcast(a + u);
            RT_UNROLL for (int j = 0; j < RT_NV; j++) rt_fma(acc[j], x, held[u][j]);
        }
        RT_UNROLL for (int j = 0; j < RT_NV; j++) v_store(sums + j * RT_VL, acc[j]);
    }
}

RT_INLINE void strip(const float *b, int64_t ld_b, const float *a, float *sums, int64_t rows, int64_t depth,
                     const int ahead)
{
    for (; depth > 0; depth -= RT_STEP, b += RT_STEP * ld_b, a += rows * RT_STEP)
        piece(b, ld_b, a, sums, rows, ahead);
}
#define PANEL 1

#else

/* A packed: RT_MR values of a column side by side, one column for each step, then the next RT_MR rows. */
RT_INLINE void tile(const float *b, int64_t ld_b, const float *a, float *sums, int64_t depth, const int rows)
{
    vf acc[RT_MR][RT_NV];
    RT_UNROLL for (int i = 0; i < rows; i++)
        RT_UNROLL for (int j = 0; j < RT_NV; j++) acc[i][j] = v_load(sums + i * RT_NR + j * RT_VL);
    for (; depth > 0; depth -= RT_STEP, b += RT_STEP * ld_b, a += RT_STEP * RT_MR) {
        RT_UNROLL for (int u = 0; u < RT_STEP; u++)
        {
            vf held[RT_NV];
            RT_UNROLL for (int j = 0; j < RT_NV; j++)
            {
                held[j] = v_load(b + u * ld_b + j * RT_VL);
                rt_keep(held[j]);
            }
            RT_UNROLL for (int i = 0; i < rows; i++)
            {
                vf x = v_broadcast(a + u * RT_MR + i);
                RT_UNROLL for (int j = 0; j < RT_NV; j++) rt_fma(acc[i][j], x, held[j]);
            }
        }
    }
    RT_UNROLL for (int i = 0; i < rows; i++)
        RT_UNROLL for (int j = 0; j < RT_NV; j++) v_store(sums + i * RT_NR + j * RT_VL, acc[i][j]);
}

#define LAST_ROWS(r)                                                                                                  \
    case r:                                                                                                           \
        tile(b, ld_b, a, sums, depth, r);                                                                             \
        break;

RT_INLINE void strip(const float *b, int64_t ld_b, const float *a, float *sums, int64_t rows, int64_t depth,
                     const int ahead)
{
    if (ahead)
        for (int64_t u = 0; u < depth; u++)
            fetch_ahead(b + u * ld_b, ahead);
    int64_t i = 0;
    for (; i + RT_MR <= rows; i += RT_MR, a += depth * RT_MR, sums += RT_MR * RT_NR)
        tile(b, ld_b, a, sums, depth, RT_MR);
    if (i < rows)
        switch (rows - i) { RT_EACH_ROWS(LAST_ROWS) }
}
#define PANEL RT_MR

#endif

/* A row of strips at one visit. The last strip, or the last visit, may be partial: a padded copy is used. */
RT_NOINLINE void pass(const float *b, int64_t ld_b, const float *a, float *sums, int64_t rows, int64_t cols,
                      int64_t depth)
{
    for (; cols >= RT_NR; cols -= RT_NR, b += RT_NR, sums += STRIP(rows))
        strip(b, ld_b, a, sums, rows, depth, RT_PREFETCH);
}

RT_NOINLINE void pass_at_edge(const float *b, int64_t ld_b, const float *a, float *sums, int64_t rows, int64_t cols,
                              int64_t there, int64_t depth, float *copy)
{
    for (; cols > 0; cols -= RT_NR, b += RT_NR, sums += STRIP(rows)) {
        rt_pack(b, ld_b, 0, there, rt_min(RT_NR, cols), RT_NR, copy);
        memset(copy + there * RT_NR, 0, (size_t)(depth - there) * RT_NR * sizeof(float));
        strip(copy, RT_NR, a, sums, rows, depth, 0);
    }
}

/* One visit's values of A, for all rows. */
RT_INLINE void pack_visit(const struct rt_gemm *g, const float *a, int64_t p, int64_t depth, float *to)
{
    const int64_t there = rt_min(depth, g->k - p);
#if RT_HOLD_B
    for (int64_t q = 0; q < depth; q += RT_STEP)
        for (int64_t i = 0; i < g->m; i++)
            for (int64_t u = q; u < q + RT_STEP; u++)
                *to++ = u >= there ? 0.0f : RT_A_KM ? a[(p + u) * g->ld_a + i] : a[i * g->ld_a + p + u];
#else
    for (int64_t i = 0; i < g->m; i += RT_MR, to += depth * RT_MR) {
        rt_pack(RT_A_KM ? a + p * g->ld_a + i : a + i * g->ld_a + p, g->ld_a, !RT_A_KM, there,
                rt_min(RT_MR, g->m - i), RT_MR, to);
        memset(to + there * RT_MR, 0, (size_t)(depth - there) * RT_MR * sizeof(float));
    }
#endif
}

/* The sums of strips j0..j1 over visits from..to. */
RT_INLINE void sum_up(const struct rt_gemm *g, const struct rt_entry *e, const float *panels, int64_t j0, int64_t j1,
                      int64_t from, int64_t to, float *sums, float *copy)
{
    const int64_t deep = g->block_k, k = rt_depth(g), rows = g->m, col = j0 * RT_NR;
    const int64_t cols = rt_min(j1 * RT_NR, g->n) - col, whole = cols / RT_NR;
    const int64_t visit_floats = (rows + PANEL - 1) / PANEL * PANEL * deep;
    memset(sums, 0, (size_t)((j1 - j0) * STRIP(rows)) * sizeof(float));
    for (int64_t v = from; v < to; v++) {
        const float *b = e->b + v * deep * g->ld_b + col, *a = panels + v * visit_floats;
        const int64_t there = rt_min(deep, k - v * deep);
        int64_t done = 0;
        if (there == deep) {
            pass(b, g->ld_b, a, sums, rows, cols, deep);
            done = whole;
        }
        if (done * RT_NR < cols)
            pass_at_edge(b + done * RT_NR, g->ld_b, a, sums + done * STRIP(rows), rows, cols - done * RT_NR, there,
                         deep, copy);
    }
}

RT_EXPORT void run(const void *args, int thread, int threads, rt_barrier *barrier)
{
    const struct rt_gemm *g = args;
    const struct rt_place at = rt_place_of(g, thread);
    const int64_t team = threads / g->grid_batch, member = thread % team;
    const int64_t deep = g->block_k, visits = (rt_depth(g) + deep - 1) / deep, strips = (g->n + RT_NR - 1) / RT_NR;
    const int64_t rows = g->m, visit_floats = (rows + PANEL - 1) / PANEL * PANEL * deep;
    const int64_t turns = (g->batch + g->grid_batch - 1) / g->grid_batch;
    int64_t strip0, strip1, from, to;
    rt_share(strips, g->grid_n, at.n, &strip0, &strip1);
    float *packed = g->workspace + g->at_a + at.batch * 2 * g->size_a;
    /* With parts of k their sums are kept until all are there; else one block's sums are used again for the next. */
    const int64_t column = at.batch * g->grid_n + at.n;
    float *parts = g->workspace + g->at_partial + column * g->parts * g->size_partial;
    float *sums = g->workspace + g->at_edge + thread * g->size_edge, *copy = sums + g->size_edge - deep * RT_NR;
    int64_t *counters = (int64_t *)(g->workspace + g->at_counters) + column * 16; /* two, a cache line apart */

    for (int64_t turn = 0; turn < turns; turn++) {
        const int64_t index = turn * g->grid_batch + at.batch;
        const int present = index < g->batch;
        const struct rt_entry e = rt_entry_of(g, present ? index : 0);
        float *panels = packed + (turn & 1) * g->size_a;
        int64_t *taken = counters + (turn & 1) * 8;
        if (present) {
            rt_share(visits, team, member, &from, &to);
            for (int64_t v = from; v < to; v++)
                pack_visit(g, e.a, v * deep, deep, panels + v * visit_floats);
        }
        if (g->hand_out && at.k == 0)
            __atomic_store_n(taken, 0, __ATOMIC_RELAXED);
        barrier->wait(barrier, thread);
        if (g->parts == 1) {
            for (int64_t j0 = strip0; present && j0 < strip1; j0 += g->block_n) {
                const int64_t j1 = rt_min(j0 + g->block_n, strip1);
                sum_up(g, &e, panels, j0, j1, 0, visits, sums, copy);
                for (int64_t j = j0; j < j1; j++)
                    rt_finish(g, &e, 0, j * RT_NR, rows, rt_min(RT_NR, g->n - j * RT_NR), sums + (j - j0) * STRIP(rows),
                              RT_NR, 1, 0);
            }
            continue;
        }
        /* Which thread sums up a part does not matter: the parts are added in their own order. */
        for (int64_t part = at.k; present; part += g->grid_k) {
            if (g->hand_out)
                part = __atomic_fetch_add(taken, 1, __ATOMIC_RELAXED);
            if (part >= g->parts)
                break;
            rt_share(visits, g->parts, part, &from, &to);
            for (int64_t j0 = strip0; j0 < strip1; j0 += g->block_n)
                sum_up(g, &e, panels, j0, rt_min(j0 + g->block_n, strip1), from, to,
                       parts + part * g->size_partial + (j0 - strip0) * STRIP(rows), copy);
        }
        barrier->wait(barrier, thread);
        rt_share(strip1 - strip0, g->grid_k, at.k, &from, &to);
        for (int64_t j = from; present && j < to; j++)
            rt_finish(g, &e, 0, (strip0 + j) * RT_NR, rows, rt_min(RT_NR, g->n - (strip0 + j) * RT_NR),
                      parts + j * STRIP(rows), RT_NR, g->parts, g->size_partial);
        barrier->wait(barrier, thread); /* the next entry's sums go where these are read */
    }
}
