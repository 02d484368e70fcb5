"""Which kernels does a CUDA graph launch? So that the Baseline is recorded by what really ran.

Through cuda-bindings, which is optional: without it, or on a driver before 12.3 (cuFuncGetName), nothing is
told.
"""

from __future__ import annotations

from typing import Any

_MOST = 64


def kernel_names(graph: int) -> list[str]:
    """Distinct names in the graph (a cudaGraph_t), in its own order, mangled as they are."""
    try:
        from cuda.bindings import driver
    except ImportError:
        return []
    try:
        return _names(driver, graph)
    except Exception:  # noqa: BLE001 - a name is no reason to lose a measurement
        return []


def _names(driver: Any, graph: int) -> list[str]:
    handle = driver.CUgraph(graph)
    count = _ok(driver.cuGraphGetNodes(handle))[-1]
    nodes = _ok(driver.cuGraphGetNodes(handle, count))[0]
    found: dict[str, None] = {}
    for node in nodes[:_MOST]:
        if _ok(driver.cuGraphNodeGetType(node))[0] != driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL:
            continue
        params = _ok(driver.cuGraphKernelNodeGetParams(node))[0]
        if int(params.func):
            name = _ok(driver.cuFuncGetName(params.func))[0]
        else:
            name = _ok(driver.cuKernelGetName(params.kern))[0]
        found[name.decode(errors="replace") if isinstance(name, bytes) else str(name)] = None
    return list(found)


def _ok(answer: Any) -> Any:
    status, *rest = answer
    if int(status):
        raise RuntimeError(f"CUDA driver: {status}")
    return rest
