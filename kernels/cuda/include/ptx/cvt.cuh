// How does one number format become another? 16-bit and 8-bit values travel as the integers that hold their bits.
#pragma once

namespace ptx {

__device__ __forceinline__ float cvt_f32_f16(unsigned short x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
    return y;
}

__device__ __forceinline__ unsigned short cvt_rn_f16_f32(float x) {
    unsigned short y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
    return y;
}

/// sm_80 and up.
__device__ __forceinline__ unsigned short cvt_rn_bf16_f32(float x) {
    unsigned short y;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x));
    return y;
}

/// `high` becomes the upper half. sm_80 and up.
__device__ __forceinline__ unsigned cvt_rn_f16x2_f32(float high, float low) {
    unsigned y;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
}

/// `high` becomes the upper half. sm_80 and up.
__device__ __forceinline__ unsigned cvt_rn_bf16x2_f32(float high, float low) {
    unsigned y;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
}

/// To the nearest tf32, ties away from zero; its bits. sm_80 and up.
__device__ __forceinline__ unsigned cvt_rna_tf32_f32(float x) {
    unsigned y;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
    return y;
}

/// Two fp8 values, `high` in the upper byte; what is too large becomes the largest finite one. sm_89 and up.
__device__ __forceinline__ unsigned short cvt_rn_satfinite_e4m3x2_f32(float high, float low) {
    unsigned short y;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(y) : "f"(high), "f"(low));
    return y;
}

/// As for e4m3.
__device__ __forceinline__ unsigned short cvt_rn_satfinite_e5m2x2_f32(float high, float low) {
    unsigned short y;
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(y) : "f"(high), "f"(low));
    return y;
}

/// Two f16 from two e4m3 (every one of them is an f16). sm_89 and up.
__device__ __forceinline__ unsigned cvt_rn_f16x2_e4m3x2(unsigned short x) {
    unsigned y;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(y) : "h"(x));
    return y;
}

/// Two f16 from two e5m2. sm_89 and up.
__device__ __forceinline__ unsigned cvt_rn_f16x2_e5m2x2(unsigned short x) {
    unsigned y;
    asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(y) : "h"(x));
    return y;
}

/// To the nearest integer, ties to even; what is too large becomes the largest, NaN 0.
__device__ __forceinline__ int cvt_rni_s32_f64(double x) {
    int y;
    asm("cvt.rni.s32.f64 %0, %1;" : "=r"(y) : "d"(x));
    return y;
}

}  // namespace ptx
