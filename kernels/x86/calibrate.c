/* How fast can this CPU be at best? Arithmetic peak and memory bandwidth, as a kernel of the usual ABI.
 *
 * mode 0: `count` rounds of independent fused multiply-adds on each thread, enough chains to hide their
 *         latency (4 to 5 cycles, two units: 10 chains; 12 are used, 24 where there are 32 registers).
 *         flops = threads * count * CHAINS * LANES * 2, and rt_calibrate_flops() says CHAINS * LANES * 2.
 * mode 1: every thread reads its share of `data` (`bytes` in all) once, `count` times over.
 *
 * sink holds one float for each thread, so that no compiler leaves the work out.
 */
#include "rooftile_abi.h"

#include <stddef.h>
#include <stdint.h>

#if defined(__AVX512F__)
#define LANES 16
#define CHAINS 24
#else
#define LANES 8
#define CHAINS 12
#endif

typedef float vec __attribute__((vector_size(LANES * 4), aligned(4)));

struct args {
    const void *data;
    float *sink;
    int64_t mode;
    int64_t bytes;
    int64_t count;
};

RT_EXPORT int64_t rt_calibrate_flops(void) { return (int64_t)CHAINS * LANES * 2; }

static float total(vec v)
{
    float sum = 0.0f;
    for (int i = 0; i < LANES; i++)
        sum += v[i];
    return sum;
}

static float multiply_add(int64_t count)
{
    vec chain[CHAINS];
    vec scale, shift;
    for (int i = 0; i < LANES; i++) {
        scale[i] = 0.999f;
        shift[i] = 0.001f;
    }
    /* Kept in registers and out of the compiler's sight: it may not fold rounds together. */
    __asm__ volatile("" : "+x"(scale), "+x"(shift));
    for (int c = 0; c < CHAINS; c++)
        chain[c] = shift * (float)(c + 1);
    for (int64_t i = 0; i < count; i++) {
#pragma GCC unroll 24
        for (int c = 0; c < CHAINS; c++)
            chain[c] = chain[c] * scale + shift;
    }
    vec sum = chain[0];
    for (int c = 1; c < CHAINS; c++)
        sum += chain[c];
    return total(sum);
}

static float read_once(const char *from, const char *to)
{
    vec sum[8] = {{0}};
    const int64_t step = 8 * (int64_t)sizeof(vec);
    for (; from + step <= to; from += step) {
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++)
            sum[i] += ((const vec *)(const void *)from)[i];
    }
    for (int i = 1; i < 8; i++)
        sum[0] += sum[i];
    return total(sum[0]);
}

RT_EXPORT void run(const void *packed, int thread, int threads, rt_barrier *barrier)
{
    const struct args *args = packed;
    float result = 0.0f;
    barrier->wait(barrier, thread);
    if (args->mode == 0) {
        result = multiply_add(args->count);
    } else {
        /* Whole pages for each thread. */
        int64_t share = (args->bytes / threads + 4095) / 4096 * 4096;
        int64_t begin = share * thread < args->bytes ? share * thread : args->bytes;
        int64_t end = begin + share < args->bytes ? begin + share : args->bytes;
        for (int64_t i = 0; i < args->count; i++)
            result += read_once((const char *)args->data + begin, (const char *)args->data + end);
    }
    args->sink[thread * 16] = result; /* a cache line each */
}
