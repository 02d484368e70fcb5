// How are boxes of a tensor copied between global and shared memory by one thread (TMA, sm_90 and up)?
//
// A box is named by the coordinates of its first element, the contiguous one first. What lies outside the tensor is
// filled with zeros and counted all the same; stores leave it out. Shared addresses are multiples of 128.
#pragma once

namespace ptx {

/// What the driver (or the emulator) encoded; an argument of the kernel, read by its address alone.
struct alignas(64) TensorMap {
    unsigned char bytes[128];
};

__device__ __forceinline__ unsigned long long tensor_map_address(const TensorMap& map) {
    return reinterpret_cast<unsigned long long>(&map);
}

/// Have the map near before its first use.
__device__ __forceinline__ void prefetch_tensormap(const TensorMap& map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(tensor_map_address(map)) : "memory");
}

/// Load a box of a tensor of three dimensions to `dst`; its bytes are counted at `barrier`.
__device__ __forceinline__ void cp_async_bulk_tensor_3d_shared_cluster_global(unsigned dst, const TensorMap& map, int x, int y,
                                                                              int z, unsigned barrier) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(
            dst),
        "l"(tensor_map_address(map)), "r"(x), "r"(y), "r"(z), "r"(barrier)
        : "memory");
}

/// The same with a cache policy of `createpolicy`.
__device__ __forceinline__ void cp_async_bulk_tensor_3d_shared_cluster_global_hint(unsigned dst, const TensorMap& map, int x,
                                                                                   int y, int z, unsigned barrier,
                                                                                   unsigned long long policy) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, %3, "
        "%4}], [%5], %6;" ::"r"(dst),
        "l"(tensor_map_address(map)), "r"(x), "r"(y), "r"(z), "r"(barrier), "l"(policy)
        : "memory");
}

/// Load a box to the same place in every block of the cluster whose bit is set in `mask`, and count it there.
__device__ __forceinline__ void cp_async_bulk_tensor_3d_shared_cluster_global_multicast(unsigned dst, const TensorMap& map,
                                                                                        int x, int y, int z, unsigned barrier,
                                                                                        unsigned short mask) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, %3, "
        "%4}], [%5], %6;" ::"r"(dst),
        "l"(tensor_map_address(map)), "r"(x), "r"(y), "r"(z), "r"(barrier), "h"(mask)
        : "memory");
}

__device__ __forceinline__ void cp_async_bulk_tensor_3d_shared_cluster_global_multicast_hint(
    unsigned dst, const TensorMap& map, int x, int y, int z, unsigned barrier, unsigned short mask, unsigned long long policy) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint "
        "[%0], [%1, {%2, %3, %4}], [%5], %6, %7;" ::"r"(dst),
        "l"(tensor_map_address(map)), "r"(x), "r"(y), "r"(z), "r"(barrier), "h"(mask), "l"(policy)
        : "memory");
}

/// Store a box from `src`: a bulk operation of this thread's next group.
__device__ __forceinline__ void cp_async_bulk_tensor_3d_global_shared_cta(const TensorMap& map, int x, int y, int z,
                                                                          unsigned src) {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(
                     tensor_map_address(map)),
                 "r"(x), "r"(y), "r"(z), "r"(src)
                 : "memory");
}

/// Close the group of this thread's stores since the last commit.
__device__ __forceinline__ void cp_async_bulk_commit_group() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

/// Wait until all but the newest PENDING groups of this thread have read their bytes of shared memory.
template <int PENDING>
__device__ __forceinline__ void cp_async_bulk_wait_group_read() {
    static_assert(PENDING >= 0, "a count of groups");
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}

/// Wait until all but the newest PENDING groups of this thread are done, writes and all.
template <int PENDING>
__device__ __forceinline__ void cp_async_bulk_wait_group() {
    static_assert(PENDING >= 0, "a count of groups");
    asm volatile("cp.async.bulk.wait_group %0;" ::"n"(PENDING) : "memory");
}

/// L2 gives these lines up first.
__device__ __forceinline__ unsigned long long createpolicy_fractional_l2_evict_first_b64() {
    unsigned long long policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0;" : "=l"(policy));
    return policy;
}

/// L2 keeps these lines longest.
__device__ __forceinline__ unsigned long long createpolicy_fractional_l2_evict_last_b64() {
    unsigned long long policy;
    asm("createpolicy.fractional.L2::evict_last.b64 %0;" : "=l"(policy));
    return policy;
}

}  // namespace ptx
