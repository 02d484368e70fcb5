"""Which Triton kernel do tests compile?"""

# mypy: ignore-errors
import triton
import triton.language as tl


@triton.jit
def matmul(
    a, b, c, m, n, k, lda, ldb, ldc, block_m: tl.constexpr, block_n: tl.constexpr, block_k: tl.constexpr
):
    row = tl.program_id(0) * block_m + tl.arange(0, block_m)
    col = tl.program_id(1) * block_n + tl.arange(0, block_n)
    depth = tl.arange(0, block_k)
    from_a = a + row[:, None] * lda + depth[None, :]
    from_b = b + depth[:, None] * ldb + col[None, :]
    total = tl.zeros((block_m, block_n), tl.float32)
    for done in range(0, k, block_k):
        x = tl.load(from_a, mask=(row[:, None] < m) & (depth[None, :] < k - done), other=0.0)
        y = tl.load(from_b, mask=(depth[:, None] < k - done) & (col[None, :] < n), other=0.0)
        total = tl.dot(x, y, total)
        from_a += block_k
        from_b += block_k * ldb
    to = c + row[:, None] * ldc + col[None, :]
    tl.store(to, total.to(tl.bfloat16), mask=(row[:, None] < m) & (col[None, :] < n))
