// Which element types are there, how wide is each, and in what are its products summed?
#pragma once

namespace tile {

struct F32 { using Bits = unsigned; using Acc = float; };
struct TF32 { using Bits = unsigned; using Acc = float; };
struct F16 { using Bits = unsigned short; using Acc = float; };
struct BF16 { using Bits = unsigned short; using Acc = float; };
struct E4M3 { using Bits = unsigned char; using Acc = float; };
struct E5M2 { using Bits = unsigned char; using Acc = float; };
struct S8 { using Bits = unsigned char; using Acc = int; };
struct U8 { using Bits = unsigned char; using Acc = int; };
struct S32 { using Bits = unsigned; using Acc = int; };

template <class X, class Y> struct Same { static constexpr bool value = false; };
template <class X> struct Same<X, X> { static constexpr bool value = true; };

/// Bytes of an element in memory.
template <class T> constexpr int BYTES = sizeof(typename T::Bits);

__host__ __device__ constexpr int least(int x, int y) { return x < y ? x : y; }
__host__ __device__ constexpr int most(int x, int y) { return x > y ? x : y; }
__host__ __device__ constexpr int ceil_div(int x, int y) { return x / y + (x % y != 0); }  // also near 2^31

}  // namespace tile
