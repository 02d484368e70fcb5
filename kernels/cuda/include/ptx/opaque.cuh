// How does one keep the compiler from working a value out beforehand, and holding it in a register, many times over?
#pragma once

namespace ptx {

/// The global address `x`, of which the compiler forgets how it came about, but not that it is global. No instruction.
__device__ __forceinline__ const char* opaque(const char* x) {
    asm("" : "+l"(x));
    __builtin_assume(__isGlobal(x));
    return x;
}

/// A branch that has this in it stays a branch: it is not turned into the choice of both sides' values. No instruction.
__device__ __forceinline__ void branch() { asm volatile(""); }

}  // namespace ptx
