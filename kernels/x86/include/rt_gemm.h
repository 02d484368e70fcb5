/* What do the GEMM templates share: arguments, the grid of threads, and the epilogue?
 *
 *     out = activation(alpha * A @ B + beta * C + bias) + residual      for each entry of the batch, f32
 *
 * Static facets, as macros (the template is compiled once for each combination in use):
 *   RT_MR, RT_NV       register tile: rows, vectors across
 *   RT_UNROLL_K        steps of k in one turn of the inner loop
 *   RT_A_KM            A is stored k x m (else m x k);   RT_B_NK  B is stored n x k (else k x n)
 *   RT_ALPHA, RT_BETA  0 zero, 1 one, 2 any
 *   RT_BIAS            0 none, 1 one value for each column, 2 one for each row (of a transposed result)
 *   RT_ACTIVATION      0 none, 1 relu, 2 gelu, 3 gelu_tanh, 4 silu;   RT_RESIDUAL  0 or 1
 *
 * Sizes, pitches, cache blocks and the grid of threads are arguments: one artifact serves them all.
 * No element outside an operand is read, not even one that is then not used: edges go through small padded copies.
 */
#ifndef RT_GEMM_H
#define RT_GEMM_H

#include "rooftile_abi.h"
#include "rt_act.h"
#include "rt_pack.h"
#include "rt_vec.h"

#ifndef RT_ALPHA
#define RT_ALPHA 2
#endif
#ifndef RT_BETA
#define RT_BETA 0
#endif
#ifndef RT_BIAS
#define RT_BIAS 0
#endif
#ifndef RT_ACTIVATION
#define RT_ACTIVATION 0
#endif
#ifndef RT_RESIDUAL
#define RT_RESIDUAL 0
#endif
#ifndef RT_A_KM
#define RT_A_KM 0
#endif
#ifndef RT_B_NK
#define RT_B_NK 0
#endif

#define RT_NR (RT_VL * RT_NV)
#define RT_EPILOGUE (RT_BIAS || RT_ACTIVATION || RT_RESIDUAL)

/* The launch step's arguments, in its order. Offsets into the workspace count floats. */
struct rt_gemm {
    const float *a, *b, *c;
    float *out;
    const float *bias, *residual;
    float *workspace;
    int64_t m, n, k, batch;
    int64_t ld_a, ld_b, ld_c, ld_out, ld_residual;
    int64_t stride_a, stride_b, stride_c, stride_out, stride_residual;
    int64_t grid_batch, grid_k, grid_m, grid_n; /* their product is the number of threads */
    int64_t parts;                              /* of k, on the streaming path: at least grid_k */
    int64_t block_m, block_n, block_k;          /* rows and columns in register tiles, k in steps */
    int64_t pad;                                /* floats between packed panels */
    int64_t rows_outer;                         /* inside a block: tiles of a row first, else of a column */
    int64_t k_outer;                            /* all of n for a block of k before the next one, else the reverse */
    int64_t share;                              /* threads pack together what several of them need */
    int64_t whole_a;                            /* A is packed once, for all of k */
    int64_t hand_out;                           /* to whichever thread is free: 1 tiles, 2 columns, 3 parts; 0 shares */
    int64_t fetch_panels, fetch_blocks;         /* bring the next panel, the next block, while this one is computed */
    int64_t at_a, size_a;                       /* packed A: where, and floats of one buffer */
    int64_t at_b, size_b;                       /* packed B likewise */
    int64_t at_partial, size_partial;           /* sums of one part of k, m x n, for each part */
    int64_t at_edge, size_edge;                 /* for each thread: padded copies, accumulators */
    int64_t at_counters;                        /* of what was handed out */
    float alpha, beta;
};

/* One thread's place in the grid. */
struct rt_place {
    int64_t batch, k, m, n;
};

RT_INLINE struct rt_place rt_place_of(const struct rt_gemm *g, int thread)
{
    struct rt_place p;
    int64_t t = thread;
    p.n = t % g->grid_n, t /= g->grid_n;
    p.m = t % g->grid_m, t /= g->grid_m;
    p.k = t % g->grid_k, t /= g->grid_k;
    p.batch = t;
    return p;
}

/* The operands of one batch entry. */
struct rt_entry {
    const float *a, *b, *c, *residual;
    float *out;
};

RT_INLINE struct rt_entry rt_entry_of(const struct rt_gemm *g, int64_t i)
{
    struct rt_entry e = {g->a + i * g->stride_a, g->b + i * g->stride_b, NULL, NULL, g->out + i * g->stride_out};
    if (RT_BETA)
        e.c = g->c + i * g->stride_c;
    if (RT_RESIDUAL)
        e.residual = g->residual + i * g->stride_residual;
    return e;
}

/* beta as it acts: with beta 0 C is not read, whatever the problem promised. */
RT_INLINE float rt_beta(const struct rt_gemm *g)
{
    return RT_BETA == 0 ? 0.0f : RT_BETA == 1 ? 1.0f : g->beta;
}

/* k as it acts: with alpha 0 neither A nor B is read. */
RT_INLINE int64_t rt_depth(const struct rt_gemm *g)
{
    if (RT_ALPHA == 0 || (RT_ALPHA == 2 && g->alpha == 0.0f))
        return 0;
    return g->k;
}

