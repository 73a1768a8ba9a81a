"""register_operator and register_decomposition: operators of torch.library; scope and names."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import jitmagic
from jitmagic import extend
from jitmagic.extend import scalar

from .operators_defined import (
    X,
    calls,
    cap,
    check,
    define,
    left_to_the_kernel,
    like,
    ops,
    taught,
)  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_called() -> None:
    calls.clear()


# -- facts -----------------------------------------------------------------------------------------


def test_shape_rule_stands_for_a_fake_kernel() -> None:
    def program(x: Tensor) -> Tensor:
        return ops.bare(x.sin(), 2.0) + 1  # type: ignore[no-any-return]

    with pytest.raises(jitmagic.Unsupported, match="it has no fake kernel"):
        jitmagic.jit(program, fullgraph=True)(X)
    with extend.register_operator(ops.bare.default, shape=like):
        check(program, X, runs=("bare",))
        fast = jitmagic.jit(program, fullgraph=True, dynamic=True)
        for rows in (2, 3, 4):
            torch.testing.assert_close(fast(X[:rows]), program(X[:rows]))


def test_shape_rule_may_depend_on_data() -> None:
    define("positives(Tensor x) -> Tensor", lambda x: x[x > 0].clone())

    def shape(x: Tensor) -> Tensor:
        return x.new_empty(torch.library.get_ctx().new_dynamic_size())

    with extend.register_operator(ops.positives, shape=shape):
        check(lambda x: ops.positives(x.sin()) * 2, X, runs=("positives",))


def test_undeclared_write_is_seen_by_later_reads() -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2
        before = y.sin()
        total = ops.bump(y)
        return before + y, total

    def writes_an_input(x: Tensor) -> Tensor:
        ops.bump(x)
        return x * 1

    with extend.register_operator(ops.bump, writes=("x",)):
        check(program, X, runs=("bump",))
        given, fast = X.clone(), jitmagic.jit(writes_an_input, fullgraph=True)
        torch.testing.assert_close(fast(given), X + 1)
        torch.testing.assert_close(given, X + 1)


def test_unused_call_of_a_pure_operator_is_left_out_and_equal_calls_run_once() -> None:
    def program(x: Tensor) -> Tensor:
        ops.cap(x, 3.0)
        return ops.cap(x, 2.0) + ops.cap(x, 2.0)  # type: ignore[no-any-return]

    expected = program(X)
    for pure, runs in ((False, ["cap"] * 3), (True, ["cap"])):
        with extend.register_operator(ops.cap, pure=pure):
            fast = jitmagic.jit(program)
            fast(X)
            calls.clear()
            torch.testing.assert_close(fast(X), expected)
            assert calls == runs


def test_unused_call_that_may_raise_runs() -> None:
    def program(x: Tensor) -> Tensor:
        ops.cap(x, 3.0)
        return x + 1

    with extend.register_operator(ops.cap, pure=True, raises=True):
        check(program, X, runs=("cap",))


def test_facts_of_an_aten_operator_are_added_to_its_row() -> None:
    def program(x: Tensor) -> Tensor:
        torch.ops.aten.index_select.default(x, 0, torch.tensor([9]))
        return x + 1

    with extend.register_operator(torch.ops.aten.index_select.default, cost=lambda *args: 1):
        fast = jitmagic.jit(program)
        with pytest.raises(IndexError):
            fast(X)


@pytest.mark.parametrize(("operations", "is_repeated"), [(1, True), (10**6, False)])
def test_cheap_operator_is_computed_again_in_a_backward(operations: int, is_repeated: bool) -> None:
    def cost(x: Tensor) -> float:
        return operations * x.numel()

    with (
        extend.register_operator(taught, cost=cost),
        extend.register_lowering(taught, lambda x: scalar.tanh(x) * x),
    ):
        seen: list[str] = []
        with extend.register_pass("backward", lambda gm, context: seen.append(gm.code), name="see"):
            program = jitmagic.jit(lambda x: taught(x) * x.sin(), fullgraph=True)
            program(X.clone().requires_grad_()).sum().backward()
    assert ["taught.default(" in code for code in seen] == [is_repeated]


def test_wrong_shape_rule_is_a_graph_break_that_names_it() -> None:
    def shape(x: Tensor, limit: float) -> Tensor:
        raise LookupError("no such table")

    with extend.register_operator(ops.cap, shape=shape):
        with pytest.raises(jitmagic.Unsupported) as caught:
            jitmagic.jit(lambda x: ops.cap(x, 2.0), fullgraph=True)(X)
        torch.testing.assert_close(jitmagic.jit(lambda x: ops.cap(x, 2.0))(X), ops.cap(X, 2.0))
    words = "the shape rule of jitmagic_extend.cap.default raised LookupError: no such table"
    assert words in str(caught.value)
    assert 'raise LookupError("no such table")' in str(caught.value)


# -- decompositions --------------------------------------------------------------------------------


def test_decomposition_replaces_the_kernel_and_keeps_the_registered_gradient() -> None:
    def program(x: Tensor) -> Tensor:
        return taught(x.sin()).cos()  # type: ignore[no-any-return]

    with extend.register_decomposition(taught, lambda x: torch.tanh(x) * x):
        check(program, X)
        x, y = X.clone().requires_grad_(), X.clone().requires_grad_()
        calls.clear()
        jitmagic.jit(program, fullgraph=True)(x).sum().backward()
        assert not calls
        program(y).sum().backward()
    torch.testing.assert_close(x.grad, y.grad)


def test_decomposition_gives_the_layout_of_the_operator_and_memory_of_its_own() -> None:
    @extend.register_decomposition(ops.cap)
    def same(x: Tensor, limit: float) -> Tensor:
        return x  # the operator never returns its argument

    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        y = ops.cap(x, 2.0)
        y.add_(1)
        return x, y

    x = X.t()
    kept, made = jitmagic.jit(program, fullgraph=True)(x)
    torch.testing.assert_close(made, x + 1)
    assert kept is x
    assert made.stride() == torch.empty_like(x).stride()


def test_decomposition_may_call_the_operator_and_composites() -> None:
    @extend.register_decomposition(ops.cap.default)
    def cap(x: Tensor, limit: float) -> Tensor:
        return F.silu(F.layer_norm(ops.cap(x, 2 * limit), (6,)))

    def program(x: Tensor) -> Tensor:
        return F.silu(F.layer_norm(ops.cap(x, 4.0), (6,))) * 2

    calls.clear()
    fast = jitmagic.jit(lambda x: ops.cap(x, 2.0) * 2, fullgraph=True)
    torch.testing.assert_close(fast(X), program(X))


def test_decomposition_of_an_aten_operator() -> None:
    with extend.register_decomposition(torch.ops.aten.erf, torch.tanh):
        fast = jitmagic.jit(lambda x: torch.erf(x) + 1)
        torch.testing.assert_close(fast(X), X.tanh() + 1)
    torch.testing.assert_close(fast(X), X.erf() + 1)


@pytest.mark.parametrize(
    ("decomposition", "words"),
    [
        (lambda x, limit: x.sum(), r"its result is \(\(\), torch.float32\), the operator's"),
        (lambda x, limit: x.missing(), "raised AttributeError"),
        (lambda x, limit: x.tolist(), "the decomposition of jitmagic_extend.cap.default"),
    ],
)
def test_wrong_decomposition_leaves_the_call_to_the_kernel_with_a_warning(
    decomposition: Any, words: str
) -> None:
    messages = left_to_the_kernel(extend.register_decomposition(ops.cap, decomposition), words)
    assert any("test_operators.py" in message for message in messages)


def test_decomposition_may_not_write_to_its_arguments() -> None:
    with (
        extend.register_decomposition(ops.cap, lambda x, limit: x.mul_(2)),
        pytest.raises(jitmagic.JitmagicError, match="writes to an argument"),
    ):
        jitmagic.jit(lambda x: ops.cap(x, 2.0), fullgraph=True)(X)


def test_decomposition_may_leave_a_call_to_the_kernel() -> None:
    def only_small(x: Tensor, limit: float) -> Tensor:
        if limit > 1:
            raise NotImplementedError
        return limit * torch.tanh(x / limit)

    with extend.register_decomposition(ops.cap, only_small):
        check(lambda x: ops.cap(x, 2.0) + ops.cap(x, 0.5), X, runs=("cap",))


# -- scope and names -------------------------------------------------------------------------------


def test_compiled_functions_follow_each_change() -> None:
    fast = jitmagic.jit(lambda x: ops.cap(x, 2.0) + 1, fullgraph=True)
    seen = []
    for scope in (None, extend.register_lowering(ops.cap, cap), None):
        for _ in range(2):
            calls.clear()
            fast(X)
        seen.append(list(calls))
        if scope is not None:
            scope.remove()
    extend.register_lowering(ops.cap, cap)
    fast(X)
    extend.unregister("jitmagic_extend.cap.default")
    calls.clear()
    fast(X)
    assert calls == ["cap"]


@pytest.mark.parametrize(
    "register",
    [
        lambda: extend.register_operator(ops.cap, shape=like),
        lambda: extend.register_decomposition(ops.cap, cap),
        lambda: extend.register_lowering(ops.cap.default, cap),
    ],
)
def test_second_registration_of_an_operator_is_refused(register: Any) -> None:
    with register(), pytest.raises(ValueError, match="'jitmagic_extend.cap.default' already"):
        register()
    register().remove()


@pytest.mark.parametrize(
    ("register", "words"),
    [
        (lambda: extend.register_operator(torch.relu), "an operator is an overload like"),
        (lambda: extend.register_operator(torch.ops.aten.add), "aten.add.Tensor"),
        (lambda: extend.register_operator(ops.cap, writes=("z",)), "no argument of .* 'z'"),
        (lambda: extend.register_operator(ops.cap, shape=3), "shape is a function"),
        (lambda: extend.register_lowering(ops.cap, 3), "a formula is a function"),
        (
            lambda: extend.register_lowering(torch.ops.aten.rand_like.default, cap),
            "draws random numbers",
        ),
        (lambda: extend.register_decomposition(torch.ops.aten.add_.Tensor, cap), "writes to its"),
        (lambda: extend.register_lowering(ops.cap, cap, over="d"), "no argument of .* 'd'"),
    ],
)
def test_wrong_arguments_are_explained(register: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        register()
