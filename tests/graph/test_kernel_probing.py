"""Kernels that are run on stand-ins to infer shapes stay within bounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import jitmagic
from jitmagic.graph.devices import kernels_on
from jitmagic.graph.operators.kernel_probing import kernel_result

aten = torch.ops.aten
SQUARE = torch.eye(4, device="meta")
INTEGERS = (torch.int32, torch.int64)
PIVOTS = torch.ones(4, dtype=torch.int32, device="meta")

# LAPACK follows its pivots without a look: at 0 it writes before its memory.
TAKE_PIVOTS: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "ldl_solve": (aten.linalg_ldl_solve.default, (SQUARE, PIVOTS, SQUARE)),
    "lu_solve": (aten.linalg_lu_solve.default, (SQUARE, PIVOTS, SQUARE)),
    "lu_unpack": (aten.lu_unpack.default, (SQUARE, PIVOTS)),
}


class Integers(TorchDispatchMode):
    """The integers that kernels of the CPU are given."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        for arg in args if "fill" not in func.__name__ else ():
            if isinstance(arg, Tensor) and arg.dtype in INTEGERS and arg.device.type == "cpu":
                self.seen += arg.tolist()
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", TAKE_PIVOTS)
def test_stand_in_pivots_are_valid_for_lapack(name: str) -> None:
    op, args = TAKE_PIVOTS[name]
    with Integers() as integers:
        told = kernel_result(op, args, {})
    assert told is None or integers.seen
    assert all(1 <= pivot <= 4 for pivot in integers.seen)


def test_stand_in_indexes_are_zero() -> None:
    one = torch.ones(1, 3, device="meta")
    at = torch.zeros(2, dtype=torch.int64, device="meta")
    told = kernel_result(aten.index_select.default, (one, 0, at), {})
    assert told is None or told.shape == (2, 3)


def test_kernels_of_the_cpu_do_not_answer_for_other_devices() -> None:
    x = torch.empty_strided((2, 1, 4), (1, 7, 2), device="meta")
    known = kernel_result(aten.neg.default, (x,), {})
    assert isinstance(known, Tensor)
    assert known.stride() == torch.empty_strided(x.shape, x.stride()).neg().stride()
    with kernels_on(torch.device("cuda", 0)):
        assert kernel_result(aten.neg.default, (x,), {}) is None


@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("rows", [0, 1, 2])
def test_embedding_bag_gradient_of_empty_table(rows: int, mode: str) -> None:
    """The kernel of the gradient writes wherever it is told, and is told only where row 0 is."""

    def program(index: Tensor, table: Tensor) -> Tensor:
        return torch.nn.functional.embedding_bag(index, table, index[:1] * 0, mode=mode)

    table = torch.ones(rows, 4, dtype=torch.float64, requires_grad=True)
    compiled = jitmagic.jit(program, backend="aot_eager")
    for run in (program, compiled, compiled):
        with pytest.raises(RuntimeError, match="embedding"):
            run(torch.tensor([rows, 0]), table)
    bag = aten._embedding_bag_dense_backward.default
    integers = torch.ones(1, dtype=torch.int64, device="meta")
    given = (torch.ones(1, 4, device="meta"), *(integers,) * 4)
    with Integers() as watching:
        kernel_result(bag, (*given, max(rows, 1), False, 1, None), {})
        assert kernel_result(bag, (*given, 0, False, 1, None), {}) is None
    assert set(watching.seen) <= {0}
