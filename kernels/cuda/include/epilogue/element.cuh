// How are elements of the result (and of C, residual and bias) read and written, alone and several at once?
//
// They are worked on as f32; integer results as int, or as f64 where a factor is not 1, which holds every s32.
#pragma once

#include "ptx/cvt.cuh"
#include "tile/types.cuh"

namespace epilogue {

using namespace tile;

/// The bits of a sum, and back.
__device__ __forceinline__ unsigned word(float x) { return __float_as_uint(x); }
__device__ __forceinline__ unsigned word(int x) { return static_cast<unsigned>(x); }
__device__ __forceinline__ void from_word(float& x, unsigned bits) { x = __uint_as_float(bits); }
__device__ __forceinline__ void from_word(int& x, unsigned bits) { x = static_cast<int>(bits); }

template <class T> struct Element;

template <> struct Element<F32> {
    template <class Value> static __device__ __forceinline__ Value decode(unsigned bits) { return __uint_as_float(bits); }
    static __device__ __forceinline__ unsigned encode(float x) { return __float_as_uint(x); }
};
template <> struct Element<F16> {
    template <class Value> static __device__ __forceinline__ Value decode(unsigned bits) {
        return ptx::cvt_f32_f16(static_cast<unsigned short>(bits));
    }
    static __device__ __forceinline__ unsigned encode(float x) { return ptx::cvt_rn_f16_f32(x); }
};
template <> struct Element<BF16> {
    template <class Value> static __device__ __forceinline__ Value decode(unsigned bits) {
        return __uint_as_float(bits << 16);
    }
    static __device__ __forceinline__ unsigned encode(float x) { return ptx::cvt_rn_bf16_f32(x); }
};
template <> struct Element<E4M3> {
    template <class Value> static __device__ __forceinline__ Value decode(unsigned bits) {
        return ptx::cvt_f32_f16(static_cast<unsigned short>(ptx::cvt_rn_f16x2_e4m3x2(static_cast<unsigned short>(bits))));
    }
    static __device__ __forceinline__ unsigned encode(float x) { return ptx::cvt_rn_satfinite_e4m3x2_f32(0.0f, x) & 0xffu; }
};
template <> struct Element<E5M2> {
    template <class Value> static __device__ __forceinline__ Value decode(unsigned bits) {
        return ptx::cvt_f32_f16(static_cast<unsigned short>(ptx::cvt_rn_f16x2_e5m2x2(static_cast<unsigned short>(bits))));
    }
    static __device__ __forceinline__ unsigned encode(float x) { return ptx::cvt_rn_satfinite_e5m2x2_f32(0.0f, x) & 0xffu; }
};
template <> struct Element<S32> {
    template <class Value> static __device__ __forceinline__ Value decode(unsigned bits) {
        return static_cast<Value>(static_cast<int>(bits));
    }
    static __device__ __forceinline__ unsigned encode(int x) { return static_cast<unsigned>(x); }
    static __device__ __forceinline__ unsigned encode(double x) { return static_cast<unsigned>(ptx::cvt_rni_s32_f64(x)); }
};

/// V elements of T that lie side by side, as the bytes they have in memory.
template <class T, int V>
struct Pack {
    using Bits = typename T::Bits;
    static constexpr int SIZE = sizeof(Bits);
    static constexpr int PER_WORD = 4 / SIZE;
    static constexpr int WORDS = ceil_div(V * SIZE, 4);
    static constexpr int TOTAL = V * SIZE;

    unsigned words[WORDS];

    static_assert(TOTAL == 1 || TOTAL == 2 || TOTAL == 4 || TOTAL == 8 || TOTAL == 16, "what one access can move");

    template <class Value> __device__ __forceinline__ Value get(int i) const {
        unsigned bits = words[i / PER_WORD] >> (8 * SIZE * (i % PER_WORD));
        if constexpr (SIZE < 4) bits &= (1u << (8 * SIZE)) - 1;
        return Element<T>::template decode<Value>(bits);
    }

    template <class Value> __device__ __forceinline__ void put(int i, Value x) {
        const unsigned bits = Element<T>::encode(x) << (8 * SIZE * (i % PER_WORD));
        words[i / PER_WORD] = i % PER_WORD ? words[i / PER_WORD] | bits : bits;
    }

    /// The first `count` elements at `from`; all V at once when they are all there, and then `from` is aligned
    /// to them. The rest are zeros.
    __device__ __forceinline__ void load(const void* from, int count) {
        if (count >= V) {
            if constexpr (TOTAL == 16) {
                const uint4 x = *static_cast<const uint4*>(from);
                words[0] = x.x, words[1] = x.y, words[2] = x.z, words[3] = x.w;
            } else if constexpr (TOTAL == 8) {
                const uint2 x = *static_cast<const uint2*>(from);
                words[0] = x.x, words[1] = x.y;
            } else if constexpr (TOTAL == 4) {
                words[0] = *static_cast<const unsigned*>(from);
            } else if constexpr (TOTAL == 2) {
                words[0] = *static_cast<const unsigned short*>(from);
            } else {
                words[0] = *static_cast<const unsigned char*>(from);
            }
        } else {
#pragma unroll
            for (int i = 0; i < WORDS; ++i) words[i] = 0;
#pragma unroll
            for (int i = 0; i < V; ++i)
                if (i < count)
                    words[i / PER_WORD] |= unsigned(static_cast<const Bits*>(from)[i]) << (8 * SIZE * (i % PER_WORD));
        }
    }

    /// The counterpart of `load`.
    __device__ __forceinline__ void store(void* to, int count) const {
        if (count >= V) {
            if constexpr (TOTAL == 16)
                *static_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
            else if constexpr (TOTAL == 8)
                *static_cast<uint2*>(to) = make_uint2(words[0], words[1]);
            else if constexpr (TOTAL == 4)
                *static_cast<unsigned*>(to) = words[0];
            else if constexpr (TOTAL == 2)
                *static_cast<unsigned short*>(to) = static_cast<unsigned short>(words[0]);
            else
                *static_cast<unsigned char*>(to) = static_cast<unsigned char>(words[0]);
        } else {
#pragma unroll
            for (int i = 0; i < V; ++i)
                if (i < count)
                    static_cast<Bits*>(to)[i] = static_cast<Bits>(words[i / PER_WORD] >> (8 * SIZE * (i % PER_WORD)));
        }
    }
};

}  // namespace epilogue
