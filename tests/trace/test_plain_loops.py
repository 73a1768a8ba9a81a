"""Loops that are plain Python: they run in the residual as a whole, and no round is dispatched.

The programs are called with many rounds, then with few, and compared with eager's results; what
Python runs on other interpreters is tested with `forcing.leave_loops`.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch

import jitmagic
from jitmagic.api import handle_of
from jitmagic.trace.result import Break, Trace

MANY = 5000
Program = Callable[..., Any]


def ends_of(fn: Any) -> list[str]:
    """How each trace of a tagged function ended, in order."""
    stages = [stage for record in handle_of(fn).journal for stage in record.stages]
    traces = [stage.result for stage in stages if isinstance(stage.result, Trace)]
    return [t.exit.reason.kind if isinstance(t.exit, Break) else "return" for t in traces]


def dispatched(fn: Any) -> int:
    """Calls of its resume functions and callees."""
    return sum(member.dispatcher.calls for member in handle_of(fn).family.members)


def between_operations(x: torch.Tensor, n: int) -> Any:
    y, k = x * 2, 0
    for i in range(n):
        k += i % 7
    return y + k


def bound_in_the_loop(x: torch.Tensor, n: int) -> Any:
    for i in range(n):
        last = i * 2
    return x + last


def left_by_break(x: torch.Tensor, n: int) -> Any:
    k = 0
    for i in range(n):
        k += i
        if k > 100000:
            break
    else:
        k = -1
    return x * k


def left_by_return(x: torch.Tensor, n: int) -> Any:
    for i in range(n):
        if i == MANY - 5:
            return x * i
    return x - 1


def left_by_exception(x: torch.Tensor, n: int) -> Any:
    try:
        for i in range(n):
            if i == 4000:
                raise ValueError(i)
    except ValueError as error:
        x = x * error.args[0]
    return x + 1


def in_a_block(x: torch.Tensor, n: int) -> Any:
    with torch.no_grad():
        k = 0
        for i in range(n):
            with contextlib.nullcontext():
                k += i % 3
        y = x * k
    return y, y.requires_grad


def with_handlers(x: torch.Tensor, n: int) -> Any:
    counts: dict[int, int] = {}
    for i in range(n):
        try:
            counts[i % 7] += 1
        except KeyError:
            counts[i % 7] = 1
    return x * len(counts), counts


def of_while(x: torch.Tensor, n: int) -> Any:
    k = 0
    while k < n:
        k += 1
        if k % 2:
            continue
        k += 1
    return x + k


def nested(x: torch.Tensor, n: int) -> Any:
    k = 0
    for i in range(n // 50):
        for j in range(50):
            k += i ^ j
    return x + k


def in_a_loop_of_operations(x: torch.Tensor, n: int) -> Any:
    for _ in range(3):
        k = 0
        x = x * 2
        for i in range(n):
            k += i % 3
        x = x + k
    return x


def over_a_generator(x: torch.Tensor, n: int) -> Any:
    def numbers() -> Iterator[int]:
        for i in range(n):
            yield i * 3

    k = 0
    for number in numbers():
        k += number
    return x + k


def over_pairs(x: torch.Tensor, n: int) -> Any:
    k, items = 0, list(range(n))
    for i, (a, b) in enumerate(zip(items, reversed(items), strict=True)):
        k += i * (a - b)
    return x + k


def over_text(x: torch.Tensor, n: int) -> Any:
    k = 0
    for letter in "abcab" * (n // 5):
        k += letter == "a"
    return x + k


def on_a_cell(x: torch.Tensor, n: int) -> Any:
    k = 0

    def add(number: int) -> None:
        nonlocal k
        k += number

    for i in range(n):
        add(i % 3)
    return x + k


def in_a_comprehension(x: torch.Tensor, n: int) -> Any:
    return x + sum([i % 7 for i in range(n)])


def count(n: int) -> int:
    k = 0
    for i in range(n):
        k += i % 5
    return k


def in_a_callee(x: torch.Tensor, n: int) -> Any:
    return x + count(n)


def of_two(x: torch.Tensor, n: int) -> Any:
    a = b = 0
    for i in range(n):
        a += i
    y = x * a
    for i in range(n):
        b += i % 2
    return y + b


PROGRAMS: list[Program] = [
    *(between_operations, bound_in_the_loop, left_by_break, left_by_return, left_by_exception),
    *(in_a_block, with_handlers, of_while, nested, in_a_loop_of_operations, over_a_generator),
    *(over_pairs, over_text, on_a_cell, in_a_comprehension, in_a_callee, of_two),
]


def outcome(fn: Program, *args: Any) -> Any:
    try:
        return fn(*args)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def check(got: Any, wanted: Any) -> None:
    if isinstance(wanted, str):
        assert got == wanted
    else:
        torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda fn: fn.__name__)
def test_a_long_loop_without_tensor_work_is_one_break(program: Program) -> None:
    x, fn = torch.linspace(-1, 1, 8), jitmagic.jit(program)
    for n in (MANY, MANY, 0, 1, MANY + 50):
        check(outcome(fn, x, n), outcome(program, x, n))
    ends = ends_of(fn)
    # The first call and the one of another length; few rounds are unrolled, and may be variants.
    assert len(ends) <= 12, ends
    assert "TooManyInstructions" not in ends
    assert dispatched(fn) <= 40, "rounds are dispatched"


def recursive(n: int) -> int:
    return n if n < 2 else recursive(n - 1) + recursive(n - 2)


def test_a_recursion_without_tensor_work_is_not_inlined() -> None:
    fn = jitmagic.jit(lambda x: x + recursive(20))
    x = torch.zeros(2)
    for _ in range(3):
        assert fn(x).tolist() == [6765.0] * 2
    assert ends_of(fn) == ["PlainFunction", "return"]
    assert dispatched(fn) <= 5, "its calls are dispatched"


def test_arithmetic_on_numbers_that_vary_is_no_tensor_work() -> None:
    def program(x: torch.Tensor, s: float) -> torch.Tensor:
        for i in range(1000):
            s = s * 0.5 + i
        return x + s

    fn = jitmagic.jit(program)
    x = torch.zeros(2, dtype=torch.float64)
    for s in (1.0, 2.0, 3.0):
        assert torch.equal(fn(x, s), program(x, s))
    assert ends_of(fn) == ["return", "PlainLoop", "return"]


def words_counted(x: torch.Tensor, words: list[str]) -> Any:
    counts: dict[str, int] = {}
    for word in words:
        counts[word] = counts.get(word, 0) + 1
    return x * len(counts), counts


def numbers_summed(x: torch.Tensor, numbers: list[int]) -> Any:
    k = 0
    for number in numbers:
        k += number * number
    return x * k


def rounds_counted(x: torch.Tensor, n: int) -> Any:
    k = 0
    while n > 0:
        n -= 1
        k += 2
    return x + k


@pytest.mark.parametrize(
    ("program", "draw", "variants"),
    [
        (words_counted, lambda r: r.choices("abcdefghij", k=r.randrange(5, 9)), 3),
        (numbers_summed, lambda r: r.choices(range(9), k=6), 3),
        (rounds_counted, lambda r: r.randrange(1, 30), 2),
    ],
    ids=lambda given: getattr(given, "__name__", ""),
)
def test_a_loop_over_other_values_in_each_call_is_python(
    program: Program, draw: Callable[[random.Random], Any], variants: int
) -> None:
    fn, source, x = jitmagic.jit(program), random.Random(1), torch.ones(2)
    for _ in range(10):
        given = draw(source)
        torch.testing.assert_close(fn(x, given), program(x, given))
    ends = ends_of(fn)
    assert ends.index("PlainLoop") == variants - 1, ends
    assert handle_of(fn).ledger.count == variants


def printing(x: torch.Tensor) -> torch.Tensor:
    for i in range(300):
        print(i)
    return x + 1


def dumping(x: torch.Tensor) -> torch.Tensor:
    n = 0
    while n < 300:
        n += len(json.dumps([n])) // 3
    return x + n


@pytest.mark.parametrize("program", [printing, dumping])
def test_a_loop_of_breaks_is_run_in_a_row(program: Program) -> None:
    fn, x = jitmagic.jit(program), torch.zeros(2)
    for _ in range(3):
        with contextlib.redirect_stdout(io.StringIO()) as said:
            got = fn(x)
        with contextlib.redirect_stdout(io.StringIO()) as wanted:
            assert torch.equal(got, program(x))
        assert said.getvalue() == wanted.getvalue()
    assert ends_of(fn)[1:] == ["LoopOfBreaks", "return"]
    assert dispatched(fn) <= 8


def test_a_loop_with_tensor_work_keeps_its_rounds_compiled() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        for i in range(300):
            print(end="")
            x = x * 0.99 + i
        return x

    fn, x = jitmagic.jit(program), torch.ones(2)
    torch.testing.assert_close(fn(x), program(x))
    assert "LoopOfBreaks" not in ends_of(fn)
    assert dispatched(fn) >= 300


def test_a_mixed_loop_that_is_too_long_is_found_early() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        for _ in range(20000):
            x = x + 1
        return x

    fn, x = jitmagic.jit(program), torch.zeros(2)
    assert fn(x).tolist() == [20000.0] * 2
    (first, *_) = handle_of(fn).journal
    assert first.result("trace").exit.reason.kind == "ManyRounds"


def adds(x: torch.Tensor, ts: Sequence[torch.Tensor]) -> torch.Tensor:
    for i in range(len(ts)):
        x = x + i
    return x


def adds_while(x: torch.Tensor, ts: Sequence[torch.Tensor]) -> torch.Tensor:
    n = 0
    while n < len(ts):
        x, n = x + n, n + 1
    return x


def adds_nested(x: torch.Tensor, ts: Sequence[torch.Tensor]) -> torch.Tensor:
    for i in range(len(ts) // 50):
        for j in range(50):
            x = x + i * j
    return x


def adds_items(x: torch.Tensor, ts: Sequence[torch.Tensor]) -> torch.Tensor:
    for t in ts:
        x = x + t
    return x


def adds_in_callee(x: torch.Tensor, ts: Sequence[torch.Tensor]) -> torch.Tensor:
    return adds_items(x * 2, ts).sin()


def adds_until(x: torch.Tensor, ts: Sequence[torch.Tensor]) -> torch.Tensor:
    for i, t in enumerate(ts):
        x = x * 0.99 + t
        if i == len(ts) - 5:
            break
    return x.cos()


@pytest.mark.parametrize(
    "program", [adds, adds_while, adds_nested, adds_items, adds_in_callee, adds_until]
)
def test_many_small_rounds_are_not_unrolled(program: Callable[..., torch.Tensor]) -> None:
    fn, x = jitmagic.jit(program), torch.linspace(0, 1, 4)
    for n in (2500, 2500, 2400, 3):
        ts = list(torch.rand(n, 4))
        torch.testing.assert_close(fn(x, ts), program(x, ts))
    graphs = [record.result("trace").graph for record in handle_of(fn).journal]
    assert max(len(graph.graph.nodes) for graph in graphs if graph is not None) < 600


def test_loops_over_layers_are_unrolled() -> None:
    layers = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(80)))

    def program(x: torch.Tensor) -> torch.Tensor:
        for layer in layers:
            x = layer(x).tanh() * 0.5 + x
        return x

    fn, x = jitmagic.jit(program), torch.ones(2, 4)
    torch.testing.assert_close(fn(x), program(x))
    assert len(handle_of(fn).journal) == 1


def test_fullgraph_unrolls_a_plain_loop() -> None:
    fn, x = jitmagic.jit(between_operations, fullgraph=True), torch.ones(3)
    assert torch.equal(fn(x, MANY), between_operations(x, MANY))
