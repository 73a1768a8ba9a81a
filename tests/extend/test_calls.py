"""register_call: replacements, nodes, constants; functions marked for torch.compiler; errors."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jitmagic
from jitmagic import extend
from tests.processes import run_forked
from tests.programs.counts import Counts, counts_of

X = torch.randn(4, 8)


def opened(value: Any) -> Any:
    """Return the value after a call that no graph can hold."""
    with open("/dev/null"):
        return value


def tripled(x: Tensor) -> Tensor:
    return opened(x * 3)


def count(step: int = 2) -> int:
    return opened(step + 1)


def scores(x: Tensor, by: int = 1, *, parts: dict[str, Tensor]) -> tuple[Tensor, list[Tensor]]:
    return opened((x.sin() * by, [parts["a"] + x]))


class Scaled(nn.Module):
    def factor(self, times: int) -> int:
        return opened(times)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor(2)


@pytest.mark.parametrize("backend", ["native", "aot_eager", "eager"])
def test_node_has_the_results_and_gradients_of_the_function(backend: str) -> None:
    def program(x: Tensor) -> Tensor:
        made, (added,) = scores(x * 2, 3, parts={"a": x})
        return (made * added).sum()

    x, y = (X.clone().requires_grad_() for _ in range(2))
    extend.allow_in_graph(scores)
    fast = jitmagic.jit(program, backend=backend)
    program(x).backward()
    result = fast(y)
    result.backward()
    torch.testing.assert_close(result, program(x))
    torch.testing.assert_close(y.grad, x.grad)
    counts = counts_of(fast)
    assert (counts.graphs, counts.breaks) == (1, 0)


def test_node_draws_random_numbers_at_each_call() -> None:
    @extend.nonstrict_trace
    def noise(x: Tensor) -> Tensor:
        return opened(x + torch.rand(8))

    def program(x: Tensor) -> Tensor:
        return noise(x) * 2

    fast = jitmagic.jit(program)
    for seed in (0, 1):
        torch.manual_seed(seed)
        want = program(X)
        torch.manual_seed(seed)
        torch.testing.assert_close(fast(X), want)


def writes(x: Tensor) -> Tensor:
    return x.add_(1)


def of_module(module: nn.Module) -> Tensor:
    return torch.ones(3)


def by_data(x: Tensor) -> Tensor:
    return x * 2 if x.sum() > 0 else x


@pytest.mark.parametrize(
    ("function", "argument"), [(writes, X), (of_module, nn.Linear(2, 2)), (by_data, X)]
)
def test_call_that_cannot_be_a_node_runs_as_eager(
    function: Callable[[Any], Tensor], argument: Any
) -> None:
    def program(x: Any) -> Tensor:
        return function(x.clone() if isinstance(x, Tensor) else x) + 1

    extend.register_call(function, as_node=True)
    fast = jitmagic.jit(program)
    torch.testing.assert_close(fast(argument), program(argument))
    assert counts_of(fast).breaks


def test_constant_is_computed_once() -> None:
    calls: list[int] = []

    @extend.assume_constant_result
    def setting(step: int) -> int:
        calls.append(step)
        return opened(step + 1)

    fast = jitmagic.jit(lambda x: x * setting(2))
    for _ in range(3):
        torch.testing.assert_close(fast(X), X * 3)
    assert calls == [2]
    assert counts_of(fast) == Counts(1, 0, 1)


def test_replacement_of_a_function_written_in_c() -> None:
    @extend.substitute_in_graph(zlib.crc32)
    def crc32(data: bytes, value: int = 0, /) -> int:
        return len(data) + value

    fast = jitmagic.jit(lambda x: x * zlib.crc32(b"abc"))
    torch.testing.assert_close(fast(X), X * 3)
    assert counts_of(fast) == Counts(1, 0, 1)


def test_replacement_of_a_method_reads_its_globals_with_guards() -> None:
    model = Scaled()
    with extend.register_call(Scaled.factor, replacement=factor_of_globals):
        fast = jitmagic.jit(model)
        torch.testing.assert_close(fast(X), X * 2 * FACTOR["by"])
        FACTOR["by"] = 5
        torch.testing.assert_close(fast(X), X * 10)
    torch.testing.assert_close(fast(X), X * 2)  # removed: compiled again


FACTOR = {"by": 3}


def factor_of_globals(self: Scaled, times: int) -> int:
    return times * FACTOR["by"]


def test_registering_compiles_again() -> None:
    fast = jitmagic.jit(lambda x: tripled(x) + 1)
    fast(X)
    assert counts_of(fast).breaks
    extend.allow_in_graph(tripled)
    torch.testing.assert_close(fast(X), X * 3 + 1)
    assert counts_of(fast) == Counts(1, 0, 1)


MARKED = """
import zlib, torch, jitmagic
from tests.extend.test_calls import X, count, scores, tripled
from tests.programs.counts import Counts, counts_of

allowed = torch.compiler.allow_in_graph(tripled)
constant = torch.compiler.assume_constant_result(count)
nonstrict = torch._dynamo.nonstrict_trace(scores)

@torch.compiler.substitute_in_graph(zlib.adler32, skip_signature_check=True)
def adler32(data, value=1):
    return 7

for program, want in (
    (lambda x: allowed(x) + 1, X * 3 + 1),
    (lambda x: x * constant(), X * 3),
    (lambda x: nonstrict(x, parts={"a": x})[1][0] * 2, X * 4),
    (lambda x: x * zlib.adler32(b""), X * 7),
):
    fast = jitmagic.jit(program)
    torch.testing.assert_close(fast(X), want)
    assert counts_of(fast) == Counts(1, 0, 1), counts_of(fast)
print("all")
"""


def test_functions_marked_for_torch_compiler_are_known() -> None:
    done = run_forked(MARKED)
    assert done.stdout == "all\n", done.stderr


SAME_NAME = """
import torch, jitmagic

def made(n):
    def shifted(x):
        return x + n
    torch.compiler.substitute_in_graph(shifted)(lambda x: x + 100 * n)
    return shifted

one, two = made(1), made(2)
run = {"keep": "compiled"}
programs = [lambda x: one(x), lambda x: two(x), lambda x: one(x) * two(x)]
fast = [jitmagic.jit(program, options=run) for program in programs]
for _ in range(3):
    print([each(torch.zeros(())).item() for each in fast])
"""


def test_functions_of_one_name_have_their_own_replacements() -> None:
    """Closures of one function have the same qualified name."""
    done = run_forked(SAME_NAME)
    assert done.stdout.splitlines() == ["[100.0, 200.0, 20000.0]"] * 3, done.stderr


@pytest.mark.parametrize(
    ("function", "ways", "message"),
    [
        (3, {"as_node": True}, "takes a function, not 3"),
        (Scaled, {"as_node": True}, "takes a function, not <class"),
        (count, {}, "one of replacement="),
        (count, {"as_node": True, "as_constant": True}, "one of replacement="),
        (count, {"replacement": zlib.crc32}, "a Python function, not <built-in"),
        (count, {"replacement": by_data}, "give it the same parameters"),
    ],
)
def test_bad_registrations(function: Any, ways: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        extend.register_call(function, **ways)


def test_function_can_be_registered_once() -> None:
    registration = extend.register_call(tripled, as_node=True)
    with pytest.raises(ValueError, match=r"there is a function '.*tripled' already"):
        extend.register_call(tripled, as_constant=True)
    extend.unregister(registration.name)
    extend.register_call(tripled, as_constant=True).remove()
