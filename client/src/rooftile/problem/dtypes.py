"""Which element types exist, how wide is each, and what did somebody who wrote another spelling mean?"""

from __future__ import annotations

from rooftile.errors import FieldError

DTYPE_BITS: dict[str, int] = {
    "f64": 64,
    "f32": 32,
    "tf32": 32,  # stored as f32; the multiplier reads 19 bits of it
    "f16": 16,
    "bf16": 16,
    "e4m3": 8,
    "e5m2": 8,
    "e2m1": 4,  # two to a byte along the contiguous dimension
    "s8": 8,
    "u8": 8,
    "s32": 32,
}
DTYPES: tuple[str, ...] = tuple(DTYPE_BITS)

FP8 = ("e4m3", "e5m2")
NARROW_FLOATS = ("e4m3", "e5m2", "e2m1")
INTEGERS = ("s8", "u8")

SCALE_DTYPE_BITS: dict[str, int] = {"f32": 32, "ue8m0": 8, "ue4m3": 8}

# Spellings of frameworks and papers. Refused, but with the right name in the answer.
_MEANT: dict[str, str] = {
    "float64": "f64", "fp64": "f64", "double": "f64",
    "float32": "f32", "fp32": "f32", "float": "f32", "single": "f32",
    "tensorfloat32": "tf32", "tfloat32": "tf32", "fp19": "tf32",
    "float16": "f16", "fp16": "f16", "half": "f16",
    "bfloat16": "bf16", "bfloat": "bf16", "brain16": "bf16",
    "fp8": "e4m3", "f8": "e4m3", "float8": "e4m3", "mxfp8": "e4m3",
    "fp8_e4m3": "e4m3", "fp8e4m3": "e4m3", "float8_e4m3": "e4m3", "float8_e4m3fn": "e4m3", "f8e4m3": "e4m3",
    "fp8_e4m3fn": "e4m3", "e4m3fn": "e4m3", "f8e4m3fn": "e4m3", "fp8e4nv": "e4m3", "fp8_e4m3fnuz": "e4m3",
    "fp8_e5m2": "e5m2", "fp8e5m2": "e5m2", "float8_e5m2": "e5m2", "f8e5m2": "e5m2", "fp8e5": "e5m2",
    "fp4": "e2m1", "f4": "e2m1", "float4": "e2m1", "nvfp4": "e2m1", "mxfp4": "e2m1", "fp4_e2m1": "e2m1",
    "float4_e2m1": "e2m1", "float4_e2m1fn": "e2m1", "f4e2m1": "e2m1", "float4_e2m1fn_x2": "e2m1",
    "int8": "s8", "i8": "s8", "char": "s8", "qint8": "s8",
    "uint8": "u8", "ui8": "u8", "byte": "u8", "quint8": "u8",
    "int32": "s32", "i32": "s32", "int": "s32",
    "e8m0": "ue8m0", "float8_e8m0fnu": "ue8m0", "fp8_e8m0": "ue8m0",
}  # fmt: skip


def nearest_name(value: object, names: tuple[str, ...]) -> str | None:
    """The name of `names` that `value` most likely meant, or None."""
    if not isinstance(value, str) or len(value) > 64:
        return None
    text = value.strip().lower().removeprefix("torch.").removeprefix("np.").removeprefix("numpy.")
    text = text.removeprefix("jnp.").removeprefix("tl.")
    by_lower = {name.lower(): name for name in names}
    if text in by_lower:
        return by_lower[text]
    meant = _MEANT.get(text.replace("-", "_"))
    if meant in names:
        return meant
    import difflib  # only wrong input pays for loading it

    close = difflib.get_close_matches(text, list(by_lower), n=1, cutoff=0.5)
    return by_lower[close[0]] if close else None


def one_of(field: str, value: object, names: tuple[str, ...], why: str = "") -> str:
    """`value` when it is one of `names`, else a FieldError with the nearest of them."""
    if isinstance(value, str) and value in names:
        return value
    allowed = f"one of {', '.join(names)}" if len(names) > 1 else names[0]
    raise FieldError(field, value, allowed + why, nearest_name(value, names))


def check_dtype(field: str, value: object) -> str:
    """`value` when it names an element type."""
    return one_of(field, value, DTYPES)


def storage_bytes(dtype: str, elements: int) -> int:
    """Bytes that `elements` packed elements of `dtype` take."""
    return -(-elements * DTYPE_BITS[dtype] // 8)


def element_bytes(dtype: str) -> int:
    """Bytes of one element; 1 for the two-to-a-byte e2m1, whose smallest addressable piece is a byte."""
    return max(1, DTYPE_BITS[dtype] // 8)