RT_INLINE vf rt_activate(vf x)
{
#if RT_ACTIVATION == 1
    return v_relu(x);
#elif RT_ACTIVATION == 2
    return v_gelu(x);
#elif RT_ACTIVATION == 3
    return v_gelu_tanh(x);
#elif RT_ACTIVATION == 4
    return v_silu(x);
#else
    return x;
#endif
}

#if RT_EPILOGUE
/* bias, activation and residual on a block of out that holds alpha * A @ B + beta * C and lies in L1. */
RT_NOINLINE void rt_epilogue(const struct rt_gemm *g, const struct rt_entry *e, int64_t row, int64_t col, int64_t rows,
                             int64_t cols)
{
    for (int64_t i = 0; i < rows; i++) {
        float *out = e->out + (row + i) * g->ld_out + col;
        const float *residual = RT_RESIDUAL ? e->residual + (row + i) * g->ld_residual + col : NULL;
        const float *bias = RT_BIAS == 1 ? g->bias + col : NULL;
        vf row_bias = RT_BIAS == 2 ? v_broadcast(g->bias + row + i) : v_zero();
        int64_t j = 0;
        for (; j + RT_VL <= cols; j += RT_VL) {
            vf x = v_load(out + j);
            if (RT_BIAS)
                x = x + (RT_BIAS == 1 ? v_load(bias + j) : row_bias);
            x = rt_activate(x);
            if (RT_RESIDUAL)
                x = x + v_load(residual + j);
            v_store(out + j, x);
        }
        if (j < cols) {
            float part[RT_VL] = {0}, extra[RT_VL] = {0};
            size_t bytes = (size_t)(cols - j) * sizeof(float);
            memcpy(part, out + j, bytes);
            vf x = v_load(part);
            if (RT_BIAS == 1)
                memcpy(extra, bias + j, bytes);
            if (RT_BIAS)
                x = x + (RT_BIAS == 1 ? v_load(extra) : row_bias);
            x = rt_activate(x);
            if (RT_RESIDUAL) {
                memcpy(extra, residual + j, bytes);
                x = x + v_load(extra);
            }
            v_store(part, x);
            memcpy(out + j, part, bytes);
        }
    }
}
#else
#define rt_epilogue(g, e, row, col, rows, cols) ((void)0)
#endif

/* out = alpha * (the sum over `parts` of sums[part][i][j]) + beta * C on a block, then the epilogue. `pitch` is the
 * distance of rows, `step` that of parts. With parts 0 the product is zero. */
RT_NOINLINE void rt_finish(const struct rt_gemm *g, const struct rt_entry *e, int64_t row, int64_t col, int64_t rows,
                           int64_t cols, const float *sums, int64_t pitch, int64_t parts, int64_t step)
{
    const float alpha = RT_ALPHA == 2 ? g->alpha : 1.0f, beta = rt_beta(g);
    for (int64_t i = 0; i < rows; i++) {
        const float *s = sums + i * pitch;
        float *out = e->out + (row + i) * g->ld_out + col;
        const float *c = RT_BETA ? e->c + (row + i) * g->ld_c + col : NULL;
        int64_t j = 0;
        for (; j + RT_VL <= cols; j += RT_VL) {
            vf x = v_zero();
            for (int64_t p = 0; p < parts; p++)
                x = x + v_load(s + p * step + j);
            if (RT_ALPHA == 2)
                x = x * alpha;
            if (RT_BETA && beta != 0.0f)
                x = beta * v_load(c + j) + x;
            v_store(out + j, x);
        }
        for (; j < cols; j++) {
            float x = 0.0f;
            for (int64_t p = 0; p < parts; p++)
                x += s[p * step + j];
            if (RT_ALPHA == 2)
                x *= alpha;
            if (RT_BETA && beta != 0.0f)
                x = beta * c[j] + x;
            out[j] = x;
        }
    }
    rt_epilogue(g, e, row, col, rows, cols);
}

/* X(1) ... X(RT_MR): a register tile for each number of rows, so that the last rows cost no more than they must. */
#define RT_ROWS_1(X) X(1)
#define RT_ROWS_2(X) RT_ROWS_1(X) X(2)
#define RT_ROWS_3(X) RT_ROWS_2(X) X(3)
#define RT_ROWS_4(X) RT_ROWS_3(X) X(4)
#define RT_ROWS_5(X) RT_ROWS_4(X) X(5)
#define RT_ROWS_6(X) RT_ROWS_5(X) X(6)
#define RT_ROWS_7(X) RT_ROWS_6(X) X(7)
#define RT_ROWS_8(X) RT_ROWS_7(X) X(8)
#define RT_ROWS_9(X) RT_ROWS_8(X) X(9)
#define RT_ROWS_10(X) RT_ROWS_9(X) X(10)
#define RT_ROWS_11(X) RT_ROWS_10(X) X(11)
#define RT_ROWS_12(X) RT_ROWS_11(X) X(12)
#define RT_ROWS_13(X) RT_ROWS_12(X) X(13)
#define RT_ROWS_14(X) RT_ROWS_13(X) X(14)
#define RT_ROWS_OF(mr, X) RT_ROWS_##mr(X)
#define RT_ROWS_OF_(mr, X) RT_ROWS_OF(mr, X)
#define RT_EACH_ROWS(X) RT_ROWS_OF_(RT_MR, X)

#endif
