"""How does cuBLASLt have to be asked for a GEMM of ours? Its matrices are column-major; ours are named by
letters.

An operand whose last letter is contiguous is, to cuBLASLt, the column-major matrix of those letters the other
way round. A result `mn` is therefore computed as its transpose, B^T A^T, and `nm` as it stands. Pure: the
tests carry the description out with numpy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rooftile.launch.errors import UnsuitableError
from rooftile.problem import Gemm, operand_dtype


@dataclass(frozen=True)
class LtMatrix:
    """A column-major matrix of an operand: element (i, j) lies at i + j * ld, entry b at b * batch_stride
    more."""

    operand: str
    dtype: str
    rows: int
    cols: int
    ld: int
    batch: int
    batch_stride: int


@dataclass(frozen=True)
class LtPlan:
    """D = alpha * op(X) op(Y) + beta * C, then bias along D's rows, then the activation."""

    x: LtMatrix
    y: LtMatrix
    c: LtMatrix
    d: LtMatrix
    transpose_x: bool
    transpose_y: bool
    compute: str
    """f64 f32 tf32 s32: what is summed in, and with what."""
    scalars: str
    """The type of alpha and beta: f64 f32 s32."""
    bias: bool
    activation: str | None
    c_operand: str | None
    """Which array is C: c, residual, or none (beta is 0)."""
    scale_x: str | None
    scale_y: str | None


_ACTIVATIONS = (None, "relu", "gelu_tanh")


def lt_plan(problem: Gemm, names: Mapping[str, int]) -> LtPlan:
    """The description for a problem at pitches and steps `names` (ld_a, stride_a...). UnsuitableError says
    what cuBLASLt cannot do of it."""
    epilogue = problem.epilogue
    if epilogue.activation not in _ACTIVATIONS:
        # Its GELU is the one by tanh; with erf the results differ by more than bf16 rounds.
        raise UnsuitableError(f"cuBLASLt has no activation {epilogue.activation}")
    if epilogue.residual and (epilogue.activation is not None or problem.beta != "zero"):
        raise UnsuitableError(
            "cuBLASLt adds one matrix, before the activation: no residual beside c or after one"
        )
    if epilogue.bias is not None and problem.layout.c != "mn":
        raise UnsuitableError("cuBLASLt adds a bias along the contiguous dimension of out, which is m here")
    for name, spec in (("a", problem.scale.a), ("b", problem.scale.b)):
        if spec is not None and (spec.block != "tensor" or spec.dtype != "f32"):
            raise UnsuitableError(
                f"scale.{name} {spec.to_json()} is not asked of cuBLASLt here; f32 tensor is"
            )
    a = _matrix(problem, "a", problem.layout.a, names)
    b = _matrix(problem, "b", problem.layout.b, names)
    d = _matrix(problem, "out", problem.layout.c, names)
    c_operand = "residual" if epilogue.residual else "c" if problem.beta != "zero" else None
    c = _matrix(problem, c_operand, problem.layout.c, names) if c_operand else d
    scale_a = "scale_a" if problem.scale.a is not None else None
    scale_b = "scale_b" if problem.scale.b is not None else None
    if problem.layout.c == "mn":
        # D is n x m: op(X) must be n x k, op(Y) k x m. B as `kn` is column-major n x k already.
        x, y, turn_x, turn_y = b, a, problem.layout.b == "nk", problem.layout.a == "km"
        scale_x, scale_y = scale_b, scale_a
    else:
        # D is m x n: op(X) must be m x k, op(Y) k x n. A as `km` is column-major m x k already.
        x, y, turn_x, turn_y = a, b, problem.layout.a == "mk", problem.layout.b == "kn"
        scale_x, scale_y = scale_a, scale_b
    kind = problem.dtype.acc
    compute = "tf32" if problem.dtype.a == "tf32" else kind
    if kind == "s32" and problem.dtype.c != "s32":
        raise UnsuitableError(
            f"cuBLASLt is asked for integer products with s32 results only, not {problem.dtype.c}"
        )
    scalars = {"f64": "f64", "s32": "s32", "f16": "f16"}.get(kind, "f32")
    return LtPlan(
        x, y, c, d, turn_x, turn_y, compute, scalars, epilogue.bias is not None, epilogue.activation,
        c_operand, scale_x, scale_y,
    )  # fmt: skip


def _matrix(problem: Gemm, operand: str, letters: str, names: Mapping[str, int]) -> LtMatrix:
    slow, fast = letters[0], letters[1]
    return LtMatrix(
        operand,
        operand_dtype(problem, operand),
        rows=int(getattr(problem, fast)),
        cols=int(getattr(problem, slow)),
        ld=names[f"ld_{operand}"],
        batch=problem.batch,
        batch_stride=names[f"stride_{operand}"],
    )
