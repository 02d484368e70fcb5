// How does one keep the compiler from working a value out beforehand, and holding it in a register, many times over?
#pragma once

namespace ptx {

/// `x`, of which the compiler forgets how it came about. No instruction.
__device__ __forceinline__ const char* opaque(const char* x) {
    asm("" : "+l"(x));
    return x;
}

}  // namespace ptx
