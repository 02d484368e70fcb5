// What becomes of a sum of products?
//
//     out = activation(alpha * scale_a * scale_b * sum + beta * C + bias) + residual
//
// Facets are known when compiled: what is not there costs nothing and is not read.
#pragma once

#include "epilogue/activation.cuh"
#include "epilogue/element.cuh"

namespace epilogue {

/// Where the operands of one batch entry lie. Pitches in elements.
struct Operands {
    const char* c;
    char* out;
    const char* bias;
    const char* residual;
    const float* scale_a;
    const float* scale_b;
    long long ld_c;
    long long ld_out;
    long long ld_residual;
    float alpha;
    float beta;
};

enum Factor { ZERO = 0, ONE = 1, ANY = 2 };
enum Bias { NO_BIAS = 0, PER_COLUMN = 1, PER_ROW = 2 };
enum Scale { NO_SCALE = 0, ONE_SCALE = 1, SCALE_PER_LINE = 2 };

template <class Acc_, class Out_, class BiasType_, int ALPHA_, int BETA_, int BIAS_, int ACTIVATION_, bool RESIDUAL_,
          int SCALE_A_, int SCALE_B_>
struct Finish {
    using Acc = Acc_;
    using Out = Out_;
    static constexpr bool INTEGER = Same<Out, S32>::value;
    static constexpr bool EXACT = INTEGER && ALPHA_ != ANY && BETA_ != ANY;
    template <bool I, bool E, class Dummy = void> struct Pick { using Value = float; };
    template <class Dummy> struct Pick<true, true, Dummy> { using Value = int; };
    template <class Dummy> struct Pick<true, false, Dummy> { using Value = double; };
    using Value = typename Pick<INTEGER, EXACT>::Value;

    /// Finish `sums` of V neighbours in a row, of which `columns` are inside the result.
    template <int V>
    static __device__ __forceinline__ Pack<Out, V> result(const Operands& o, const Acc (&sums)[V], int row, int column,
                                                          int columns) {
        Value x[V];
#pragma unroll
        for (int i = 0; i < V; ++i) {
            x[i] = static_cast<Value>(sums[i]);
            if constexpr (SCALE_A_ != NO_SCALE) x[i] *= static_cast<Value>(o.scale_a[SCALE_A_ == ONE_SCALE ? 0 : row]);
            if constexpr (SCALE_B_ == ONE_SCALE) x[i] *= static_cast<Value>(o.scale_b[0]);
            if constexpr (SCALE_B_ == SCALE_PER_LINE)
                if (i < columns) x[i] *= static_cast<Value>(o.scale_b[column + i]);
            if constexpr (ALPHA_ == ANY) x[i] *= static_cast<Value>(o.alpha);
        }
        // With beta 0 C is not read, whatever the problem promised: it may be null, or NaN.
        if (BETA_ == ONE || (BETA_ == ANY && o.beta != 0.0f)) {
            Pack<Out, V> c;
            c.load(o.c + (row * o.ld_c + column) * BYTES<Out>, columns);
#pragma unroll
            for (int i = 0; i < V; ++i) {
                const Value y = c.template get<Value>(i);
                x[i] += BETA_ == ANY ? static_cast<Value>(o.beta) * y : y;
            }
        }
        if constexpr (BIAS_ != NO_BIAS) {
            // A row of n elements of any alignment: read one by one, mostly from L1.
            const auto* bias = reinterpret_cast<const typename BiasType_::Bits*>(o.bias);
#pragma unroll
            for (int i = 0; i < V; ++i)
                if (i < columns) x[i] += Element<BiasType_>::template decode<Value>(bias[BIAS_ == PER_ROW ? row : column + i]);
        }
#pragma unroll
        for (int i = 0; i < V; ++i) {
            if constexpr (INTEGER)
                x[i] = activate_integer<ACTIVATION_>(x[i]);
            else
                x[i] = activate<ACTIVATION_>(x[i]);
        }
        if constexpr (RESIDUAL_) {
            Pack<Out, V> r;
            r.load(o.residual + (row * o.ld_residual + column) * BYTES<Out>, columns);
#pragma unroll
            for (int i = 0; i < V; ++i) x[i] += r.template get<Value>(i);
        }
        Pack<Out, V> result;
#pragma unroll
        for (int i = 0; i < V; ++i) result.put(i, x[i]);
        return result;
    }

    /// The same, and write them.
    template <int V>
    static __device__ __forceinline__ void row(const Operands& o, const Acc (&sums)[V], int row, int column, int columns) {
        result<V>(o, sums, row, column, columns).store(o.out + (row * o.ld_out + column) * BYTES<Out>, columns);
    }
};

/// Sums as they are, into a workspace: what is left of the work when k is split.
template <class Acc_>
struct Keep {
    using Acc = Acc_;
    using Out = F32;

    template <int V>
    static __device__ __forceinline__ void row(const Operands& o, const Acc (&sums)[V], int row, int column, int columns) {
        Pack<F32, V> result;
#pragma unroll
        for (int i = 0; i < V; ++i) result.words[i] = word(sums[i]);
        result.store(o.out + (row * o.ld_out + column) * 4, columns);
    }
};

}  // namespace epilogue
