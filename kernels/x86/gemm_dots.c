/* How is a GEMM of few rows computed where B is stored n x k, as weights of a linear layer mostly are?
 *
 * Each row of B is a dot product with each row of A: RT_MR rows of A meet RT_NB rows of B, vectors run along k, and B is
 * read once, in long streams. block_k floats of k at a time keep the rows of A in L1 or L2 meanwhile.
 * Threads share n, in fixed shares or in pieces handed out, or k with sums that are added in a fixed order.
 */
#include "rt_gemm.h"

#if !RT_B_NK
#error "B stored k x n is for gemm_stream.c"
#endif

#ifndef RT_PREFETCH
#define RT_PREFETCH 0 /* floats ahead in each row of B, 0: only what the hardware does */
#endif

#ifndef RT_NB
#define RT_NB 4
#endif

/* Sums of rows x RT_NB dot products over `depth` floats, added to `sums` (vectors, a row's RT_NB side by side). */
RT_INLINE void dots(const float *a, int64_t ld_a, const float *b, int64_t ld_b, int64_t depth, float *sums,
                    const int rows, const int cols)
{
    vf acc[RT_MR][RT_NB];
    RT_UNROLL for (int i = 0; i < rows; i++)
        RT_UNROLL for (int j = 0; j < cols; j++) acc[i][j] = v_load(sums + (i * RT_NB + j) * RT_VL);
    int64_t p = 0;
    for (; p + RT_VL <= depth; p += RT_VL) {
        vf held[RT_NB];
        RT_UNROLL for (int j = 0; j < cols; j++)
        {
            held[j] = v_load(b + j * ld_b + p);
            rt_keep(held[j]);
#if RT_PREFETCH
            rt_fetch(b + j * ld_b + p + RT_PREFETCH);
#endif
        }
        RT_UNROLL for (int i = 0; i < rows; i++)
        {
            vf x = v_load(a + i * ld_a + p);
            rt_keep(x);
            RT_UNROLL for (int j = 0; j < cols; j++) rt_fma(acc[i][j], x, held[j]);
        }
    }
    if (p < depth) {
        vf held[RT_NB];
        float part[RT_VL] = {0};
        const size_t bytes = (size_t)(depth - p) * sizeof(float);
        RT_UNROLL for (int j = 0; j < cols; j++)
        {
            memcpy(part, b + j * ld_b + p, bytes);
            held[j] = v_load(part);
        }
        RT_UNROLL for (int i = 0; i < rows; i++)
        {
            memcpy(part, a + i * ld_a + p, bytes);
            vf x = v_load(part);
            RT_UNROLL for (int j = 0; j < cols; j++) rt_fma(acc[i][j], x, held[j]);
        }
    }
    RT_UNROLL for (int i = 0; i < rows; i++)
        RT_UNROLL for (int j = 0; j < cols; j++) v_store(sums + (i * RT_NB + j) * RT_VL, acc[i][j]);
}

typedef void (*dots_function)(const float *a, int64_t ld_a, const float *b, int64_t ld_b, int64_t depth, float *sums);
#define DEFINE_DOTS(rows)                                                                                             \
    RT_NOINLINE void dots_##rows(const float *a, int64_t ld_a, const float *b, int64_t ld_b, int64_t depth,           \
                                 float *sums)                                                                         \
    {                                                                                                                 \
        dots(a, ld_a, b, ld_b, depth, sums, rows, RT_NB);                                                             \
    }                                                                                                                 \
    RT_NOINLINE void one_dot_##rows(const float *a, int64_t ld_a, const float *b, int64_t ld_b, int64_t depth,        \
                                    float *sums)                                                                      \
    {                                                                                                                 \
        dots(a, ld_a, b, ld_b, depth, sums, rows, 1);                                                                 \
    }
#define NAME_DOTS(rows) dots_##rows,
#define NAME_ONE_DOT(rows) one_dot_##rows,
RT_EACH_ROWS(DEFINE_DOTS)
static const dots_function dots_of[] = {NULL, RT_EACH_ROWS(NAME_DOTS)};
static const dots_function one_dot_of[] = {NULL, RT_EACH_ROWS(NAME_ONE_DOT)};

