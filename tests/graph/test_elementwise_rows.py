"""Shape rules that follow from the rows of elementwise operations agree with the kernels."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from jitmagic.graph.operators.shapes import infer_accepted
from jitmagic.operators.operation import is_elementwise, operation, rows, tensor_first
from jitmagic.torch_types import OpOverload

DTYPES = (torch.bool, torch.uint8, torch.int64, torch.float16, torch.float32, torch.float64)
ROWS = {name: row for name, row in rows() if row.promotion}


def _operands(op: OpOverload, dtypes: tuple[torch.dtype, ...]) -> list[Any] | None:
    """Return operands of these dtypes, numbers where the schema has no tensor, and then the other
    arguments that have no default; None if the overload has fewer operands.
    """
    arguments = op._schema.arguments
    if len(arguments) < len(dtypes) or str(arguments[0].type) != "Tensor":
        return None
    required = [a for a in arguments[len(dtypes) :] if not a.has_default_value()]
    made: list[Any] = []
    for argument, dtype in zip(arguments, (*dtypes, *dtypes[:1] * len(required)), strict=False):
        is_broadcast = len(made) == 1 < len(dtypes) and "backward" not in op._opname
        shape = (2, 1, 3) if is_broadcast else (4, 3)
        is_tensor = "Tensor" in str(argument.type)
        made.append(torch.ones(shape, dtype=dtype) if is_tensor else dtype.is_floating_point + 1)
    return made


def _forms(name: str) -> Iterator[OpOverload]:
    yield from tensor_first(name)
    yield from tensor_first(f"{name}_")


@pytest.mark.parametrize("name", sorted(ROWS))
def test_rules_agree_with_kernels_on_every_dtype(name: str) -> None:
    answered = 0
    for op in _forms(name):
        for dtypes in itertools.product(DTYPES, repeat=operation(name).arity):
            given = _operands(op, dtypes)
            if given is None or (op._schema.is_mutable and len(dtypes) > 1):
                continue
            meta = tuple(
                torch.empty_like(one, device="meta") if isinstance(one, torch.Tensor) else one
                for one in given
            )
            made: Any = infer_accepted(op, meta, {})
            if made is not None:
                expected = op(*given)
                assert (made.shape, made.dtype) == (expected.shape, expected.dtype), dtypes
                assert made.stride() == expected.stride(), dtypes
                answered += 1
    assert answered


@pytest.mark.parametrize("name", sorted(ROWS))
def test_operations_that_promote_are_elementwise(name: str) -> None:
    assert is_elementwise(name)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        *(("relu_", True), ("__iadd__", True), ("divide", True), ("copy_", True)),
        *(("_foreach_addcdiv_", True), ("_foreach_norm", False), ("_foreach_mm", False)),
        *(("cumsum", False), ("mm", False), ("max", False), ("not an operation", False)),
    ],
)
def test_is_elementwise_by_any_spelling(name: str, expected: bool) -> None:
    assert is_elementwise(name) is expected


def test_is_elementwise_differs_between_overloads() -> None:
    aten = torch.ops.aten
    assert is_elementwise(aten.max.other)
    assert not is_elementwise(aten.max.dim)
    assert is_elementwise(aten._foreach_mul.Scalar)


@pytest.mark.parametrize("mode", [None, "floor", "trunc"])
def test_the_rule_of_division_follows_its_rounding(mode: str | None) -> None:
    op = torch.ops.aten.div.Tensor_mode
    for dtypes in itertools.product((torch.float16, torch.float32), repeat=2):
        given = [torch.ones(4, 3, dtype=dtype) for dtype in dtypes]
        meta = tuple(one.to("meta") for one in given)
        made: Any = infer_accepted(op, meta, {"rounding_mode": mode})
        assert made.dtype is op(*given, rounding_mode=mode).dtype
