// How does a pointer into shared memory become the 32-bit address that PTX's .shared forms take?
#pragma once

namespace ptx {

/// The shared-space address of `pointer`, which must point into shared memory.
__device__ __forceinline__ unsigned shared_address(const void* pointer) {
    return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

}  // namespace ptx
