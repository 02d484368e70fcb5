"""What is to be computed, apart from any hardware: Problem, Layer, their JSON and their keys."""

from rooftile.problem.attention import Attention, AttentionDtypes, AttentionScales, KvCache
from rooftile.problem.bucket import BUCKET_VERSION, MAX_SIZE, bucket
from rooftile.problem.canonical import canonical_json, sha256_key
from rooftile.problem.dtypes import DTYPE_BITS, DTYPES, element_bytes, nearest_name, storage_bytes
from rooftile.problem.gemm import Gemm, operand_dtype, operand_shape
from rooftile.problem.gemm_fields import (
    ACTIVATIONS,
    Epilogue,
    GemmAlign,
    GemmDtypes,
    GemmLayout,
    GemmLd,
    GemmScale,
    ScaleSpec,
)
from rooftile.problem.layer import OPEN_SIZES, Layer, parse_layer
from rooftile.problem.parse import LATER_OPS, OPS, Problem, parse_problem

__all__ = [
    "ACTIVATIONS",
    "BUCKET_VERSION",
    "DTYPES",
    "DTYPE_BITS",
    "LATER_OPS",
    "MAX_SIZE",
    "OPEN_SIZES",
    "OPS",
    "Attention",
    "AttentionDtypes",
    "AttentionScales",
    "Epilogue",
    "Gemm",
    "GemmAlign",
    "GemmDtypes",
    "GemmLayout",
    "GemmLd",
    "GemmScale",
    "KvCache",
    "Layer",
    "Problem",
    "ScaleSpec",
    "bucket",
    "canonical_json",
    "element_bytes",
    "nearest_name",
    "operand_dtype",
    "operand_shape",
    "parse_layer",
    "parse_problem",
    "sha256_key",
    "storage_bytes",
]
