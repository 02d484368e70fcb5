/* How are exp and the activations computed on vectors, to float accuracy?
 *
 * NaN passes through; infinities end as the formulas say. a * b + c becomes one rounding (-ffp-contract=fast). */
#ifndef RT_ACT_H
#define RT_ACT_H

#include "rt_vec.h"

/* Cephes' expf: x = n ln2 + r, a polynomial for exp(r), times 2^n in two steps so that the range ends in 0 and
 * infinity as it should. */
RT_INLINE vf v_exp(vf x)
{
    x = v_at_most(v_at_least(x, v_set(-104.0f)), v_set(89.0f));
    /* Adding 1.5 * 2^23 rounds to a whole number, which is then in the low bits. */
    vf shifted = x * 1.44269504088896341f + 12582912.0f;
    vf n = shifted - 12582912.0f;
    vf r = x - n * 0.693359375f;
    r = r - n * -2.12194440e-4f;
    vf p = v_set(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = (p * (r * r) + r) + 1.0f;
    vi whole = (vi)shifted - 0x4b400000, half = whole >> 1;
    return p * v_power_of_two(half) * v_power_of_two(whole - half);
}

/* exp(z^2) erfc(z) for z >= 0: t exp(polynomial in t), t = 1 / (1 + z/2), after Numerical Recipes' erfcc (1.2e-7). */
RT_INLINE vf v_scaled_erfc(vf z)
{
    vf t = 1.0f / (z * 0.5f + 1.0f);
    vf p = v_set(0.17087277f);
    p = p * t + -0.82215223f;
    p = p * t + 1.48851587f;
    p = p * t + -1.13520398f;
    p = p * t + 0.27886807f;
    p = p * t + -0.18628806f;
    p = p * t + 0.09678418f;
    p = p * t + 0.37409196f;
    p = p * t + 1.00002368f;
    p = p * t + -1.26551223f;
    return t * v_exp(p);
}

/* exp(-x^2 / 2). The square is taken in two parts: its rounding alone would cost x^2 / 2 units in the last place. */
RT_INLINE vf v_bell(vf x)
{
    vf square = x * x, rest = -square;
    rt_fma(rest, x, x);
    vf bell = v_exp(square * -0.5f);
    return bell - bell * (rest * 0.5f);
}

RT_INLINE vf v_relu(vf x) { return v_at_least(x, v_zero()); }

RT_INLINE vf v_silu(vf x) { return x / (1.0f + v_exp(-x)); }

/* x Phi(x). The tail where the factor is small is computed as such, not as 1 minus nearly 1. */
RT_INLINE vf v_gelu(vf x)
{
    /* Beyond 14 both tails are 0 or 1 to the last bit. */
    vf size = v_at_most(v_abs(x), v_set(14.5f));
    vf tail = 0.5f * v_scaled_erfc(size * 0.70710678118654752f) * v_bell(size);
    return x * v_select(x < 0.0f, tail, 1.0f - tail);
}

/* 0.5 x (1 + tanh u) = x / (1 + exp(-2u)), u = sqrt(2/pi) (x + 0.044715 x^3). */
RT_INLINE vf v_gelu_tanh(vf x)
{
    vf twice = -1.59576912160573081f * (x * x * x * 0.044715f + x);
    return x / (1.0f + v_exp(twice));
}

#endif
