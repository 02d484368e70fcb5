/* How do operands get into panels, and into the caches before they are needed? */
#ifndef RT_PACK_H
#define RT_PACK_H

#include "rt_vec.h"

#if defined(__clang__) || __GNUC__ >= 12
#define RT_MIX(x, y, i, j, k, l) __builtin_shufflevector(x, y, i, j, k, l)
#else
#define RT_MIX(x, y, i, j, k, l) __builtin_shuffle(x, y, (__attribute__((vector_size(16))) int32_t){i, j, k, l})
#endif

/* Four rows of four into four columns of four, `to_pitch` apart. */
RT_INLINE void rt_transpose4(const float *from, int64_t pitch, float *to, int64_t to_pitch)
{
    vf4 r0 = *(const vf4_memory *)from, r1 = *(const vf4_memory *)(from + pitch);
    vf4 r2 = *(const vf4_memory *)(from + 2 * pitch), r3 = *(const vf4_memory *)(from + 3 * pitch);
    vf4 low01 = RT_MIX(r0, r1, 0, 4, 1, 5), high01 = RT_MIX(r0, r1, 2, 6, 3, 7);
    vf4 low23 = RT_MIX(r2, r3, 0, 4, 1, 5), high23 = RT_MIX(r2, r3, 2, 6, 3, 7);
    *(vf4_memory *)to = RT_MIX(low01, low23, 0, 1, 4, 5);
    *(vf4_memory *)(to + to_pitch) = RT_MIX(low01, low23, 2, 3, 6, 7);
    *(vf4_memory *)(to + 2 * to_pitch) = RT_MIX(high01, high23, 0, 1, 4, 5);
    *(vf4_memory *)(to + 3 * to_pitch) = RT_MIX(high01, high23, 2, 3, 6, 7);
}

/* A panel of `wide` lines for the inner loop: panel[p * wide + i] = line i at depth p, for `depth` steps; lines from
 * `lines` on are zero. `across`: the source has line i's elements at from[i * pitch + p] (it is transposed on the way),
 * else at from[p * pitch + i]. */
RT_INLINE void rt_pack(const float *from, int64_t pitch, int across, int64_t depth, int64_t lines, const int64_t wide,
                       float *panel)
{
    if (!across) {
        if (lines == wide) {
            for (int64_t p = 0; p < depth; p++)
                memcpy(panel + p * wide, from + p * pitch, (size_t)wide * sizeof(float));
        } else {
            for (int64_t p = 0; p < depth; p++) {
                memcpy(panel + p * wide, from + p * pitch, (size_t)lines * sizeof(float));
                memset(panel + p * wide + lines, 0, (size_t)(wide - lines) * sizeof(float));
            }
        }
        return;
    }
    if (lines < wide)
        memset(panel, 0, (size_t)(depth * wide) * sizeof(float));
    int64_t p = 0;
    for (; p + 4 <= depth; p += 4) {
        int64_t i = 0;
        /* The next panel's lines, mostly: short rows end before the hardware sees what is coming. */
        if (p % RT_LINE_FLOATS == 0)
            for (int64_t q = 0; q < lines; q++)
                rt_fetch(from + (q + wide) * pitch + p);
        for (; i + 4 <= lines; i += 4)
            rt_transpose4(from + i * pitch + p, pitch, panel + p * wide + i, wide);
        for (; i < lines; i++)
            for (int64_t q = p; q < p + 4; q++)
                panel[q * wide + i] = from[i * pitch + q];
    }
    for (; p < depth; p++)
        for (int64_t i = 0; i < lines; i++)
            panel[p * wide + i] = from[i * pitch + p];
}

/* Memory that is to be fetched little by little: rows of `lines` cache lines, `pitch` floats apart. */
struct rt_ahead {
    const float *at;
    int64_t pitch, rows, lines, line, each;
};

RT_INLINE struct rt_ahead rt_ahead_of(const float *from, int64_t pitch, int64_t rows, int64_t floats, int64_t turns)
{
    struct rt_ahead f = {from, pitch, rows, (floats + RT_LINE_FLOATS - 1) / RT_LINE_FLOATS, 0, 0};
    if (turns > 0 && floats > 0)
        f.each = (rows * f.lines + turns - 1) / turns;
    else
        f.rows = 0;
    return f;
}

RT_INLINE void rt_ahead_some(struct rt_ahead *f)
{
    for (int64_t left = f->each; left > 0 && f->rows > 0;) {
        const int64_t now = rt_min(left, f->lines - f->line);
        const float *at = f->at + f->line * RT_LINE_FLOATS;
        for (int64_t i = 0; i < now; i++)
            rt_fetch_l2(at + i * RT_LINE_FLOATS);
        left -= now, f->line += now;
        if (f->line == f->lines)
            f->line = 0, f->at += f->pitch, f->rows--;
    }
}

#endif
