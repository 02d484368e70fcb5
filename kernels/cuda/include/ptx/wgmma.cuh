// How does a warpgroup multiply what lies in shared memory: D (64 x N) += A (64 x 16) * B (16 x N), f32 sums (sm_90a)?
//
// Only the N in use (RT_WGMMA_EIGHTHS of 8, a macro of the build) is written out: a form for each of 32 would cost
// more than the rest of the kernel. Thread t of warp w of the warpgroup holds d[j][2h + e]: row 16w + t%32/4 + 8h, column
// 8j + 2(t%4) + e. `a` and `b` are matrix descriptors (tile/panels.cuh); TRANSPOSED_: rows of k lie along m (or n).
// All 128 threads execute each of these. Sums must not be touched between a product and the wait that covers it.
#pragma once

namespace ptx {

static_assert(RT_WGMMA_EIGHTHS >= 1 && RT_WGMMA_EIGHTHS <= 32, "N is 8 to 256 in steps of 8 (PTX ISA)");

/// Before the first product, and after other instructions wrote the sums.
__device__ __forceinline__ void wgmma_fence_sync_aligned() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

/// Close the group of products since the last commit.
__device__ __forceinline__ void wgmma_commit_group_sync_aligned() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/// Wait until all but the newest PENDING groups are done.
template <int PENDING>
__device__ __forceinline__ void wgmma_wait_group_sync_aligned() {
    static_assert(PENDING >= 0 && PENDING <= 7, "a count of groups");
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// Operands of the product for N of 8, 16, 24...: names of the sums in its text, their bindings, and the numbers of
// the operands behind them.
#define RT_SUMS_1 "%0, %1, %2, %3"
#define RT_SUMS_2 RT_SUMS_1 ", %4, %5, %6, %7"
#define RT_SUMS_3 RT_SUMS_2 ", %8, %9, %10, %11"
#define RT_SUMS_4 RT_SUMS_3 ", %12, %13, %14, %15"
#define RT_SUMS_5 RT_SUMS_4 ", %16, %17, %18, %19"
#define RT_SUMS_6 RT_SUMS_5 ", %20, %21, %22, %23"
#define RT_SUMS_7 RT_SUMS_6 ", %24, %25, %26, %27"
#define RT_SUMS_8 RT_SUMS_7 ", %28, %29, %30, %31"
#define RT_SUMS_9 RT_SUMS_8 ", %32, %33, %34, %35"
#define RT_SUMS_10 RT_SUMS_9 ", %36, %37, %38, %39"
#define RT_SUMS_11 RT_SUMS_10 ", %40, %41, %42, %43"
#define RT_SUMS_12 RT_SUMS_11 ", %44, %45, %46, %47"
#define RT_SUMS_13 RT_SUMS_12 ", %48, %49, %50, %51"
#define RT_SUMS_14 RT_SUMS_13 ", %52, %53, %54, %55"
#define RT_SUMS_15 RT_SUMS_14 ", %56, %57, %58, %59"
#define RT_SUMS_16 RT_SUMS_15 ", %60, %61, %62, %63"
#define RT_SUMS_17 RT_SUMS_16 ", %64, %65, %66, %67"
#define RT_SUMS_18 RT_SUMS_17 ", %68, %69, %70, %71"
#define RT_SUMS_19 RT_SUMS_18 ", %72, %73, %74, %75"
#define RT_SUMS_20 RT_SUMS_19 ", %76, %77, %78, %79"
#define RT_SUMS_21 RT_SUMS_20 ", %80, %81, %82, %83"
#define RT_SUMS_22 RT_SUMS_21 ", %84, %85, %86, %87"
#define RT_SUMS_23 RT_SUMS_22 ", %88, %89, %90, %91"
#define RT_SUMS_24 RT_SUMS_23 ", %92, %93, %94, %95"
#define RT_SUMS_25 RT_SUMS_24 ", %96, %97, %98, %99"
#define RT_SUMS_26 RT_SUMS_25 ", %100, %101, %102, %103"
#define RT_SUMS_27 RT_SUMS_26 ", %104, %105, %106, %107"
#define RT_SUMS_28 RT_SUMS_27 ", %108, %109, %110, %111"
#define RT_SUMS_29 RT_SUMS_28 ", %112, %113, %114, %115"
#define RT_SUMS_30 RT_SUMS_29 ", %116, %117, %118, %119"
#define RT_SUMS_31 RT_SUMS_30 ", %120, %121, %122, %123"
#define RT_SUMS_32 RT_SUMS_31 ", %124, %125, %126, %127"
#define RT_BIND_1 "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3])
#define RT_BIND_2 RT_BIND_1, "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]), "+f"(d[1][3])
#define RT_BIND_3 RT_BIND_2, "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3])
#define RT_BIND_4 RT_BIND_3, "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3])
#define RT_BIND_5 RT_BIND_4, "+f"(d[4][0]), "+f"(d[4][1]), "+f"(d[4][2]), "+f"(d[4][3])
#define RT_BIND_6 RT_BIND_5, "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3])
#define RT_BIND_7 RT_BIND_6, "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3])
#define RT_BIND_8 RT_BIND_7, "+f"(d[7][0]), "+f"(d[7][1]), "+f"(d[7][2]), "+f"(d[7][3])
#define RT_BIND_9 RT_BIND_8, "+f"(d[8][0]), "+f"(d[8][1]), "+f"(d[8][2]), "+f"(d[8][3])
#define RT_BIND_10 RT_BIND_9, "+f"(d[9][0]), "+f"(d[9][1]), "+f"(d[9][2]), "+f"(d[9][3])
#define RT_BIND_11 RT_BIND_10, "+f"(d[10][0]), "+f"(d[10][1]), "+f"(d[10][2]), "+f"(d[10][3])
#define RT_BIND_12 RT_BIND_11, "+f"(d[11][0]), "+f"(d[11][1]), "+f"(d[11][2]), "+f"(d[11][3])
#define RT_BIND_13 RT_BIND_12, "+f"(d[12][0]), "+f"(d[12][1]), "+f"(d[12][2]), "+f"(d[12][3])
#define RT_BIND_14 RT_BIND_13, "+f"(d[13][0]), "+f"(d[13][1]), "+f"(d[13][2]), "+f"(d[13][3])
#define RT_BIND_15 RT_BIND_14, "+f"(d[14][0]), "+f"(d[14][1]), "+f"(d[14][2]), "+f"(d[14][3])
#define RT_BIND_16 RT_BIND_15, "+f"(d[15][0]), "+f"(d[15][1]), "+f"(d[15][2]), "+f"(d[15][3])
#define RT_BIND_17 RT_BIND_16, "+f"(d[16][0]), "+f"(d[16][1]), "+f"(d[16][2]), "+f"(d[16][3])
#define RT_BIND_18 RT_BIND_17, "+f"(d[17][0]), "+f"(d[17][1]), "+f"(d[17][2]), "+f"(d[17][3])
#define RT_BIND_19 RT_BIND_18, "+f"(d[18][0]), "+f"(d[18][1]), "+f"(d[18][2]), "+f"(d[18][3])
#define RT_BIND_20 RT_BIND_19, "+f"(d[19][0]), "+f"(d[19][1]), "+f"(d[19][2]), "+f"(d[19][3])
#define RT_BIND_21 RT_BIND_20, "+f"(d[20][0]), "+f"(d[20][1]), "+f"(d[20][2]), "+f"(d[20][3])
#define RT_BIND_22 RT_BIND_21, "+f"(d[21][0]), "+f"(d[21][1]), "+f"(d[21][2]), "+f"(d[21][3])
#define RT_BIND_23 RT_BIND_22, "+f"(d[22][0]), "+f"(d[22][1]), "+f"(d[22][2]), "+f"(d[22][3])
#define RT_BIND_24 RT_BIND_23, "+f"(d[23][0]), "+f"(d[23][1]), "+f"(d[23][2]), "+f"(d[23][3])
#define RT_BIND_25 RT_BIND_24, "+f"(d[24][0]), "+f"(d[24][1]), "+f"(d[24][2]), "+f"(d[24][3])
#define RT_BIND_26 RT_BIND_25, "+f"(d[25][0]), "+f"(d[25][1]), "+f"(d[25][2]), "+f"(d[25][3])
#define RT_BIND_27 RT_BIND_26, "+f"(d[26][0]), "+f"(d[26][1]), "+f"(d[26][2]), "+f"(d[26][3])
#define RT_BIND_28 RT_BIND_27, "+f"(d[27][0]), "+f"(d[27][1]), "+f"(d[27][2]), "+f"(d[27][3])
#define RT_BIND_29 RT_BIND_28, "+f"(d[28][0]), "+f"(d[28][1]), "+f"(d[28][2]), "+f"(d[28][3])
#define RT_BIND_30 RT_BIND_29, "+f"(d[29][0]), "+f"(d[29][1]), "+f"(d[29][2]), "+f"(d[29][3])
#define RT_BIND_31 RT_BIND_30, "+f"(d[30][0]), "+f"(d[30][1]), "+f"(d[30][2]), "+f"(d[30][3])
#define RT_BIND_32 RT_BIND_31, "+f"(d[31][0]), "+f"(d[31][1]), "+f"(d[31][2]), "+f"(d[31][3])
#define RT_REST_1 "%4, %5, p, 1, 1, %7, %8"
#define RT_FLAG_1 "%6"
#define RT_REST_2 "%8, %9, p, 1, 1, %11, %12"
#define RT_FLAG_2 "%10"
#define RT_REST_3 "%12, %13, p, 1, 1, %15, %16"
#define RT_FLAG_3 "%14"
#define RT_REST_4 "%16, %17, p, 1, 1, %19, %20"
#define RT_FLAG_4 "%18"
#define RT_REST_5 "%20, %21, p, 1, 1, %23, %24"
#define RT_FLAG_5 "%22"
#define RT_REST_6 "%24, %25, p, 1, 1, %27, %28"
#define RT_FLAG_6 "%26"
#define RT_REST_7 "%28, %29, p, 1, 1, %31, %32"
#define RT_FLAG_7 "%30"
#define RT_REST_8 "%32, %33, p, 1, 1, %35, %36"
#define RT_FLAG_8 "%34"
#define RT_REST_9 "%36, %37, p, 1, 1, %39, %40"
#define RT_FLAG_9 "%38"
#define RT_REST_10 "%40, %41, p, 1, 1, %43, %44"
#define RT_FLAG_10 "%42"
#define RT_REST_11 "%44, %45, p, 1, 1, %47, %48"
#define RT_FLAG_11 "%46"
#define RT_REST_12 "%48, %49, p, 1, 1, %51, %52"
#define RT_FLAG_12 "%50"
#define RT_REST_13 "%52, %53, p, 1, 1, %55, %56"
#define RT_FLAG_13 "%54"
#define RT_REST_14 "%56, %57, p, 1, 1, %59, %60"
#define RT_FLAG_14 "%58"
#define RT_REST_15 "%60, %61, p, 1, 1, %63, %64"
#define RT_FLAG_15 "%62"
#define RT_REST_16 "%64, %65, p, 1, 1, %67, %68"
#define RT_FLAG_16 "%66"
#define RT_REST_17 "%68, %69, p, 1, 1, %71, %72"
#define RT_FLAG_17 "%70"
#define RT_REST_18 "%72, %73, p, 1, 1, %75, %76"
#define RT_FLAG_18 "%74"
#define RT_REST_19 "%76, %77, p, 1, 1, %79, %80"
#define RT_FLAG_19 "%78"
#define RT_REST_20 "%80, %81, p, 1, 1, %83, %84"
#define RT_FLAG_20 "%82"
#define RT_REST_21 "%84, %85, p, 1, 1, %87, %88"
#define RT_FLAG_21 "%86"
#define RT_REST_22 "%88, %89, p, 1, 1, %91, %92"
#define RT_FLAG_22 "%90"
#define RT_REST_23 "%92, %93, p, 1, 1, %95, %96"
#define RT_FLAG_23 "%94"
#define RT_REST_24 "%96, %97, p, 1, 1, %99, %100"
#define RT_FLAG_24 "%98"
#define RT_REST_25 "%100, %101, p, 1, 1, %103, %104"
#define RT_FLAG_25 "%102"
#define RT_REST_26 "%104, %105, p, 1, 1, %107, %108"
#define RT_FLAG_26 "%106"
#define RT_REST_27 "%108, %109, p, 1, 1, %111, %112"
#define RT_FLAG_27 "%110"
#define RT_REST_28 "%112, %113, p, 1, 1, %115, %116"
#define RT_FLAG_28 "%114"
#define RT_REST_29 "%116, %117, p, 1, 1, %119, %120"
#define RT_FLAG_29 "%118"
#define RT_REST_30 "%120, %121, p, 1, 1, %123, %124"
#define RT_FLAG_30 "%122"
#define RT_REST_31 "%124, %125, p, 1, 1, %127, %128"
#define RT_FLAG_31 "%126"
#define RT_REST_32 "%128, %129, p, 1, 1, %131, %132"
#define RT_FLAG_32 "%130"
#define RT_SHAPE_1 "m64n8k16"
#define RT_SHAPE_2 "m64n16k16"
#define RT_SHAPE_3 "m64n24k16"
#define RT_SHAPE_4 "m64n32k16"
#define RT_SHAPE_5 "m64n40k16"
#define RT_SHAPE_6 "m64n48k16"
#define RT_SHAPE_7 "m64n56k16"
#define RT_SHAPE_8 "m64n64k16"
#define RT_SHAPE_9 "m64n72k16"
#define RT_SHAPE_10 "m64n80k16"
#define RT_SHAPE_11 "m64n88k16"
#define RT_SHAPE_12 "m64n96k16"
#define RT_SHAPE_13 "m64n104k16"
#define RT_SHAPE_14 "m64n112k16"
#define RT_SHAPE_15 "m64n120k16"
#define RT_SHAPE_16 "m64n128k16"
#define RT_SHAPE_17 "m64n136k16"
#define RT_SHAPE_18 "m64n144k16"
#define RT_SHAPE_19 "m64n152k16"
#define RT_SHAPE_20 "m64n160k16"
#define RT_SHAPE_21 "m64n168k16"
#define RT_SHAPE_22 "m64n176k16"
#define RT_SHAPE_23 "m64n184k16"
#define RT_SHAPE_24 "m64n192k16"
#define RT_SHAPE_25 "m64n200k16"
#define RT_SHAPE_26 "m64n208k16"
#define RT_SHAPE_27 "m64n216k16"
#define RT_SHAPE_28 "m64n224k16"
#define RT_SHAPE_29 "m64n232k16"
#define RT_SHAPE_30 "m64n240k16"
#define RT_SHAPE_31 "m64n248k16"
#define RT_SHAPE_32 "m64n256k16"

#define RT_JOIN_(x, y) x##y
#define RT_JOIN(x, y) RT_JOIN_(x, y)

/// `keep` 0: the sums before do not count.
#define RT_WGMMA(NAME, TYPE)                                                                                              \
    template <bool TRANSPOSED_A, bool TRANSPOSED_B>                                                                       \
    __device__ __forceinline__ void NAME(float (&d)[RT_WGMMA_EIGHTHS][4], unsigned long long a, unsigned long long b,     \
                                         int keep) {                                                                      \
        asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, " RT_JOIN(RT_FLAG_, RT_WGMMA_EIGHTHS) ", 0;\n\t"              \
                     "wgmma.mma_async.sync.aligned." RT_JOIN(RT_SHAPE_, RT_WGMMA_EIGHTHS) ".f32." TYPE "." TYPE " {"      \
                     RT_JOIN(RT_SUMS_, RT_WGMMA_EIGHTHS) "}, " RT_JOIN(RT_REST_, RT_WGMMA_EIGHTHS) ";\n\t}"               \
                     : RT_JOIN(RT_BIND_, RT_WGMMA_EIGHTHS)                                                                \
                     : "l"(a), "l"(b), "r"(keep), "n"(int(TRANSPOSED_A)), "n"(int(TRANSPOSED_B))                          \
                     : "memory");                                                                                         \
    }

RT_WGMMA(wgmma_mma_async_sync_aligned_f32_f16_f16, "f16")
RT_WGMMA(wgmma_mma_async_sync_aligned_f32_bf16_bf16, "bf16")

/// Wait for all groups, behind which `d` may be read: the compiler moves nothing that uses it before this.
__device__ __forceinline__ void wgmma_wait_group_sync_aligned_0(float (&d)[RT_WGMMA_EIGHTHS][4]) {
    asm volatile("wgmma.wait_group.sync.aligned 0;" : RT_JOIN(RT_BIND_, RT_WGMMA_EIGHTHS)::"memory");
}

#undef RT_WGMMA
#undef RT_JOIN
#undef RT_JOIN_

}  // namespace ptx
