// How does a warp multiply: D (16 x 8) += A (16 x 32 bytes) * B (32 bytes x 8), all in registers?
//
// Fragments of lane l, with g = l/4 and t = l%4 (PTX ISA, "Matrix fragments for mma"): word 0 of A is row g,
// 4-byte column t; word 1 row g+8; words 2 and 3 the same rows 16 bytes further along k. Word 0 of B is
// column g, 4-byte row t; word 1 is 16 bytes further. D holds (g, 2t), (g, 2t+1), (g+8, 2t), (g+8, 2t+1).
#pragma once

namespace ptx {

#define RT_MMA(NAME, TEXT, D, C)                                                                         \
    __device__ __forceinline__ void NAME(D (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {    \
        asm(TEXT " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                      \
            : "+" C(d[0]), "+" C(d[1]), "+" C(d[2]), "+" C(d[3])                                         \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                         \
    }

// sm_80 and up
RT_MMA(mma_sync_aligned_m16n8k16_row_col_f32_f16_f16_f32, "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", float, "f")
RT_MMA(mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32, "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", float, "f")
RT_MMA(mma_sync_aligned_m16n8k8_row_col_f32_tf32_tf32_f32, "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32", float, "f")
RT_MMA(mma_sync_aligned_m16n8k32_row_col_s32_s8_s8_s32, "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32", int, "r")
RT_MMA(mma_sync_aligned_m16n8k32_row_col_s32_s8_u8_s32, "mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32", int, "r")
RT_MMA(mma_sync_aligned_m16n8k32_row_col_s32_u8_s8_s32, "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32", int, "r")
RT_MMA(mma_sync_aligned_m16n8k32_row_col_s32_u8_u8_s32, "mma.sync.aligned.m16n8k32.row.col.s32.u8.u8.s32", int, "r")
// sm_89 and up
RT_MMA(mma_sync_aligned_m16n8k32_row_col_f32_e4m3_e4m3_f32, "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32", float, "f")
RT_MMA(mma_sync_aligned_m16n8k32_row_col_f32_e4m3_e5m2_f32, "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e5m2.f32", float, "f")
RT_MMA(mma_sync_aligned_m16n8k32_row_col_f32_e5m2_e4m3_f32, "mma.sync.aligned.m16n8k32.row.col.f32.e5m2.e4m3.f32", float, "f")
RT_MMA(mma_sync_aligned_m16n8k32_row_col_f32_e5m2_e5m2_f32, "mma.sync.aligned.m16n8k32.row.col.f32.e5m2.e5m2.f32", float, "f")

#undef RT_MMA

}  // namespace ptx
