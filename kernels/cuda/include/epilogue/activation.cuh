// Which function follows the sum? Numbers as in the planner: 0 none, 1 relu, 2 gelu, 3 gelu_tanh, 4 silu.
#pragma once

namespace epilogue {

/// NaN stays NaN in each.
template <int ACTIVATION>
__device__ __forceinline__ float activate(float x) {
    static_assert(ACTIVATION >= 0 && ACTIVATION <= 4, "an activation");
    if constexpr (ACTIVATION == 1) return x < 0.0f ? 0.0f : x;
    if constexpr (ACTIVATION == 2) return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f));
    if constexpr (ACTIVATION == 3)
        return 0.5f * x * (1.0f + tanhf(0.79788456080286536f * (x + 0.044715f * x * x * x)));
    if constexpr (ACTIVATION == 4) return x / (1.0f + expf(-x));
    return x;
}

/// Integer results know relu only.
template <int ACTIVATION, class Value>
__device__ __forceinline__ Value activate_integer(Value x) {
    static_assert(ACTIVATION <= 1, "an activation of whole numbers");
    return ACTIVATION == 1 && x < Value(0) ? Value(0) : x;
}

}  // namespace epilogue
