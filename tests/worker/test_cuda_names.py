"""Are the kernels of a graph told by name, and is a measurement never lost for want of one?"""

from __future__ import annotations

from typing import Any

import pytest

from worker.measure import cuda_names


class Params:
    def __init__(self, func: int, kern: int = 0) -> None:
        self.func, self.kern = func, kern


class Driver:
    """cuda.bindings.driver as far as it is asked: a graph of a memset and three launches of two kernels."""

    class CUgraphNodeType:
        CU_GRAPH_NODE_TYPE_KERNEL = 0

    status = 0

    def CUgraph(self, handle: int) -> int:  # noqa: N802 - the driver's name
        return handle

    def cuGraphGetNodes(self, _graph: int, count: int = 0) -> Any:  # noqa: N802
        return self.status, list(range(count)), 4

    def cuGraphNodeGetType(self, node: int) -> Any:  # noqa: N802
        return 0, 2 if node == 0 else 0

    def cuGraphKernelNodeGetParams(self, node: int) -> Any:  # noqa: N802
        return 0, Params(0, 9) if node == 3 else Params(5)

    def cuFuncGetName(self, _func: int) -> Any:  # noqa: N802
        return 0, b"gemm"

    def cuKernelGetName(self, _kernel: int) -> Any:  # noqa: N802
        return 0, b"reduce"


def test_names_are_distinct_and_in_order() -> None:
    assert cuda_names._names(Driver(), 1) == ["gemm", "reduce"]


def test_an_error_of_the_driver_is_no_error_of_the_measurement() -> None:
    driver = Driver()
    driver.status = 1
    with pytest.raises(RuntimeError):
        cuda_names._names(driver, 1)
    assert cuda_names.kernel_names(0) == []
