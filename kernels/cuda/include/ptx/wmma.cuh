// How does a warp multiply through WMMA: f16 operands, f32 sums, 16 deep (sm_70 and up)?
//
// Three shapes of one size: m16n16k16, m32n8k16, m8n32k16. How a fragment lies in the warp's registers is not
// specified; only loads, products and stores of whole fragments mean anything. Addresses are in shared memory and
// multiples of 32 bytes, `stride` is in elements and a multiple of 16 bytes. All lanes of the warp take part.
// row: k of A (n of B, n of D) is contiguous; col: the other one.
#pragma once

namespace ptx {

#define RT_EIGHT_R(x) "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]), "=r"(x[4]), "=r"(x[5]), "=r"(x[6]), "=r"(x[7])
#define RT_EIGHT(x, C) C(x[0]), C(x[1]), C(x[2]), C(x[3]), C(x[4]), C(x[5]), C(x[6]), C(x[7])

#define RT_WMMA_LOAD(OPERAND, LAYOUT, SHAPE)                                                                          \
    __device__ __forceinline__ void wmma_load_##OPERAND##_sync_aligned_##LAYOUT##_##SHAPE##_shared_f16(               \
        unsigned (&r)[8], unsigned address, unsigned stride) {                                                        \
        asm volatile("wmma.load." #OPERAND ".sync.aligned." #LAYOUT "." #SHAPE                                        \
                     ".shared.f16 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8], %9;"                                        \
                     : RT_EIGHT_R(r)                                                                                  \
                     : "r"(address), "r"(stride)                                                                      \
                     : "memory");                                                                                     \
    }

#define RT_WMMA_MMA(LAYOUT_A, LAYOUT_B, SHAPE)                                                                        \
    __device__ __forceinline__ void wmma_mma_sync_aligned_##LAYOUT_A##_##LAYOUT_B##_##SHAPE##_f32_f32(                \
        float (&d)[8], const unsigned (&a)[8], const unsigned (&b)[8]) {                                              \
        asm("wmma.mma.sync.aligned." #LAYOUT_A "." #LAYOUT_B "." #SHAPE                                               \
            ".f32.f32 {%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9, %10, %11, %12, %13, %14, %15}, "                     \
            "{%16, %17, %18, %19, %20, %21, %22, %23}, {%0, %1, %2, %3, %4, %5, %6, %7};"                             \
            : RT_EIGHT(d, "+f")                                                                                       \
            : RT_EIGHT(a, "r"), RT_EIGHT(b, "r"));                                                                    \
    }

#define RT_WMMA_STORE(SHAPE)                                                                                          \
    __device__ __forceinline__ void wmma_store_d_sync_aligned_row_##SHAPE##_shared_f32(                               \
        unsigned address, const float (&d)[8], unsigned stride) {                                                     \
        asm volatile("wmma.store.d.sync.aligned.row." #SHAPE                                                          \
                     ".shared.f32 [%0], {%1, %2, %3, %4, %5, %6, %7, %8}, %9;" ::"r"(address),                        \
                     RT_EIGHT(d, "f"), "r"(stride)                                                                    \
                     : "memory");                                                                                     \
    }

#define RT_WMMA(SHAPE)               \
    RT_WMMA_LOAD(a, row, SHAPE)      \
    RT_WMMA_LOAD(a, col, SHAPE)      \
    RT_WMMA_LOAD(b, row, SHAPE)      \
    RT_WMMA_LOAD(b, col, SHAPE)      \
    RT_WMMA_MMA(row, row, SHAPE)     \
    RT_WMMA_MMA(row, col, SHAPE)     \
    RT_WMMA_MMA(col, row, SHAPE)     \
    RT_WMMA_MMA(col, col, SHAPE)     \
    RT_WMMA_STORE(SHAPE)

RT_WMMA(m16n16k16)
RT_WMMA(m32n8k16)
RT_WMMA(m8n32k16)

#undef RT_WMMA
#undef RT_WMMA_STORE
#undef RT_WMMA_MMA
#undef RT_WMMA_LOAD
#undef RT_EIGHT
#undef RT_EIGHT_R

}  // namespace ptx
