/* Which vector operations do the x86 kernels use? The compilers' own vector types, one width for each arch.
 *
 * Without <immintrin.h>: reading that header takes a compiler longer than all the rest of a candidate. */
#ifndef RT_VEC_H
#define RT_VEC_H

#if defined(__GNUC__) && !defined(__clang__)
/* GCC's default allocator keeps one accumulator of a full register tile (such as 4x24) in memory, which costs a
 * store-to-load round trip in every step of k: 9 cycles where 6 are due. This one does not. */
#pragma GCC optimize("ira-algorithm=priority")
#endif

#include <stdint.h>
#include <string.h>

#define RT_INLINE static inline __attribute__((always_inline))
#define RT_NOINLINE static __attribute__((noinline))
#define RT_UNUSED __attribute__((unused))

/* Loops over register arrays have to vanish, or the arrays live in memory. */
#if defined(__clang__)
#define RT_UNROLL _Pragma("clang loop unroll(full)")
#else
#define RT_UNROLL _Pragma("GCC unroll 64")
#endif

#if defined(__AVX512F__)
#define RT_VL 16
#define RT_REGISTER "v"
#else
#define RT_VL 8
#define RT_REGISTER "x"
#endif

typedef float vf __attribute__((vector_size(RT_VL * 4)));
typedef int32_t vi __attribute__((vector_size(RT_VL * 4)));
typedef float vf_memory __attribute__((vector_size(RT_VL * 4), aligned(4), may_alias));
typedef float vf4 __attribute__((vector_size(16)));
typedef float vf4_memory __attribute__((vector_size(16), aligned(4), may_alias));

/* acc += x * y as an instruction, so that the accumulator stays in its register: from the operators GCC makes the
 * forms that overwrite a factor, and then moves and spills. */
#define rt_fma(acc, x, y) __asm__("vfmadd231ps %2, %1, %0" : "+" RT_REGISTER(acc) : RT_REGISTER(x), RT_REGISTER(y))
/* Holds a value in a register. GCC would load it again for each use, and the two load ports, not the multipliers,
 * would then set the pace. */
#define rt_keep(x) __asm__("" : "+" RT_REGISTER(x))

/* To all caches, for reading; rt_fetch_l2 to L2 and beyond; rt_fetch_once for data that is not used again. */
#define rt_fetch(p) __builtin_prefetch((p), 0, 3)
#define rt_fetch_l2(p) __builtin_prefetch((p), 0, 2)
#define rt_fetch_once(p) __builtin_prefetch((p), 0, 0)

RT_INLINE vf v_load(const float *p) { return *(const vf_memory *)p; }
RT_INLINE void v_store(float *p, vf x) { *(vf_memory *)p = x; }
RT_INLINE vf v_set(float x)
{
#if RT_VL == 16
    return (vf){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x};
#else
    return (vf){x, x, x, x, x, x, x, x};
#endif
}
RT_INLINE vf v_broadcast(const float *p) { return v_set(*p); }
RT_INLINE vf v_zero(void) { return (vf){0}; }
RT_INLINE vf v_select(vi mask, vf x, vf y) { return (vf)((mask & (vi)x) | (~mask & (vi)y)); }
/* NaN compares false, so x passes. */
RT_INLINE vf v_at_least(vf x, vf limit) { return v_select(x < limit, limit, x); }
RT_INLINE vf v_at_most(vf x, vf limit) { return v_select(x > limit, limit, x); }
RT_INLINE vf v_abs(vf x) { return (vf)((vi)x & 0x7fffffff); }
RT_INLINE vf v_power_of_two(vi n) { return (vf)((n + 127) << 23); }
RT_INLINE float v_sum(vf x)
{
    float part[RT_VL];
    v_store(part, x);
    for (int half = RT_VL / 2; half; half /= 2)
        for (int i = 0; i < half; i++)
            part[i] += part[i + half];
    return part[0];
}

#define RT_LINE_FLOATS 16 /* floats in a cache line */

RT_INLINE int64_t rt_min(int64_t x, int64_t y) { return x < y ? x : y; }
RT_INLINE int64_t rt_max(int64_t x, int64_t y) { return x > y ? x : y; }

/* The i-th of `parts` nearly equal, contiguous shares of 0..total. */
RT_INLINE void rt_share(int64_t total, int64_t parts, int64_t i, int64_t *from, int64_t *to)
{
    *from = total * i / parts;
    *to = total * (i + 1) / parts;
}

#endif
