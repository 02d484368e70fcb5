// How does a tile of a 16-bit operand lie in shared memory so that TMA fills it and wgmma reads it?
//
// In panels of rows that are SWIZZLE bytes long: rows of m (or n) along k, or rows of k along m (or n). Both
// exchange the 16-byte chunks of a row by the same XOR with the row's number, taken from the address itself, so panels
// begin at multiples of eight rows. Sources: PTX ISA, "Asynchronous warpgroup level matrix shared memory layout" and
// "matrix descriptor"; CUDA driver API, cuTensorMapEncodeTiled.
#pragma once

#include "ptx/tma.cuh"
#include "tile/types.cuh"

namespace tile {

enum Hint { NO_HINT = 0, EVICT_FIRST = 1, EVICT_LAST = 2 };

/// EXTENT of m (or n) by DEPTH of k, of which the first LOADED of m (or n) come from memory. SLICES: blocks of a
/// cluster that load a part each, for all of them.
template <bool K_CONTIGUOUS_, int EXTENT, int LOADED, int DEPTH, int SWIZZLE, int SLICES, int HINT>
struct Panels {
    static constexpr bool K_CONTIGUOUS = K_CONTIGUOUS_;
    static constexpr int WIDTH = SWIZZLE / 2;  // elements of a row
    static constexpr int ROWS = K_CONTIGUOUS ? EXTENT : DEPTH;
    static constexpr int COUNT = (K_CONTIGUOUS ? DEPTH : EXTENT) / WIDTH;
    static constexpr int PANEL = ROWS * SWIZZLE;
    static constexpr int BYTES = COUNT * PANEL;
    static constexpr int STEP = 16;  // of k in one product

    static constexpr int BOX_ROWS = (K_CONTIGUOUS ? LOADED : DEPTH) / SLICES;
    static constexpr int BOXES = K_CONTIGUOUS ? COUNT : LOADED / WIDTH;
    static constexpr int LOADED_BYTES = BOXES * BOX_ROWS * SLICES * SWIZZLE;

    static_assert(SWIZZLE == 32 || SWIZZLE == 64 || SWIZZLE == 128, "what TMA and wgmma exchange chunks within");
    static_assert((K_CONTIGUOUS ? DEPTH : EXTENT) % WIDTH == 0 && (K_CONTIGUOUS || LOADED % WIDTH == 0), "whole panels");
    static_assert(DEPTH % STEP == 0, "the tile's k is whole steps");
    static_assert(BOX_ROWS % 8 == 0 && BOX_ROWS * SLICES == (K_CONTIGUOUS ? LOADED : DEPTH), "slices of whole patterns");
    static_assert(BOX_ROWS <= 256, "a box has 256 rows at most");

    /// Every field of a matrix descriptor but the address: distances in 16 bytes, and which swizzle. From eight rows
    /// to the next it is eight rows; where k is contiguous nothing else counts, else the next panel is PANEL away.
    static constexpr unsigned long long FORM = static_cast<unsigned long long>(K_CONTIGUOUS ? 1 : PANEL / 16) << 16 |
                                               static_cast<unsigned long long>(8 * SWIZZLE / 16) << 32 |
                                               static_cast<unsigned long long>(SWIZZLE == 128 ? 1 : SWIZZLE == 64 ? 2 : 3) << 62;

    /// The descriptor of what lies at `address`. Its field has 14 bits: in a cluster an address also holds the block's
    /// number, which would fall into the distances.
    static __device__ __forceinline__ unsigned long long descriptor(unsigned address) {
        return FORM | (address & 0x3ffff) >> 4;
    }

    /// From a tile's descriptor to that of the 16 of k of step `step`, `x` of m (or n) on: 64 of a block of rows of A,
    /// or all columns of B. Only the address changes.
    static __device__ __forceinline__ constexpr unsigned offset(int x, int step) {
        return (K_CONTIGUOUS ? step * STEP / WIDTH * PANEL + x * SWIZZLE + step * STEP % WIDTH * 2
                             : x / WIDTH * PANEL + step * STEP * SWIZZLE) / 16;
    }

    /// Load slice `slice` of the tile that begins at `x` of m (or n) and `k`, into every block of `mask`.
    static __device__ __forceinline__ void load(unsigned stage, const ptx::TensorMap& map, int x, int k, int entry,
                                                unsigned barrier, int slice, unsigned short mask, unsigned long long policy) {
        // Many boxes written out would hold an address each in a register, of which the producer has few.
#pragma unroll(BOXES > 4 ? 1 : BOXES)
        for (int box = 0; box < BOXES; ++box) {
            const unsigned dst = stage + box * PANEL + slice * BOX_ROWS * SWIZZLE;
            const int along = (K_CONTIGUOUS ? k : x) + box * WIDTH, across = (K_CONTIGUOUS ? x : k) + slice * BOX_ROWS;
            if constexpr (SLICES > 1 && HINT != NO_HINT)
                ptx::cp_async_bulk_tensor_3d_shared_cluster_global_multicast_hint(dst, map, along, across, entry, barrier, mask,
                                                                                  policy);
            else if constexpr (SLICES > 1)
                ptx::cp_async_bulk_tensor_3d_shared_cluster_global_multicast(dst, map, along, across, entry, barrier, mask);
            else if constexpr (HINT != NO_HINT)
                ptx::cp_async_bulk_tensor_3d_shared_cluster_global_hint(dst, map, along, across, entry, barrier, policy);
            else
                ptx::cp_async_bulk_tensor_3d_shared_cluster_global(dst, map, along, across, entry, barrier);
        }
    }

    static __device__ __forceinline__ unsigned long long policy() {
        if constexpr (HINT == EVICT_FIRST) return ptx::createpolicy_fractional_l2_evict_first_b64();
        if constexpr (HINT == EVICT_LAST) return ptx::createpolicy_fractional_l2_evict_last_b64();
        return 0;
    }
};

}  // namespace tile
