/* How is one register tile of C computed: RT_MR x RT_NR sums over a block of k, then into C?
 *
 * Macros: RT_PACK_A, RT_PACK_B  the operand comes from panels, else from where it lies
 *         RT_HOLD_A             1 holds a column of A in registers and runs over B, 0 the reverse
 *         RT_UNROLL_K           steps of k in one turn of the loop
 */
#ifndef RT_TILE_H
#define RT_TILE_H

#include "rt_gemm.h"

#ifndef RT_PACK_A
#define RT_PACK_A 1
#endif
#ifndef RT_PACK_B
#define RT_PACK_B 1
#endif
#ifndef RT_HOLD_A
#define RT_HOLD_A 0
#endif
#if RT_B_NK && !RT_PACK_B
#error "B stored n x k has to be packed"
#endif

/* Distance in A of one step of k, and of one row. */
#if RT_PACK_A
#define A_STEP RT_MR
#define A_ROW 1
#elif RT_A_KM
#define A_STEP ld_a
#define A_ROW 1
#else
#define A_STEP 1
#define A_ROW ld_a
#endif

/* One tile's work; what changes from tile to tile. */
struct tile {
    const float *a, *b, *c;
    float *out;
    int64_t ld_a, ld_b, ld_c, ld_out, depth;
    float alpha, beta;
    int first; /* the first block of k: out is written, else added to */
    int raw;   /* neither alpha nor beta: partial sums */
};

RT_INLINE void tile_step(vf acc[RT_MR][RT_NV], const float *a, const int64_t row, const float *b, const int rows)
{
#if RT_HOLD_A
    vf held[RT_MR];
    RT_UNROLL for (int i = 0; i < rows; i++)
    {
        held[i] = v_broadcast(a + i * row);
        rt_keep(held[i]);
    }
    RT_UNROLL for (int j = 0; j < RT_NV; j++)
    {
        vf x = v_load(b + j * RT_VL);
        rt_keep(x);
        RT_UNROLL for (int i = 0; i < rows; i++) rt_fma(acc[i][j], held[i], x);
    }
#else
    vf held[RT_NV];
    RT_UNROLL for (int j = 0; j < RT_NV; j++)
    {
        held[j] = v_load(b + j * RT_VL);
        rt_keep(held[j]);
    }
    RT_UNROLL for (int i = 0; i < rows; i++)
    {
        vf x = v_broadcast(a + i * row);
        RT_UNROLL for (int j = 0; j < RT_NV; j++) rt_fma(acc[i][j], x, held[j]);
    }
#endif
}

RT_INLINE void tile_compute(const struct tile *t, const int rows, const int packed_b)
{
    vf acc[RT_MR][RT_NV];
    const float *a = t->a, *b = t->b;
    const int64_t ld_a = t->ld_a, b_step = packed_b ? RT_NR : t->ld_b, ld_out = t->ld_out;
    (void)ld_a;
    float *out = t->out;
    /* The tile of out is needed after the loop: fetch it during the loop. */
    RT_UNROLL for (int i = 0; i < rows; i++)
    {
        RT_UNROLL for (int j = 0; j < RT_NR; j += RT_LINE_FLOATS)
            rt_fetch(out + i * ld_out + j);
    }
    RT_UNROLL for (int i = 0; i < rows; i++) RT_UNROLL for (int j = 0; j < RT_NV; j++) acc[i][j] = v_zero();

    int64_t p = 0;
    for (; p + RT_UNROLL_K <= t->depth; p += RT_UNROLL_K) {
        RT_UNROLL for (int u = 0; u < RT_UNROLL_K; u++) tile_step(acc, a + u * A_STEP, A_ROW, b + u * b_step, rows);
        a += RT_UNROLL_K * A_STEP;
        b += RT_UNROLL_K * b_step;
    }
    for (; p < t->depth; p++, a += A_STEP, b += b_step)
        tile_step(acc, a, A_ROW, b, rows);

    if (RT_ALPHA == 2 && !t->raw) {
        const float alpha = t->alpha;
        RT_UNROLL for (int i = 0; i < rows; i++)
            RT_UNROLL for (int j = 0; j < RT_NV; j++) acc[i][j] = acc[i][j] * alpha;
    }
    if (!t->first) {
        RT_UNROLL for (int i = 0; i < rows; i++) RT_UNROLL for (int j = 0; j < RT_NV; j++)
            acc[i][j] = acc[i][j] + v_load(out + i * ld_out + j * RT_VL);
    } else if (RT_BETA && !t->raw && t->beta != 0.0f) {
        const float beta = t->beta;
        RT_UNROLL for (int i = 0; i < rows; i++) RT_UNROLL for (int j = 0; j < RT_NV; j++)
            acc[i][j] = beta * v_load(t->c + i * t->ld_c + j * RT_VL) + acc[i][j];
    }
    RT_UNROLL for (int i = 0; i < rows; i++)
        RT_UNROLL for (int j = 0; j < RT_NV; j++) v_store(out + i * ld_out + j * RT_VL, acc[i][j]);
}

typedef void (*tile_function)(const struct tile *t);
#define DEFINE_TILE(rows)                                                                                             \
    RT_NOINLINE void tile_##rows(const struct tile *t) { tile_compute(t, rows, RT_PACK_B); }
#define NAME_TILE(rows) tile_##rows,
RT_EACH_ROWS(DEFINE_TILE)
static const tile_function tiles[] = {NULL, RT_EACH_ROWS(NAME_TILE)};
#if RT_PACK_B
#define edge_tiles tiles
#else
#define DEFINE_EDGE_TILE(rows)                                                                                        \
    RT_NOINLINE void edge_tile_##rows(const struct tile *t) { tile_compute(t, rows, 1); }
#define NAME_EDGE_TILE(rows) edge_tile_##rows,
RT_EACH_ROWS(DEFINE_EDGE_TILE)
static const tile_function edge_tiles[] = {NULL, RT_EACH_ROWS(NAME_EDGE_TILE)};
#endif

/* A tile with columns beyond the edge: into a full tile aside, and from there what is inside. */
RT_NOINLINE void tile_at_edge(const struct tile *t, int64_t rows, int64_t cols)
{
    float full[RT_MR * RT_NR];
    struct tile aside = *t;
    aside.out = full, aside.ld_out = RT_NR, aside.first = 1, aside.raw = 1;
    edge_tiles[rows](&aside);
    const float alpha = RT_ALPHA == 2 && !t->raw ? t->alpha : 1.0f;
    const int add_c = RT_BETA && t->first && !t->raw && t->beta != 0.0f;
    for (int64_t i = 0; i < rows; i++) {
        float *out = t->out + i * t->ld_out;
        for (int64_t j = 0; j < cols; j++) {
            float x = full[i * RT_NR + j] * alpha;
            if (!t->first)
                x += out[j];
            else if (add_c)
                x += t->beta * t->c[i * t->ld_c + j];
            out[j] = x;
        }
    }
}

#endif
