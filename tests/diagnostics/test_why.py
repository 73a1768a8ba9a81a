"""why: tells what a call does before it is made, and changes nothing by asking."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitmagic
from jitmagic.api import handle_of
from tests.diagnostics.test_ledger import double


def state(tagged: Any) -> tuple[Any, ...]:
    handle = handle_of(tagged)
    assert handle is not None
    entries = handle.dispatcher.entries
    return entries, [entry.hits for entry in entries], handle.dispatcher.calls, len(handle.journal)


def noisy(x: torch.Tensor, n: int = 2, *, flag: bool = False) -> torch.Tensor:
    if flag:
        print("runs")
    return torch.cat([x] * n)


CALLS: list[Callable[[], tuple[tuple[Any, ...], dict[str, Any]]]] = [
    lambda: ((torch.ones(3),), {}),
    lambda: ((torch.ones(0),), {}),
    lambda: ((torch.ones(3),), {"n": 3}),
    lambda: ((torch.ones(3), 2), {"flag": True}),
    lambda: ((torch.ones(3, dtype=torch.float64),), {}),
    lambda: ((torch.ones(3),), {"flag": None}),
    lambda: ((torch.ones(3, 2).t(),), {}),
]


@pytest.mark.parametrize("second", range(len(CALLS)))
def test_why_predicts_the_variant_that_runs(
    second: int, capsys: pytest.CaptureFixture[str]
) -> None:
    tagged = jitmagic.jit(noisy, backend="eager")
    args, kwargs = CALLS[0]()
    tagged(*args, **kwargs)
    args, kwargs = CALLS[second]()
    before = state(tagged)
    answer = jitmagic.why(tagged)(*args, **kwargs)
    assert state(tagged) == before
    assert capsys.readouterr().out == ""
    tagged(*args, **kwargs)
    handle = handle_of(tagged)
    assert handle is not None
    if answer.variant is None:
        assert len(handle.dispatcher.entries) == 2
        [(number, difference)] = answer.missed
        assert number == 1 and difference.what in str(answer)
    else:
        assert handle.dispatcher.entries[0].notes.number == answer.variant
        assert len(handle.dispatcher.entries) == 1


def test_before_the_first_call() -> None:
    tagged = jitmagic.jit(double)
    answer = jitmagic.why(tagged)(torch.ones(3))
    assert answer.variant is None
    assert str(answer) == "double has no variant yet and would be compiled first"


def test_at_the_limit_and_for_what_is_eager() -> None:
    tagged = jitmagic.jit(double, backend="eager", options={"recompile_limit": 1})
    tagged(torch.ones(3))
    assert "recompile_limit=1 is reached" in str(jitmagic.why(tagged)(torch.ones(4)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tagged(torch.ones(4))
    answer = jitmagic.why(tagged)(torch.ones(4))
    assert "plain Python, because its recompile limit is reached" in str(answer)
    assert "x.shape is (4,), was (3,)" in str(answer)
    assert jitmagic.why(tagged)(torch.ones(3)).variant == 1


@pytest.mark.parametrize("target", [double, torch.nn.Linear(2, 2), 3])
def test_what_is_not_tagged_is_refused(target: Any) -> None:
    with pytest.raises(TypeError, match="not compiled by jitmagic"):
        jitmagic.why(target)
    with pytest.raises(TypeError, match="not compiled by jitmagic"):
        jitmagic.status(target)


def test_arguments_belong_in_the_second_call() -> None:
    with pytest.raises(TypeError, match=r"why\(f\)\(x\)"):
        jitmagic.why(jitmagic.jit(double), torch.ones(3))


def test_status_lists_everything_tagged() -> None:
    tagged, layer = jitmagic.jit(double), jitmagic.jit(torch.nn.Linear(3, 3))
    tagged(torch.ones(3))
    tagged(torch.ones(3))
    [card] = jitmagic.status(tagged).cards
    assert (card.name, card.state, card.calls, len(card.variants)) == ("double", "compiled", 2, 1)
    assert str(card).startswith("double: compiled: not measured yet, 1 variant, 2 calls, ")
    [unused] = jitmagic.status(layer).cards
    assert str(unused) == "Linear.forward: not called yet"
    assert {str(card), str(unused)} <= set(map(str, jitmagic.status().cards))


def test_what_a_card_says_was_compiled_is_all_of_it() -> None:
    """The function behind a graph break too."""

    def broken(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        jitmagic.graph_break()
        return y.sin()

    tagged = jitmagic.jit(broken)
    tagged(torch.ones(3))
    [card] = jitmagic.status(tagged).cards
    assert card.seconds == jitmagic.explain(tagged).now.seconds > card.variants[0].seconds


def test_explain_without_a_call_tells_what_is_compiled_now() -> None:
    tagged = jitmagic.jit(double)
    assert "call it with the arguments" in repr(jitmagic.explain(tagged))
    tagged(torch.ones(3))
    tagged(torch.ones(4))
    before = state(tagged)
    report = repr(jitmagic.explain(tagged))
    assert "x.shape is (4,), was (3,)" in report
    assert "variant 2" in report
    assert state(tagged) == before


def test_why_describes_resume_functions() -> None:
    def parts(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        jitmagic.graph_break()
        z = y + 1
        jitmagic.graph_break()
        return z.sin()

    tagged = jitmagic.jit(parts)
    tagged(torch.ones(3))
    told = jitmagic.why(tagged)(torch.ones(3))
    first, second, third = str(told).splitlines()
    assert "would run variant 1 of 1: compiled code, up to the graph break at" in first
    line = parts.__code__.co_firstlineno
    for text, number in ((second, line + 2), (third, line + 4)):
        assert text.startswith(f"  then from test_why.py, line {number}: jitmagic.graph_break(): ")
    assert second.endswith(f"up to the graph break at test_why.py, line {line + 4}: "
                           "jitmagic.graph_break()")  # fmt: skip
    assert third.endswith(": compiled code")
    assert jitmagic.why(jitmagic.jit(lambda x: x + 1))(torch.ones(3)).rest == ()