RT_EXPORT void run(const void *args, int thread, int threads, rt_barrier *barrier)
{
    const struct rt_gemm *g = args;
    const struct rt_place at = rt_place_of(g, thread);
    const int64_t team = threads / g->grid_batch, member = thread % team;
    const int64_t k = rt_depth(g), groups = (g->n + RT_NB - 1) / RT_NB, vectors = (k + RT_VL - 1) / RT_VL;
    const int64_t turns = (g->batch + g->grid_batch - 1) / g->grid_batch;
    const int split_k = g->grid_k > 1;
    int64_t group0, group1, vector0, vector1;
    rt_share(groups, g->grid_n, at.n, &group0, &group1);
    rt_share(vectors, g->grid_k, at.k, &vector0, &vector1);
    const int64_t p0 = vector0 * RT_VL, p1 = rt_min(k, vector1 * RT_VL);
    float *packed = g->workspace + g->at_a + at.batch * 2 * g->size_a;
    float *vectors_of = g->workspace + g->at_edge + thread * g->size_edge; /* m x RT_NB sums, as vectors */
    float *partial = g->workspace + g->at_partial + at.batch * g->grid_k * g->size_partial;
    const int64_t pitch = groups * RT_NB; /* of partial, which holds whole results, k part by k part */
    int64_t *counters = (int64_t *)(g->workspace + g->at_counters) + at.batch * 16;
    const int64_t piece = rt_max(1, groups / (16 * g->grid_n));

    for (int64_t turn = 0; turn < turns; turn++) {
        const int64_t index = turn * g->grid_batch + at.batch;
        const int present = index < g->batch;
        const struct rt_entry e = rt_entry_of(g, present ? index : 0);
        const float *a = e.a;
        int64_t ld_a = g->ld_a, from, to;
        if (RT_A_KM) {
            float *rows = packed + (turn & 1) * g->size_a;
            rt_share(g->m, team, member, &from, &to);
            if (present && k)
                rt_pack(e.a + from, g->ld_a, 1, to - from, k, k, rows + from * k);
            barrier->wait(barrier, thread);
            a = rows, ld_a = k;
        }
        float *mine = partial + at.k * g->size_partial;
        int64_t *taken = counters + (turn & 1) * 8, taken_to = 0;
        if (g->hand_out) {
            if (at.n == 0)
                __atomic_store_n(taken, 0, __ATOMIC_RELAXED);
            barrier->wait(barrier, thread);
        }
        for (int64_t j = g->hand_out ? 0 : group0; present && j < (g->hand_out ? groups : group1); j++) {
            if (g->hand_out && j == taken_to) {
                j = __atomic_fetch_add(taken, piece, __ATOMIC_RELAXED);
                if (j >= groups)
                    break;
                taken_to = rt_min(j + piece, groups);
            }
            const int64_t col = j * RT_NB, cols = rt_min(RT_NB, g->n - col);
            memset(vectors_of, 0, (size_t)(g->m * RT_NB * RT_VL) * sizeof(float));
            for (int64_t p = p0; p < p1; p += g->block_k) {
                const int64_t depth = rt_min(g->block_k, p1 - p);
                for (int64_t i = 0; i < g->m; i += RT_MR) {
                    const int64_t rows = rt_min(RT_MR, g->m - i);
                    const float *x = a + i * ld_a + p, *y = e.b + col * g->ld_b + p;
                    float *s = vectors_of + i * RT_NB * RT_VL;
                    if (cols == RT_NB)
                        dots_of[rows](x, ld_a, y, g->ld_b, depth, s);
                    else
                        for (int64_t c = 0; c < cols; c++)
                            one_dot_of[rows](x, ld_a, y + c * g->ld_b, g->ld_b, depth, s + c * RT_VL);
                }
            }
            for (int64_t i = 0; i < g->m; i++)
                for (int64_t c = 0; c < RT_NB; c++)
                    mine[i * pitch + col + c] = v_sum(v_load(vectors_of + (i * RT_NB + c) * RT_VL));
            if (g->hand_out && j + 1 == taken_to) {
                const int64_t first = (j / piece) * piece * RT_NB;
                rt_finish(g, &e, 0, first, g->m, rt_min(taken_to * RT_NB, g->n) - first, mine + first, pitch, 1, 0);
            }
        }
        if (g->hand_out)
            continue;
        if (split_k) {
            barrier->wait(barrier, thread);
            rt_share(g->m, team, member, &from, &to);
            if (present)
                rt_finish(g, &e, from, 0, to - from, g->n, partial + from * pitch, pitch, g->grid_k, g->size_partial);
            barrier->wait(barrier, thread);
        } else if (present) {
            const int64_t col = group0 * RT_NB, end = rt_min(group1 * RT_NB, g->n);
            rt_finish(g, &e, 0, col, g->m, rt_max(0, end - col), mine + col, pitch, 1, 0);
        }
    }
}
