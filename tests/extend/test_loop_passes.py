"""register_pass("loops"): edits of loops reach kernels; wrong ones are errors with their name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import jitmagic
from jitmagic import extend
from jitmagic.extend import PassContext, PassFailed
from jitmagic.loops import ir
from tests.programs.counts import counts_of

aten = torch.ops.aten
X = torch.randn(4, 8)


def scaled(x: Tensor) -> Tensor:
    return torch.exp(x / 4).sum(-1)


def doubled(x: Tensor) -> Tensor:
    return torch.exp(x / 2).sum(-1)


def halves(value: ir.Value) -> ir.Value:
    """Divide by half of each constant divisor."""
    match value:
        case ir.Compute("truediv", (a, ir.Constant(divisor, dtype))):
            return ir.Compute("truediv", (a, ir.Constant(divisor / 2, dtype)), dtype)
    return value


def halve_divisors(program: ir.LoopProgram, context: PassContext) -> ir.LoopProgram:
    return extend.rewrite_values(program, halves)


def gradient(fn: Callable[..., Tensor], x: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    (made,) = torch.autograd.grad(fn(x).sum(), x)
    return made


@pytest.mark.parametrize("tier", ["cpp", "numba"])
def test_pass_changes_values_and_gradients_within_its_scope(tier: str) -> None:
    fast = jitmagic.jit(scaled, options={"cpu_tier": tier})
    torch.testing.assert_close(fast(X), scaled(X))
    with extend.register_pass("loops", halve_divisors):
        torch.testing.assert_close(fast(X), doubled(X))
        torch.testing.assert_close(gradient(fast, X), gradient(doubled, X))
    torch.testing.assert_close(fast(X), scaled(X))


def test_pass_applies_to_kernels_for_all_sizes() -> None:
    fast = jitmagic.jit(scaled, dynamic=True)
    with extend.register_pass("loops", halve_divisors):
        for n in (3, 5, 9):
            x = torch.randn(n, 8)
            torch.testing.assert_close(fast(x), doubled(x))
            torch.testing.assert_close(gradient(fast, x), gradient(doubled, x))
        assert len(jitmagic.api.handle_of(fast).dispatcher.entries) == 2  # with and without grad


def test_pass_that_reads_a_dynamic_size_as_an_int_fixes_it() -> None:
    def reads(program: ir.LoopProgram, context: PassContext) -> None:
        seen.extend(range(program.buffers[program.inputs[0]].shape[0]))

    seen: list[int] = []
    fast = jitmagic.jit(scaled, dynamic=True)
    with extend.register_pass("loops", reads):
        for n in (3, 5):
            x = torch.randn(n, 8)
            torch.testing.assert_close(fast(x), scaled(x))
    assert len(seen) >= 8


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("training", [None, False, True])
def test_pass_sees_the_programs_that_it_is_for(dynamic: bool, training: bool | None) -> None:
    def see(program: ir.LoopProgram, context: PassContext) -> None:
        seen.append((program.name, context.training, context.function))

    seen: list[tuple[str, bool, str]] = []
    fast = jitmagic.jit(scaled, dynamic=dynamic)
    with extend.register_pass("loops", see, training=training):
        fast(X)
        gradient(fast, X)
    names = [("forward", False), ("forward", True), ("backward", True)]
    wanted = [(*one, "scaled") for one in names if training in (None, one[1])]
    assert seen == wanted


def test_pass_replaces_a_nest_by_a_call_and_drops_another() -> None:
    """`y` becomes a call of aten.neg, and the nest that made it goes."""

    def negate(program: ir.LoopProgram, context: PassContext) -> ir.LoopProgram:
        first, *others = program.steps
        assert isinstance(first, ir.Nest)
        (store,) = first.stores
        call = ir.Extern(
            "negated", aten.neg.default, (ir.BufferRef("x"),), {}, (store.buffer,), reason="a pass"
        )
        return replace(program, steps=(call, *others))

    fast = jitmagic.jit(lambda x: x.sin() @ x.T)
    with extend.register_pass("loops", negate):
        torch.testing.assert_close(fast(X), -X @ X.T)


def test_passes_see_the_result_of_earlier_ones() -> None:
    def look(program: ir.LoopProgram, context: PassContext) -> None:
        values = ir.walk(ir.store_values(program.steps[0].stores))  # type: ignore[attr-defined]
        divisors.extend(v.value for v in values if isinstance(v, ir.Constant))

    divisors: list[float] = []
    with extend.register_pass("loops", halve_divisors), extend.register_pass("loops", look):
        jitmagic.jit(scaled)(X)
    assert divisors == [2.0]


# -- wrong passes ----------------------------------------------------------------------------------


def returns_a_list(program: ir.LoopProgram, context: PassContext) -> Any:
    return [program]


def raises(program: ir.LoopProgram, context: PassContext) -> None:
    raise LookupError("no such table")


def stores_another_dtype(program: ir.LoopProgram, context: PassContext) -> ir.LoopProgram:
    def change(value: ir.Value) -> ir.Value:
        is_exp = isinstance(value, ir.Compute) and value.op == "exp"
        return ir.Cast(value, torch.float64) if is_exp else value

    return extend.rewrite_values(program, change)


def drops_a_step(program: ir.LoopProgram, context: PassContext) -> ir.LoopProgram:
    return replace(program, steps=program.steps[1:])


def drops_an_output(program: ir.LoopProgram, context: PassContext) -> ir.LoopProgram:
    return replace(program, outputs=())


def returns_an_input(program: ir.LoopProgram, context: PassContext) -> ir.LoopProgram:
    return replace(program, outputs=program.inputs)


def returns_one_result_twice(program: ir.LoopProgram, context: PassContext) -> ir.LoopProgram:
    return replace(program, outputs=program.outputs[:1] * len(program.outputs))


def writes_to_an_input(program: ir.LoopProgram, context: PassContext) -> ir.LoopProgram:
    first = program.steps[0]
    assert isinstance(first, ir.Nest)
    write = replace(first, name="written", stores=(replace(first.stores[0], buffer="x"),))
    return replace(program, steps=(*program.steps, write))


WRONG: dict[Callable[..., Any], str] = {
    returns_a_list: "made wrong loops: it returned a list, not a LoopProgram or None",
    raises: "raised LookupError: no such table",
    stores_another_dtype: "made wrong loops: forward, step exp: a torch.float64 stored as",
    drops_a_step: "made wrong loops: forward, step exp: div is read before",
    drops_an_output: "they change the name, the inputs or the number of outputs",
    returns_an_input: "they change the shape, strides, dtype or device of sum_1",
    writes_to_an_input: "they write to other inputs: x instead of none",
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("wrong", WRONG, ids=lambda one: one.__name__)
def test_wrong_pass_is_an_error_that_names_it(wrong: Any, dynamic: bool) -> None:
    fast = jitmagic.jit(scaled, dynamic=dynamic)
    with (
        extend.register_pass("loops", wrong),
        pytest.raises(PassFailed, match=WRONG[wrong]) as caught,
    ):
        fast(X)
    assert f"the pass '{wrong.__name__}' on the loops" in str(caught.value)
    torch.testing.assert_close(fast(X), scaled(X))


def test_pass_may_not_make_results_share_memory() -> None:
    with (
        extend.register_pass("loops", returns_one_result_twice),
        pytest.raises(PassFailed, match="which inputs and outputs share memory"),
    ):
        jitmagic.jit(lambda x: (x + 1, x + 2))(X)


@pytest.mark.parametrize("dynamic", [False, True])
def test_wrong_pass_on_a_backward_is_an_error_of_its_first_use(dynamic: bool) -> None:
    def only_backward(program: ir.LoopProgram, context: PassContext) -> Any:
        return None if program.name == "forward" else raises(program, context)

    fast, x = jitmagic.jit(scaled, dynamic=dynamic), X.clone().requires_grad_()
    with extend.register_pass("loops", only_backward):
        made = fast(x)
        with pytest.raises(PassFailed, match="'only_backward' on the loops raised LookupError"):
            made.sum().backward()


def test_backends_without_loops_run_no_such_pass() -> None:
    fast = jitmagic.jit(scaled, backend="aot_eager")
    with extend.register_pass("loops", raises):
        torch.testing.assert_close(fast(X), scaled(X))
    assert counts_of(fast).breaks == 0
