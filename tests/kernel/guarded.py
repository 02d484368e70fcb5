"""One GEMM on buffers that end at unmapped pages: is the result right, and nothing else touched?"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rooftile.launch.x86 import X86Kernel
from rooftile.problem import Gemm

from worker.verify.arena import GuardedBuffer

Array = NDArray[np.float32]
POISON = np.float32(np.nan)


@dataclass
class Operand:
    """Rows at a pitch, batch entries at a step, the last row ending at the guard page (or right after it)."""

    buffer: GuardedBuffer
    whole: Array
    view: Array
    ld: int
    stride: int

    @classmethod
    def make(cls, name: str, batch: int, rows: int, cols: int, pad: int, placement: str) -> Operand:
        ld = cols + pad
        stride = rows * ld + pad
        count = max(0, (batch - 1) * stride + (rows - 1) * ld + cols) if rows and cols else 0
        buffer = GuardedBuffer(name, 4 * count, placement=placement, offset=0, align=4)
        whole = buffer.data().view(np.float32)
        whole[:] = POISON
        if count == 0:
            return cls(buffer, whole, np.empty((batch, rows, cols), np.float32), ld, stride)
        view = np.lib.stride_tricks.as_strided(
            whole, shape=(batch, rows, cols), strides=(4 * stride, 4 * ld, 4), writeable=True
        )
        return cls(buffer, whole, view, ld, stride)


def expected(problem: Gemm, x: dict[str, Operand], alpha: float, beta: float) -> NDArray[np.float64]:
    """The result in double precision, in the layout of c."""
    a, b = x["a"].view.astype(np.float64), x["b"].view.astype(np.float64)
    a = a if problem.layout.a == "mk" else a.transpose(0, 2, 1)
    b = b if problem.layout.b == "kn" else b.transpose(0, 2, 1)
    out = alpha * (a @ b) if alpha else np.zeros((problem.batch, problem.m, problem.n))
    flip = problem.layout.c == "nm"
    if beta:
        c = x["c"].view.astype(np.float64)
        out = out + beta * (c.transpose(0, 2, 1) if flip else c)
    if problem.epilogue.bias:
        out = out + x["bias"].view[0, 0].astype(np.float64)
    out = activate(out, problem.epilogue.activation)
    if problem.epilogue.residual:
        r = x["residual"].view.astype(np.float64)
        out = out + (r.transpose(0, 2, 1) if flip else r)
    return out.transpose(0, 2, 1) if flip else out


def activate(x: NDArray[np.float64], name: str | None) -> NDArray[np.float64]:
    """The activations as they are defined."""
    if name is None:
        return x
    if name == "relu":
        return np.maximum(x, 0)
    if name == "gelu":
        erf = np.vectorize(math.erf, otypes=[np.float64])
        return 0.5 * x * (1 + erf(x / math.sqrt(2)))
    if name == "gelu_tanh":
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return x / (1 + np.exp(-x))


def run_guarded(
    kernel: X86Kernel,
    problem: Gemm,
    seed: int,
    threads: int,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    pad: int = 0,
    placement: str = "end",
    out_is_c: bool = False,
) -> tuple[Array, float]:
    """The result, and its greatest error against double precision in units of what rounding may do.

    Asserts that the padding between rows and entries is untouched; the guard pages see to the rest."""
    rng = np.random.default_rng(seed)
    sizes = {"m": problem.m, "n": problem.n, "k": problem.k}
    letters = {"a": problem.layout.a, "b": problem.layout.b, "c": problem.layout.c, "out": problem.layout.c}
    letters["residual"] = problem.layout.c
    x: dict[str, Operand] = {}
    for name, (rows, cols) in letters.items():
        x[name] = Operand.make(name, problem.batch, sizes[rows], sizes[cols], pad, placement)
        if name != "out":
            x[name].view[...] = rng.uniform(-1, 1, x[name].view.shape).astype(np.float32)
    x["bias"] = Operand.make("bias", 1, 1, problem.n, 0, placement)
    x["bias"].view[...] = rng.uniform(-1, 1, x["bias"].view.shape)
    if beta == 0.0:
        x["c"].view[...] = POISON  # not to be read
    if alpha == 0.0:
        x["a"].view[...] = POISON
        x["b"].view[...] = POISON
    want = expected(problem, x, alpha, beta)
    for name in ("a", "b", "bias", "residual"):
        x[name].buffer.read_only()
    out = x["out"]
    if out_is_c:
        out = x["c"]
    else:
        x["c"].buffer.read_only()

    names = {**sizes, "batch": problem.batch, "threads": threads}
    for name in ("a", "b", "c", "out", "residual"):
        operand = out if name == "out" else x[name]
        names |= {f"ld_{name}": operand.ld, f"stride_{name}": operand.stride}
    workspace_bytes = kernel.plan.concrete(names).workspace_bytes
    workspace = GuardedBuffer("workspace", workspace_bytes, placement="end", align=64)
    workspace.data()[:] = 0xFF  # NaN: what is used must have been written
    pointers = {
        name: operand.buffer.base
        for name, operand in x.items()
        if name in ("a", "b")
        or (name == "c" and beta != 0.0)
        or (name == "bias" and problem.epilogue.bias)
        or (name == "residual" and problem.epilogue.residual)
    }
    pointers |= {"out": out.buffer.base, "workspace": workspace.base}
    holes = np.ones(out.whole.shape, bool)
    if out.whole.size:
        shape = (problem.batch, *out.view.shape[1:])
        np.lib.stride_tricks.as_strided(holes, shape, (out.stride, out.ld, 1))[...] = False
    kernel.prepare(names, pointers, {"alpha": alpha, "beta": beta}).run()
    assert np.isnan(out.whole[holes]).all(), "wrote between the rows of out"
    got = np.array(out.view)
    assert not np.isnan(got).any(), "NaN: something was not written, or something was read that is not there"
    scale = math.sqrt(max(1, problem.k)) * max(1.0, abs(alpha)) + abs(beta) + 2
    return got, float(np.abs(got - want).max(initial=0.0)) / scale
