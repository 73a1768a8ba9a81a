"""register_backend: jit(backend=name), errors for unknown and for taken names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx import GraphModule

import jitmagic
from jitmagic import extend

X = torch.randn(4, 8)


def squares(x: Tensor) -> Tensor:
    return (x * x).sum()


def counting(calls: list[int]) -> Callable[..., Any]:
    def compile_fn(gm: GraphModule, example_inputs: Sequence[Tensor]) -> Callable[..., Any]:
        calls.append(len(example_inputs))
        return gm.forward

    return compile_fn


def test_registered_backend_compiles_the_captured_graph() -> None:
    calls: list[int] = []
    with extend.register_backend("counting", counting(calls)):
        fast = jitmagic.jit(squares, backend="counting")
    x = X.clone().requires_grad_()
    fast(x).backward()  # it keeps its backend
    torch.testing.assert_close(x.grad, 2 * X)
    assert calls == [1]


def test_decorator_registers_and_returns_the_function() -> None:
    @extend.register_backend("plain")
    def plain(gm: GraphModule, example_inputs: Sequence[Tensor]) -> Callable[..., Any]:
        return gm.forward

    assert plain.__name__ == "plain"
    assert jitmagic.Options(backend="plain").backend is plain


def test_unknown_backend_is_an_error_that_lists_the_known_ones() -> None:
    extend.register_backend("counting", counting([]))
    message = r"unknown backend 'countin' \(did you mean 'counting'\?\); known: native, .*counting"
    with pytest.raises(jitmagic.OptionError, match=message):
        jitmagic.jit(squares, backend="countin")


@pytest.mark.parametrize("name", ["native", "eager", "counting"])
def test_backend_of_a_taken_name_is_refused(name: str) -> None:
    extend.register_backend("counting", counting([]))
    with pytest.raises(ValueError, match=f"there is a backend '{name}' already"):
        extend.register_backend(name, counting([]))


def test_removed_backend_is_unknown() -> None:
    extend.register_backend("counting", counting([])).remove()
    with pytest.raises(jitmagic.OptionError, match="unknown backend 'counting'"):
        jitmagic.jit(squares, backend="counting")


def test_backend_that_is_registered_with_torch_compile_is_known() -> None:
    from torch._dynamo.backends.registry import _BACKENDS, _COMPILER_FNS, register_backend

    calls: list[int] = []
    register_backend(name="of_torch")(counting(calls))
    try:
        torch.testing.assert_close(jitmagic.jit(squares, backend="of_torch")(X), squares(X))
        assert calls == [1]
        with pytest.raises(jitmagic.OptionError, match=r"known: .*of_torch"):
            jitmagic.Options(backend="cudagraphs")  # torch's own compile by other means
    finally:
        for table in (_BACKENDS, _COMPILER_FNS):
            table.pop("of_torch", None)


def test_captured_passes_run_before_a_backend() -> None:
    seen: list[str] = []

    def compile_fn(gm: GraphModule, example_inputs: Sequence[Tensor]) -> Callable[..., Any]:
        seen.extend(node.name for node in gm.graph.nodes)
        return gm.forward

    def to_square(gm: GraphModule, context: extend.PassContext) -> None:
        (node,) = [node for node in gm.graph.nodes if node.name == "mul"]
        with gm.graph.inserting_after(node):
            made = gm.graph.call_method("square", (node.args[0],))
        node.replace_all_uses_with(made)

    with extend.register_backend("b", compile_fn), extend.register_pass("captured", to_square):
        torch.testing.assert_close(jitmagic.jit(squares, backend="b")(X), squares(X))
    assert seen == ["x", "square", "sum_1", "output"]
