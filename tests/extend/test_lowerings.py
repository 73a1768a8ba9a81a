"""register_lowering and register_scalar: formulas are part of the kernels around them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import jitmagic
from jitmagic import extend
from jitmagic.extend import scalar
from tests.programs.harness import Program
from tests.programs.harness import check as check_program

from .operators_defined import W, X, calls, cap, left_to_the_kernel, ops, reduced, taught


@pytest.fixture(autouse=True)
def nothing_called() -> None:
    calls.clear()


def norm(x: Any, w: Any, eps: float) -> Any:
    return x * scalar.rsqrt((x * x).mean() + eps) * w


def length(x: Any, dims: list[int], keepdim: bool) -> Any:
    return scalar.sqrt((x * x).sum())


def swap(x: Any, y: Any) -> Any:
    return y + x, x - y


def pick(x: Any, c: Any) -> Any:
    return scalar.where(c, x, scalar.floor(x.to(torch.float64) / 2).to(torch.int64))


LOWERED: dict[str, tuple[Any, Any, Any, Callable[..., Any]]] = {
    "pointwise": (ops.cap, cap, None, lambda x, w: ops.cap(x.sin(), 2.0) + w),
    "number that varies": (ops.cap, cap, None, lambda x, w: ops.cap(x, w.shape[0] + 0.5)),
    "normalisation": (ops.rms, norm, -1, lambda x, w: ops.rms(x.sin(), w, 1e-6) + 1),
    "columns": (ops.length, length, "dims", lambda x, w: ops.length(x.sin(), [0]) + w),
    "rows, kept": (ops.length, length, "dims", lambda x, w: x / ops.length(x + 1, [-1], True)),
    "all": (ops.length, length, "dims", lambda x, w: ops.length(x * w, [0, 1]) + 1),
    "several results": (ops.swap, swap, None, lambda x, w: ops.swap(x.sin(), x.cos())),
    "one of them": (ops.swap, swap, None, lambda x, w: ops.swap(x.sin(), x.cos())[1]),
    "integers": (ops.pick, pick, None, lambda x, w: ops.pick((x * 9).long(), x > 0) + 1),
}


@pytest.mark.parametrize("name", LOWERED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_lowering_is_part_of_the_kernels_around_it(name: str, dtype: torch.dtype) -> None:
    op, formula, over, program = LOWERED[name]
    x, w = X.to(dtype), W.to(dtype)
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if dtype is torch.bfloat16 else {}
    with extend.register_lowering(op, formula, over=over):
        for dynamic in (False, True):
            fast = jitmagic.jit(program, fullgraph=True, dynamic=dynamic)
            for rows in (4, 3, 1):
                expected = program(x[:rows], w)
                calls.clear()
                torch.testing.assert_close(fast(x[:rows], w), expected, **tolerance)
                assert not calls


def test_lowered_operator_is_one_kernel_with_its_neighbours() -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        return ops.rms(x.sin(), w, 1e-6).exp() + 1  # type: ignore[no-any-return]

    with extend.register_lowering(ops.rms, norm, over=-1):
        check_program(Program("one", lambda: program, lambda: [(X, W)], graphs=1, kernels=1))


def test_lowering_may_be_computed_again_in_a_backward() -> None:
    def program(x: Tensor) -> Tensor:
        return (taught(x) * taught(x.sin())).sum()

    with extend.register_lowering(taught, lambda x: scalar.tanh(x) * x):
        x, y = X.clone().requires_grad_(), X.clone().requires_grad_()
        fast = jitmagic.jit(program, fullgraph=True)
        calls.clear()
        fast(x).backward()
        assert not calls
        program(y).backward()
    torch.testing.assert_close(x.grad, y.grad)


@pytest.mark.parametrize(
    ("formula", "words"),
    [
        (lambda x, limit: scalar.tang(x), r"no scalar operation 'tang' \(did you mean 'tan"),
        (lambda x, limit: scalar.tanh(x, x), "tanh takes 1 arguments, not 2"),
        (lambda x, limit: x if x > 0 else -x, "the value of a Scalar is not known here"),
        (lambda x, limit: x.sum(), r"\.sum\(\) needs register_lowering\(..., over=dimensions\)"),
        (lambda x, limit: -(x > 0), "neg of torch.bool: convert it with"),
        (lambda x, limit: (x, x), "2 results, not 1"),
        (lambda x, limit: None, "a result is a Scalar or a number, not None"),
    ],
)
def test_wrong_lowering_leaves_the_call_to_the_kernel_with_a_warning(
    formula: Any, words: str
) -> None:
    message, *_ = left_to_the_kernel(extend.register_lowering(ops.cap, formula), words)
    assert "the lowering of jitmagic_extend.cap.default" in message
    assert "test_lowerings.py" in message


def test_result_may_not_read_single_elements_along_combined_dimensions() -> None:
    fast = jitmagic.jit(lambda x: ops.length(x, [1]))
    with (
        extend.register_lowering(ops.length, lambda x, dims, keepdim: x, over="dims"),
        pytest.warns(jitmagic.FallbackWarning, match="reads single elements along the dimensions"),
    ):
        torch.testing.assert_close(fast(X), reduced(X, [1]))


# -- scalar operations -----------------------------------------------------------------------------

HARD = {
    "cpp": "minimum(maximum({0}, -1), 1) * {0}",
    "triton": "tl.minimum(tl.maximum({0}, -1.0), 1.0) * {0}",
    "numba": "min(max({0}, {t}(-1)), {t}(1)) * {0}",
}


def hard(x: Tensor) -> Tensor:
    return x.clamp(-1, 1) * x


@pytest.mark.parametrize("tier", ["cpp", "numba"])
def test_registered_scalar_operation_is_part_of_kernels(tier: str) -> None:
    def program(x: Tensor) -> Tensor:
        return ops.cap(x.sin() * 3, 2.0).cos()  # type: ignore[no-any-return]

    def formula(x: Any, limit: float) -> Any:
        return scalar.hard_square(x) + limit

    with (
        extend.register_scalar("hard_square", hard, **HARD),  # type: ignore[arg-type]
        extend.register_lowering(ops.cap, formula),
    ):
        fast = jitmagic.jit(program, fullgraph=True, options={"cpu_tier": tier})
        for x in (X, X.double()):
            fast(x)
            calls.clear()
            torch.testing.assert_close(fast(x), (hard(x.sin() * 3) + 2).cos())
            assert not calls


def test_scalar_operation_without_a_text_leaves_the_kernel_to_the_next_tier() -> None:
    @extend.register_scalar("hard_square", numba=HARD["numba"])
    def reference(x: Tensor) -> Tensor:
        return hard(x)

    extend.register_lowering(ops.cap, lambda x, limit: scalar.hard_square(x))
    fast = jitmagic.jit(lambda x: ops.cap(x, 2.0) + 1)
    compiler = pytest.warns(jitmagic.FallbackWarning, match="no cpp for the scalar operation")
    interpreter = pytest.warns(jitmagic.FallbackWarning, match="the blocks code generator failed")
    with compiler, interpreter:
        torch.testing.assert_close(fast(X), hard(X) + 1)


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"name": "exp"}, "there is a scalar operation 'exp' already"),
        ({"cpp": "{3}"}, "cpp of 'hard_square'"),
        ({"cuda": "{0}"}, "no argument 'cuda'"),
        ({"name": "a b"}, "is an identifier"),
    ],
)
def test_wrong_scalar_operation_is_explained(facts: Any, words: str) -> None:
    facts = {"name": "hard_square", **facts}
    with pytest.raises(ValueError, match=words):
        extend.register_scalar(facts.pop("name"), hard, **facts)
