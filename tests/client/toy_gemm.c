/* A slow, simple kernel for testing the launcher: every operand, stride and scalar of a GEMM plan.
 *
 * Entry `run` shares rows out among threads. Entries `split` and `reduce` share k out: each thread adds its part
 * of k into its own slice of the workspace, which the plan must have zeroed; `reduce` sums the slices. */
#include "rooftile_abi.h"
#include <stdint.h>

struct args {
    const float *a, *b, *c;
    float *out;
    const float *bias, *residual;
    float *workspace;
    int64_t m, n, k, batch;
    int64_t ld_a, ld_b, ld_c, ld_out, ld_residual;
    int64_t stride_a, stride_b, stride_c, stride_out, stride_residual;
    int32_t b_is_nk;
    float alpha, beta;
};

static float at_b(const struct args *p, int64_t e, int64_t l, int64_t j)
{
    return p->b_is_nk ? p->b[e * p->stride_b + j * p->ld_b + l] : p->b[e * p->stride_b + l * p->ld_b + j];
}

static void store(const struct args *p, int64_t e, int64_t i, int64_t j, float sum)
{
    float v = p->alpha * sum;
    if (p->beta != 0.0f)
        v += p->beta * p->c[e * p->stride_c + i * p->ld_c + j];
    if (p->bias)
        v += p->bias[j];
    if (p->residual)
        v += p->residual[e * p->stride_residual + i * p->ld_residual + j];
    p->out[e * p->stride_out + i * p->ld_out + j] = v;
}

RT_EXPORT void run(const void *args, int thread, int threads, rt_barrier *barrier)
{
    const struct args *p = args;
    for (int64_t e = 0; e < p->batch; e++)
        for (int64_t i = thread; i < p->m; i += threads)
            for (int64_t j = 0; j < p->n; j++) {
                float sum = 0;
                for (int64_t l = 0; l < p->k; l++)
                    sum += p->a[e * p->stride_a + i * p->ld_a + l] * at_b(p, e, l, j);
                store(p, e, i, j, sum);
            }
    barrier->wait(barrier, thread);
}

RT_EXPORT void split(const void *args, int thread, int threads, rt_barrier *barrier)
{
    const struct args *p = args;
    float *mine = p->workspace + (int64_t)thread * p->batch * p->m * p->n;
    (void)barrier;
    for (int64_t e = 0; e < p->batch; e++)
        for (int64_t i = 0; i < p->m; i++)
            for (int64_t j = 0; j < p->n; j++)
                for (int64_t l = thread; l < p->k; l += threads)
                    mine[(e * p->m + i) * p->n + j] += p->a[e * p->stride_a + i * p->ld_a + l] * at_b(p, e, l, j);
}

RT_EXPORT void reduce(const void *args, int thread, int threads, rt_barrier *barrier)
{
    const struct args *p = args;
    int64_t size = p->batch * p->m * p->n;
    (void)barrier;
    for (int64_t x = thread; x < size; x += threads) {
        float sum = 0;
        for (int t = 0; t < threads; t++)
            sum += p->workspace[t * size + x];
        store(p, x / (p->m * p->n), x / p->n % p->m, x % p->n, sum);
    }
}

/* For the pool: each thread adds 1 to its own counter between barriers, then checks all the others'. */
struct check {
    int32_t *counters;
    int32_t *wrong;
    int64_t rounds;
};

RT_EXPORT void lockstep(const void *args, int thread, int threads, rt_barrier *barrier)
{
    const struct check *p = args;
    for (int64_t round = 1; round <= p->rounds; round++) {
        p->counters[thread * 16]++;
        barrier->wait(barrier, thread);
        for (int t = 0; t < threads; t++)
            if (p->counters[t * 16] != round)
                __atomic_fetch_add(p->wrong, 1, __ATOMIC_RELAXED);
        barrier->wait(barrier, thread);
    }
}

RT_EXPORT void nothing(const void *args, int thread, int threads, rt_barrier *barrier)
{
    (void)args, (void)thread, (void)threads, (void)barrier;
}
