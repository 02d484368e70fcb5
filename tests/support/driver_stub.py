"""A libcuda.so.1 that only encodes tensor maps: it writes down what it was given, for the real cuda-bindings.

The driver is not ours and not on this machine; what stands in for it is the smallest library with its name
and its two entries. STUB_CODES are the results of its calls one after the other (the last again and again),
STUB_NONE leaves it without the function, as before CUDA 12.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

_TEXT = r"""
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static int calls = 0;
static void list64(FILE *f, const char *name, const uint64_t *x, unsigned n) {
    fprintf(f, "\"%s\": [", name);
    for (unsigned i = 0; i < n; i++) fprintf(f, "%s%llu", i ? ", " : "", (unsigned long long)x[i]);
    fprintf(f, "], ");
}
static void list32(FILE *f, const char *name, const uint32_t *x, unsigned n) {
    fprintf(f, "\"%s\": [", name);
    for (unsigned i = 0; i < n; i++) fprintf(f, "%s%u", i ? ", " : "", x[i]);
    fprintf(f, "], ");
}
static int encode(void *map, int type, uint32_t rank, void *address, const uint64_t *dims,
                  const uint64_t *strides, const uint32_t *box, const uint32_t *steps, int interleave,
                  int swizzle, int promotion, int fill) {
    const char *codes = getenv("STUB_CODES");
    char given[256];
    snprintf(given, sizeof given, "%s", codes ? codes : "0");
    int code = 0, at = 0;
    for (char *one = strtok(given, ","); one && at <= calls; one = strtok(0, ","), at++) code = atoi(one);
    FILE *f = fopen(getenv("STUB_LOG"), "a");
    fprintf(f, "{\"map_align\": %u, \"type\": %d, \"rank\": %u, \"address\": %llu, ",
            (unsigned)((uintptr_t)map % 64), type, rank, (unsigned long long)(uintptr_t)address);
    list64(f, "dims", dims, rank);
    list64(f, "strides", strides, rank - 1);
    list32(f, "box", box, rank);
    list32(f, "steps", steps, rank);
    fprintf(f, "\"interleave\": %d, \"swizzle\": %d, \"promotion\": %d, \"fill\": %d}\n", interleave,
            swizzle, promotion, fill);
    fclose(f);
    if (code == 0)
        for (int i = 0; i < 128; i++) ((unsigned char *)map)[i] = (unsigned char)(i + calls);
    calls++;
    return code;
}
int cuGetProcAddress_v2(const char *name, void **found, int version, uint64_t flags, int *status) {
    *found = 0;
    if (status) *status = 0;
    if (!strcmp(name, "cuGetProcAddress") || !strcmp(name, "cuGetProcAddress_v2"))
        *found = (void *)cuGetProcAddress_v2;
    if (!strcmp(name, "cuTensorMapEncodeTiled") && !getenv("STUB_NONE")) *found = (void *)encode;
    if (!*found && status) *status = 1;
    return 0;
}
int cuGetProcAddress(const char *name, void **found, int version, uint64_t flags) {
    return cuGetProcAddress_v2(name, found, version, flags, 0);
}
"""


def build(folder: Path) -> Path:
    """The folder with the library in it; skips where there is no C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    source = folder / "stub.c"
    source.write_text(_TEXT)
    target = folder / "libcuda.so.1"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", str(target), str(source)], check=True
    )
    return folder


def run(folder: Path, script: str, **more: str) -> tuple[str, list[dict[str, Any]]]:
    """What a Python script printed that met this driver, and the calls it made."""
    log = folder / "calls"
    log.write_text("")
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(folder),
        "STUB_LOG": str(log),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        **more,
    }
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False,
        timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), [json.loads(line) for line in log.read_text().splitlines()]
