"""Tensor cores and what feeds them: ldmatrix, mma.sync, wmma (PTX ISA 9.7.14)."""
from __future__ import annotations
from typing import Any
import numpy as np
from emulator.machine import access
from emulator.machine.access import Access
from emulator.machine.decode.context import Context
from emulator.machine.wave import Step, Wave, WARP

def _todo(c: Context) -> Step:
    raise c.error("not yet")
store_matrix = move_matrix = wmma = _todo

def load_matrix(c: Context) -> Step:
    """ldmatrix.sync.aligned.m8n8.x{1,2,4}{.trans}.shared.b16 {d}, [a]."""
    c.allow("sync", "aligned", "m8n8", "x1", "x2", "x4", "trans", "shared", "shared::cta", "b16")
    target, source = c.operands(2)
    count = next(int(m[1]) for m in c.i.modifiers if m in ("x1", "x2", "x4"))
    items = target.items
    writers = [c.dest(op, 32) for op in items]
    address = c.address(source)
    trans = c.has("trans")
    a = Access(c.site, 16, 16)
    site = c.site
    lanes = np.arange(8 * count)

    def step(w: Wave) -> None:
        w.need(site)
        at = np.broadcast_to(address(w), (w.rows, WARP))[:, : 8 * count]
        row = np.repeat(np.arange(w.rows), 8 * count)
        data = access.read(w, "shared", a, at.reshape(-1), row, np.tile(lanes, w.rows))
        halves = data.view(np.uint16).reshape(w.rows, count, 8, 8)
        if trans:
            halves = halves.transpose(0, 1, 3, 2)
        words = np.ascontiguousarray(halves).view(np.uint32).reshape(w.rows, count, WARP)
        for n, write in enumerate(writers):
            write(w, words[:, n])

    return step

def multiply(c: Context) -> Step:
    d, a, b, e = c.operands(4)
    ra = [c.value(o, 32) for o in a.items]; rb = [c.value(o, 32) for o in b.items]; rc = [c.value(o, 32) for o in e.items]
    wd = [c.dest(o, 32) for o in d.items]
    site = c.site
    def bf(x):  # (W,32) u32 -> (W,32,2) f64
        lo = (x << np.uint32(16)).view(np.float32); hi = (x & np.uint32(0xFFFF0000)).view(np.float32)
        return np.stack([lo, hi], -1).astype(np.float64)
    def step(w: Wave) -> None:
        w.need(site)
        R = w.rows
        bc = lambda r: np.broadcast_to(r(w), (R, WARP))
        A = np.empty((R, 2, 8, 2, 4, 2))  # rowhalf, g, khalf, t, i
        for n, r in enumerate(ra):
            A[:, n & 1, :, n >> 1] = bf(bc(r)).reshape(R, 8, 4, 2)
        A = A.reshape(R, 16, 16)
        B = np.empty((R, 8, 2, 4, 2))
        for n, r in enumerate(rb):
            B[:, :, n] = bf(bc(r)).reshape(R, 8, 4, 2)
        B = B.reshape(R, 8, 16)
        D = A @ B.transpose(0, 2, 1)
        C = np.empty((R, 2, 8, 4, 2))
        for n, r in enumerate(rc):
            C[:, n >> 1, :, :, n & 1] = bc(r).view(np.float32).reshape(R, 8, 4)
        D = (D.reshape(R, 2, 8, 4, 2) + C).astype(np.float32)
        for n, wr in enumerate(wd):
            wr(w, np.ascontiguousarray(D[:, n >> 1, :, :, n & 1]).reshape(R, WARP).view(np.uint32))
    return step
