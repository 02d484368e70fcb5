"""What is an attention problem: which fields, which combinations, which defaults, how much work?

Per batch entry and query head:  out = softmax(softcap(scale * Q @ K^T) + mask) @ V.
Masks are anchored bottom-right: query i stands at key position i + seq_kv - seq_q. `causal` shows it that key
and all before; `window` only the last `window` of those, its own included. A query that sees no key gives 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from rooftile.errors import MISSING, FieldError
from rooftile.problem.canonical import canonical_json, sha256_key
from rooftile.problem.dtypes import DTYPE_BITS, FP8, check_dtype, one_of, storage_bytes
from rooftile.problem.fields import fits_in_memory, flag, members, positive_number, scale_spec, whole
from rooftile.problem.gemm_fields import ScaleSpec

if TYPE_CHECKING:
    from rooftile.problem.layer import Layer

MASKS = ("none", "causal", "window")
ATTENTION_LAYOUTS = ("bshd", "bhsd")
KV_KINDS = ("contiguous", "ragged", "paged")

ATTENTION_FIELDS = (
    "schema", "op", "batch", "heads_q", "heads_kv", "seq_q", "seq_kv", "head_dim", "head_dim_v", "dtype",
    "layout", "mask", "window", "scale", "softcap", "sinks", "return_lse", "scales", "kv",
)  # fmt: skip

_KV_OF: dict[str, tuple[str, ...]] = {
    "f32": ("f32",),
    "f16": ("f16", *FP8),  # an fp8 cache under f16 queries
    "bf16": ("bf16", *FP8),
    "e4m3": ("e4m3",),
    "e5m2": ("e5m2",),
}
_OUT_OF: dict[str, tuple[str, ...]] = {
    "f32": ("f32", "f16", "bf16"),
    "f16": ("f16", "f32", *FP8),
    "bf16": ("bf16", "f32", *FP8),
    "e4m3": ("bf16", "f16", "f32", *FP8),
    "e5m2": ("bf16", "f16", "f32", *FP8),
}
_SCALE_BLOCKS = ("tensor", "row")


@dataclass(frozen=True)
class AttentionDtypes:
    """Element types of Q, of K and V, of the accumulator, and of out."""

    q: str
    kv: str
    acc: str
    out: str


@dataclass(frozen=True)
class AttentionScales:
    """Scales of Q, K and V: f32, one a tensor or one a row (batch entry, position and head)."""

    q: ScaleSpec | None = None
    k: ScaleSpec | None = None
    v: ScaleSpec | None = None


@dataclass(frozen=True)
class KvCache:
    """How keys and values lie: contiguous, ragged (packed sequences) or paged through a block table."""

    kind: str = "contiguous"
    page_size: int | None = None


@dataclass(frozen=True, init=False)
class Attention:
    """One attention problem, written out in full. The constructor takes the short forms of the JSON."""

    batch: int
    heads_q: int
    heads_kv: int
    seq_q: int
    seq_kv: int
    head_dim: int
    head_dim_v: int
    dtype: AttentionDtypes
    layout: str
    mask: str
    window: int | None
    scale: float | None
    softcap: float | None
    sinks: bool
    return_lse: bool
    scales: AttentionScales
    kv: KvCache

    op: ClassVar[str] = "attention"

    def __init__(
        self,
        heads_q: int,
        seq_q: int,
        head_dim: int,
        dtype: str | Mapping[str, str] | AttentionDtypes,
        *,
        batch: int = 1,
        heads_kv: int | None = None,
        seq_kv: int | None = None,
        head_dim_v: int | None = None,
        layout: str = "bshd",
        mask: str = "none",
        window: int | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        sinks: bool = False,
        return_lse: bool = False,
        scales: Mapping[str, Any] | AttentionScales | None = None,
        kv: Mapping[str, Any] | KvCache | None = None,
    ) -> None:
        put = object.__setattr__
        put(self, "batch", whole("batch", batch, 1))
        put(self, "heads_q", whole("heads_q", heads_q, 1))
        put(self, "heads_kv", self.heads_q if heads_kv is None else whole("heads_kv", heads_kv, 1))
        put(self, "seq_q", whole("seq_q", seq_q, 0))
        put(self, "seq_kv", self.seq_q if seq_kv is None else whole("seq_kv", seq_kv, 0))
        put(self, "head_dim", whole("head_dim", head_dim, 1))
        put(self, "head_dim_v", self.head_dim if head_dim_v is None else whole("head_dim_v", head_dim_v, 1))
        put(self, "dtype", _dtypes(dtype))
        put(self, "layout", one_of("layout", layout, ATTENTION_LAYOUTS))
        put(self, "mask", one_of("mask", mask, MASKS))
        put(self, "window", _window(window, self.mask))
        put(self, "scale", positive_number("scale", scale))
        put(self, "softcap", positive_number("softcap", softcap))
        put(self, "sinks", flag("sinks", sinks))
        put(self, "return_lse", flag("return_lse", return_lse))
        put(self, "scales", _scales(scales, self.dtype))
        put(self, "kv", _kv(kv))
        if self.heads_q % self.heads_kv:
            nearest = next(d for d in range(min(self.heads_kv, self.heads_q), 0, -1) if self.heads_q % d == 0)
            raise FieldError("heads_kv", self.heads_kv, f"a divisor of heads_q {self.heads_q}", nearest)
        self._check_extents()

    # -- identity ---------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """The problem written out: every field, defaults included."""
        s = self.scales
        return {
            "schema": 1,
            "op": "attention",
            "batch": self.batch,
            "heads_q": self.heads_q,
            "heads_kv": self.heads_kv,
            "seq_q": self.seq_q,
            "seq_kv": self.seq_kv,
            "head_dim": self.head_dim,
            "head_dim_v": self.head_dim_v,
            "dtype": {"q": self.dtype.q, "kv": self.dtype.kv, "acc": self.dtype.acc, "out": self.dtype.out},
            "layout": self.layout,
            "mask": self.mask,
            "window": self.window,
            "scale": self.scale,
            "softcap": self.softcap,
            "sinks": self.sinks,
            "return_lse": self.return_lse,
            "scales": {x: y.to_json() if y else None for x, y in (("q", s.q), ("k", s.k), ("v", s.v))},
            "kv": {"kind": self.kv.kind, "page_size": self.kv.page_size},
        }

    def canonical(self) -> str:
        """The text that the key is the hash of."""
        return canonical_json(self.to_json())

    @property
    def key(self) -> str:
        """problem_key: sha256 of the canonical JSON."""
        return sha256_key(self.to_json())

    def layer(self) -> Layer:
        """This problem with its run-time sizes left open."""
        from rooftile.problem.layer import Layer

        return Layer.of(self)

    def title(self) -> str:
        """One short line for people: `attention 1x32/8h 1x4096 d128 bf16 causal`."""
        d = self.dtype
        heads = f"{self.heads_q}/{self.heads_kv}h" if self.heads_q != self.heads_kv else f"{self.heads_q}h"
        dim = f"d{self.head_dim}" + (f"/{self.head_dim_v}" if self.head_dim != self.head_dim_v else "")
        types = d.q if d.q == d.kv else f"{d.q}/{d.kv}"
        words = [f"attention {self.batch}x{heads} {self.seq_q}x{self.seq_kv} {dim} {types}"]
        if self.mask != "none":
            words.append(self.mask if self.window is None else f"window {self.window}")
        if self.layout != "bshd":
            words.append(self.layout)
        if self.kv.kind != "contiguous":
            words.append(self.kv.kind + (str(self.kv.page_size) if self.kv.page_size else ""))
        return " ".join(words)

    # -- sizes and work ---------------------------------------------------------------------------------

    @property
    def empty(self) -> bool:
        """True when a sequence length is 0: nothing to tune; the result is empty, or zeros."""
        return self.seq_q == 0 or self.seq_kv == 0

    def sizes(self) -> dict[str, int]:
        """The whole numbers of the problem by name."""
        names = ("batch", "heads_q", "heads_kv", "seq_q", "seq_kv", "head_dim", "head_dim_v")
        return {name: int(getattr(self, name)) for name in names}

    def plan_names(self) -> dict[str, int]:
        """The names a LaunchPlan may use, but for threads and sm_count."""
        return self.sizes()

    @property
    def visible_pairs(self) -> int:
        """Pairs of query and key that the mask lets through, for one head of one batch entry."""
        if self.mask == "none":
            return self.seq_q * self.seq_kv
        # Positions of the queries that see anything: those of the last min(seq_q, seq_kv).
        first, end = max(0, self.seq_kv - self.seq_q), self.seq_kv
        if self.window is None:
            return _sum_to(end) - _sum_to(first)
        # min(p + 1, window) summed over the positions: a triangle, then a band.
        bend = min(max(self.window, first), end)
        return _sum_to(bend) - _sum_to(first) + (end - bend) * self.window

    @property
    def flops(self) -> int:
        """Multiplications and additions of the two products over the visible pairs."""
        return 2 * self.batch * self.heads_q * self.visible_pairs * (self.head_dim + self.head_dim_v)

    @property
    def min_bytes(self) -> int:
        """Bytes that must move when each query and key that takes part is read once, and each output written
        once. Assumes nothing about pages (their table included) but that every visible key is read."""
        d = self.dtype
        out_rows = self.batch * self.seq_q * self.heads_q
        total = storage_bytes(d.out, out_rows * self.head_dim_v)
        if self.return_lse:
            total += 4 * out_rows
        if self.visible_pairs == 0:
            return total
        masked = self.mask != "none"
        queries = self.batch * self.heads_q * (min(self.seq_q, self.seq_kv) if masked else self.seq_q)
        first = 0 if self.window is None else max(0, self.seq_kv - self.seq_q - self.window + 1)
        keys = self.batch * self.heads_kv * (self.seq_kv - first)
        total += storage_bytes(d.q, queries * self.head_dim)
        total += storage_bytes(d.kv, keys * self.head_dim) + storage_bytes(d.kv, keys * self.head_dim_v)
        for spec, rows in ((self.scales.q, queries), (self.scales.k, keys), (self.scales.v, keys)):
            if spec is not None:
                total += 4 * (1 if spec.block == "tensor" else rows)
        if self.sinks:
            total += 4 * self.heads_q
        return total

    # -- checks -----------------------------------------------------------------------------------------

    def _check_extents(self) -> None:
        for name, heads, seq, dim, dtype in (
            ("q", "heads_q", "seq_q", "head_dim", self.dtype.q),
            ("k", "heads_kv", "seq_kv", "head_dim", self.dtype.kv),
            ("v", "heads_kv", "seq_kv", "head_dim_v", self.dtype.kv),
            ("out", "heads_q", "seq_q", "head_dim_v", self.dtype.out),
        ):
            factors = {field: int(getattr(self, field)) for field in ("batch", heads, seq, dim)}
            fits_in_memory(name, factors, DTYPE_BITS[dtype])


def _sum_to(n: int) -> int:
    """1 + 2 + ... + n."""
    return n * (n + 1) // 2


# -- field by field -----------------------------------------------------------------------------------------


def _dtypes(value: object) -> AttentionDtypes:
    if isinstance(value, AttentionDtypes):
        value = {"q": value.q, "kv": value.kv, "acc": value.acc, "out": value.out}
    if isinstance(value, str):
        given: dict[str, object] = {"q": one_of("dtype", value, tuple(_KV_OF))}
    else:
        given = members("dtype", value, ("q", "kv", "acc", "out"), ", or one name for q and kv")
    if "q" not in given:
        raise FieldError("dtype.q", MISSING, f"one of {', '.join(_KV_OF)}")
    q = one_of("dtype.q", given["q"], tuple(_KV_OF))
    kv = given.get("kv", q)
    check_dtype("dtype.kv", kv)
    kv = one_of("dtype.kv", kv, _KV_OF[q], f" with dtype.q {q}")
    acc = given.get("acc", "f32")
    check_dtype("dtype.acc", acc)
    acc = one_of("dtype.acc", acc, ("f32",), " in attention")
    out = given.get("out", "bf16" if q in FP8 else q)
    check_dtype("dtype.out", out)
    out = one_of("dtype.out", out, _OUT_OF[q], f" with dtype.q {q}")
    return AttentionDtypes(q, kv, acc, out)


def _window(value: object, mask: str) -> int | None:
    if mask == "window":
        if value is None:
            raise FieldError("window", MISSING, "a whole number from 1 with mask window")
        return whole("window", value, 1)
    if value is not None:
        raise FieldError("window", value, f"null with mask {mask}; a window needs mask window")
    return None


def _scales(value: object, dtypes: AttentionDtypes) -> AttentionScales:
    if isinstance(value, AttentionScales):
        value = {x: s.to_json() if (s := getattr(value, x)) else None for x in "qkv"}
    given = {} if value is None else members("scales", value, ("q", "k", "v"))
    specs: dict[str, ScaleSpec] = {}
    for x in "qkv":
        pair = scale_spec(f"scales.{x}", given.get(x))
        if pair is None:
            continue
        name, dtype = ("q", dtypes.q) if x == "q" else ("kv", dtypes.kv)
        if dtype not in FP8:
            allowed = f"null with dtype.{name} {dtype}: only {', '.join(FP8)} have scales"
            raise FieldError(f"scales.{x}", given[x], allowed)
        if pair[0] != "f32":
            raise FieldError(f"scales.{x}.dtype", pair[0], "f32 in attention", "f32")
        if pair[1] not in _SCALE_BLOCKS:
            raise FieldError(f"scales.{x}.block", pair[1], f"one of {', '.join(_SCALE_BLOCKS)} in attention")
        specs[x] = ScaleSpec(*pair)
    return AttentionScales(**specs)


def _kv(value: object) -> KvCache:
    if isinstance(value, KvCache):
        value = {"kind": value.kind, "page_size": value.page_size}
    given = {} if value is None else members("kv", value, ("kind", "page_size"))
    kind = one_of("kv.kind", given.get("kind", "contiguous"), KV_KINDS)
    page_size = given.get("page_size")
    if kind == "paged":
        if page_size is None:
            raise FieldError("kv.page_size", MISSING, "a whole number from 1 with kv.kind paged")
        return KvCache(kind, whole("kv.page_size", page_size, 1))
    if page_size is not None:
        raise FieldError("kv.page_size", page_size, f"null with kv.kind {kind}; pages need kv.kind paged")
    return KvCache(kind)
