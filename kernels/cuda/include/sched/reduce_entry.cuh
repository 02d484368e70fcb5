// The second entry of a GEMM whose parts of k are added up by a launch of its own (sched::REDUCE). Not a header of
// types: included once, behind the kernel, whose `Done` finishes the sums.
#pragma once

#include "epilogue/reduce.cuh"
#include "sched/arguments.cuh"

extern "C" __global__ void __launch_bounds__(epilogue::REDUCE_THREADS) reduce(RT_ARGUMENTS) {
    const epilogue::Quad quad = epilogue::quad_of(m, n, batch);
    if (quad.entry >= batch) return;
    const epilogue::Operands operands = RT_OPERANDS_OF(quad.entry);
    epilogue::add_parts<Done, tile::least(epilogue::QUAD, RT_VECTOR)>(operands, workspace + partials_at, quad, splits,
                                                                      static_cast<int>(n) - quad.column);
}
