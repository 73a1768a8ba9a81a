"""The recompile ledger: each class of recompiles, its reason, and its edit, applied."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import jitmagic
from jitmagic.api import handle_of
from jitmagic.diagnostics.status import VariantReport, ledger_lines, variants_of
from jitmagic.runtime import precompiled

Tagger = Callable[[Callable[..., Any]], Any]


@dataclass(frozen=True)
class Recompiles:
    """A program that compiles more than once, and the same with the edit that its ledger tells.

    Both take the tagger and give the tagged function after its calls.
    """

    program: Callable[[Tagger], Any]
    differs: str
    edit: str
    edited: Callable[[Tagger], Any]


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def called(tag: Tagger, fn: Callable[..., Any], *calls: tuple[Any, ...]) -> Any:
    tagged = tag(fn)
    for call in calls:
        tagged(*call)
    return tagged


def sized(*sizes: int, padded: bool = False, marked: bool = False) -> Callable[[Tagger], Any]:
    def run(tag: Tagger) -> Any:
        xs = [torch.ones(size) for size in sizes]
        if marked:
            jitmagic.mark_dynamic(xs[0], 0)
        if padded:
            xs = [torch.nn.functional.pad(x, (0, max(sizes) - len(x))) for x in xs]
        return called(tag, double, *((x,) for x in xs))

    return run


def scaled(*numbers: Any) -> Callable[[Tagger], Any]:
    """By a number that is data from the second variant on, and as a tensor from the first."""

    def scale(x: torch.Tensor, n: Any) -> torch.Tensor:
        return x * n

    return lambda tag: called(tag, scale, *((torch.ones(3), n) for n in numbers))


def repeated(*numbers: int) -> Callable[[Tagger], Any]:
    """Loop as often as a number says, which must therefore be a constant."""

    def repeat(x: torch.Tensor, n: int) -> torch.Tensor:
        return x * math.comb(9, n)

    return lambda tag: called(tag, repeat, *((torch.ones(3), n) for n in numbers))


def resized(*numbers: float) -> Callable[[Tagger], Any]:
    """By a float that has to be a constant."""

    def resize(x: torch.Tensor, factor: float) -> torch.Tensor:
        return torch.nn.functional.interpolate(x, scale_factor=factor)

    return lambda tag: called(tag, resize, *((torch.ones(1, 2, 8), n) for n in numbers))


def chosen(*values: Any) -> Callable[[Tagger], Any]:
    def act(x: torch.Tensor, how: Any) -> torch.Tensor:
        return x.relu() if how else x.exp()

    return lambda tag: called(tag, act, *((torch.ones(3), value) for value in values))


def typed(*dtypes: torch.dtype, to: torch.dtype | None = None) -> Callable[[Tagger], Any]:
    def run(tag: Tagger) -> Any:
        xs = [torch.ones(3, dtype=dtype) for dtype in dtypes]
        return called(tag, double, *((x if to is None else x.to(to),) for x in xs))

    return run


def recording(*modes: bool) -> Callable[[Tagger], Any]:
    def run(tag: Tagger) -> Any:
        tagged = tag(double)
        for mode in modes:
            with torch.set_grad_enabled(mode):
                tagged(torch.ones(3))
        return tagged

    return run


def autocasting(*modes: bool) -> Callable[[Tagger], Any]:
    def run(tag: Tagger) -> Any:
        tagged = tag(double)
        for mode in modes:
            with torch.autocast("cpu", torch.bfloat16, enabled=mode):
                tagged(torch.ones(3))
        return tagged

    return run


def new_objects(fresh: bool) -> Callable[[Tagger], Any]:
    class Key:
        pass

    rates: dict[Any, float] = {}

    def step(x: torch.Tensor, key: object) -> torch.Tensor:
        return x * rates[key]

    def run(tag: Tagger) -> Any:
        kept = [Key(), Key()]
        rates.update(dict.fromkeys(kept, 0.5))
        return called(tag, step, *((torch.ones(3), kept[i * fresh]) for i in range(2)))

    return run


def closures(fresh: bool) -> Callable[[Tagger], Any]:
    def apply(x: torch.Tensor, fn: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        return fn(x)

    sources = ["lambda x: x + 1", "lambda x: x + 2"] if fresh else ["lambda x: x + 1"]

    def run(tag: Tagger) -> Any:
        functions = [eval(source) for source in sources]
        tagged = tag(apply)
        for i in range(2):
            tagged(torch.ones(3), functions[i % len(functions)])
        return tagged

    return run


def listed(*lengths: int, stacked: bool = False) -> Callable[[Tagger], Any]:
    def add(xs: Any) -> torch.Tensor:
        return sum(xs) if isinstance(xs, list) else xs.sum(0)  # type: ignore[return-value]

    def run(tag: Tagger) -> Any:
        lists = [
            [torch.ones(3)] * max(lengths) if stacked else [torch.ones(3)] * n for n in lengths
        ]
        return called(tag, add, *((torch.stack(xs) if stacked else xs,) for xs in lists))

    return run


def held_in(*types: Callable[..., Any]) -> Callable[[Tagger], Any]:
    def add(xs: Any) -> torch.Tensor:
        return xs[0] + xs[1]

    return lambda tag: called(tag, add, *((made([torch.ones(3)] * 2),) for made in types))


def keyed(*orders: tuple[str, ...]) -> Callable[[Tagger], Any]:
    def joined(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.cat(list(batch.values()))

    return lambda tag: called(
        tag, joined, *(({key: torch.ones(2) for key in order},) for order in orders)
    )


def trained(*modes: bool) -> Callable[[Tagger], Any]:
    def run(tag: Tagger) -> Any:
        layer = tag(torch.nn.Dropout(0.5))
        for mode in modes:
            layer.train(mode)(torch.ones(3))
        return layer

    return run


def rebound(*factors: float, passed: bool = False) -> Callable[[Tagger], Any]:
    def run(tag: Tagger) -> Any:
        space: dict[str, Any] = {"act": torch.relu}
        body = "fn(x)" if passed else "act(x)"
        exec(f"def f(x, fn=None):\n    return {body}", space)
        tagged = tag(space["f"])
        for act in (torch.relu, torch.relu if passed else torch.exp):
            space["act"] = act
            tagged(torch.ones(3), act if passed else None)
        return tagged

    return run


RECOMPILES = {
    "size": Recompiles(
        sized(3, 4),
        "x.shape is (4,), was (3,)",
        "jitmagic.mark_dynamic(x, 0) before the first call",
        sized(3, 4, marked=True),
    ),
    "size, one of them 1": Recompiles(
        sized(3, 1), "x.shape is (1,), was (3,)", "give x one size", sized(3, 1, padded=True)
    ),
    "size, padded": Recompiles(
        sized(3, 4), "x.shape is (4,), was (3,)", "functional.pad", sized(3, 4, padded=True)
    ),
    "int": Recompiles(
        scaled(2, 3), "n is 3, was 2", "torch.tensor", scaled(torch.tensor(2), torch.tensor(3))
    ),
    "float": Recompiles(
        scaled(0.5, 1.5),
        "n is 1.5, was 0.5",
        "torch.tensor",
        scaled(torch.tensor(0.5), torch.tensor(1.5)),
    ),
    "int that is a constant": Recompiles(
        repeated(2, 3), "n is 3, was 2", "one n in all calls", repeated(2, 2)
    ),
    "float that is a constant": Recompiles(
        resized(0.5, 1.5), "factor is 1.5", "one factor in all calls", resized(0.5, 0.5)
    ),
    "flag": Recompiles(
        chosen(True, False), "how is False, was True", "one how", chosen(True, True)
    ),
    "string": Recompiles(chosen("a", ""), "how is '', was 'a'", "one how", chosen("a", "a")),
    "type": Recompiles(
        held_in(list, tuple), "type(xs) is tuple, was list", "one type of xs", held_in(list, list)
    ),
    "dtype": Recompiles(
        typed(torch.float32, torch.float64),
        "x.dtype is torch.float64",
        "x.to(torch.float32)",
        typed(torch.float32, torch.float64, to=torch.float32),
    ),
    "grad mode": Recompiles(
        recording(True, False), "grad enabled is False", "no_grad", recording(False, False)
    ),
    "autocast": Recompiles(
        autocasting(False, True), "autocast cpu is", "torch.autocast", autocasting(True, True)
    ),
    "new object": Recompiles(
        new_objects(True), "key", "one and the same object", new_objects(False)
    ),
    "closure": Recompiles(closures(True), "fn.__code__", "define fn once", closures(False)),
    "list": Recompiles(listed(2, 3), "len(xs) is 3", "torch.stack", listed(2, 3, stacked=True)),
    "keys": Recompiles(
        keyed(("a", "b"), ("b", "a")),
        "list(batch) is ['b', 'a']",
        "same order",
        keyed(("a", "b"), ("a", "b")),
    ),
    "training": Recompiles(
        trained(True, False), "self.training is False", "self.eval()", trained(True, True)
    ),
    "global": Recompiles(rebound(), "act", "global act", rebound(passed=True)),
}


def ledger(run: Callable[[Tagger], Any]) -> tuple[VariantReport, ...]:
    tagged = run(jitmagic.jit(backend="eager"))
    handle = jitmagic.api.tagged_handle(tagged)
    return variants_of(handle)


@pytest.mark.parametrize("name", RECOMPILES)
def test_the_edit_of_the_ledger_stops_the_recompile(name: str) -> None:
    case = RECOMPILES[name]
    first, *others = ledger(case.program)
    assert not first.missed
    assert others, "the program was to compile twice"
    [(number, difference)] = others[0].missed
    assert number == 1
    assert case.differs in difference.what
    assert case.edit in difference.edit
    assert difference.edit in "\n".join(ledger_lines(others))
    assert len(ledger(case.edited)) == 1


def test_why_knows_by_the_third_value_that_a_number_is_a_constant() -> None:
    def repeat(x: torch.Tensor, n: int) -> torch.Tensor:
        return x * math.comb(9, n)

    tagged = called(jitmagic.jit(backend="eager"), repeat, (torch.ones(3), 2), (torch.ones(3), 3))
    told = str(jitmagic.why(tagged)(torch.ones(3), 5))
    assert "to stop it: have one n in all calls" in told
    assert "torch.tensor" not in told


def test_ledger_shows_call_cost_and_line_of_a_variant() -> None:
    tagged = jitmagic.jit(double, backend="eager")
    tagged(torch.ones(3))
    tagged(torch.ones(3))
    tagged(torch.ones(4))
    first, second = variants_of(jitmagic.api.tagged_handle(tagged))
    assert (first.number, first.hits, second.number, second.hits) == (1, 2, 2, 1)
    assert first.called_from is not None and first.called_from.text == "tagged(torch.ones(3))"
    assert second.seconds > 0
    where = second.missed[0][1].where
    assert where is not None and where.text == "return x * 2"


def test_eager_calls_of_the_comparison_count_as_hits() -> None:
    tagged = jitmagic.jit(double)
    for _ in range(6):  # from the fourth on it takes turns with eager
        tagged(torch.ones(3))
    [only] = variants_of(jitmagic.api.tagged_handle(tagged))
    assert only.hits == 6


def rows_and_columns(x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(x.shape[0])
    if x.shape[0] > 6:
        total = total * 2
    return total * math.comb(9, x.shape[1])


def test_ledger_shows_symbols_and_constants_with_user_lines() -> None:
    tagged = jitmagic.jit(rows_and_columns, backend="eager")
    for shape in ((8, 4), (9, 4), (10, 7), (12, 5), (3, 5)):
        tagged(torch.ones(shape))
    variants = variants_of(jitmagic.api.tagged_handle(tagged))
    first, second, third, fourth, fifth = (variant.changing for variant in variants)
    assert first == ()
    assert [line.partition(" (")[0] for line in second] == [
        "x.shape[0]: a symbol",
        "only where x.shape[0] >= 7",
    ]
    assert "torch.zeros(x.shape[0])" in second[0] and "if x.shape[0] > 6:" in second[1]
    assert third[0].startswith("x.shape[1]: a constant") and "math.comb(9, x.shape[1])" in third[0]
    assert third == fourth and third[1:] == second
    assert "only where x.shape[0] <= 6" in fifth[-1]
    assert set(second) < set(map(str.strip, ledger_lines(variants)))
    where = variants[3].missed[0][1].where  # what made a constant of the size that differs
    assert where is not None and where.text == "return total * math.comb(9, x.shape[1])"


def test_the_backward_is_counted_with_its_variant() -> None:
    tagged = jitmagic.jit(double)
    x = torch.ones(3, requires_grad=True)
    result = tagged(x)
    [before] = variants_of(jitmagic.api.tagged_handle(tagged))
    result.sum().backward()
    [after] = variants_of(jitmagic.api.tagged_handle(tagged))
    assert after.kernels > before.kernels and after.seconds > before.seconds


def test_reset_begins_a_new_ledger() -> None:
    tagged = jitmagic.jit(double, backend="eager")
    tagged(torch.ones(3))
    jitmagic.reset()
    assert variants_of(jitmagic.api.tagged_handle(tagged)) == ()
    tagged(torch.ones(4))
    [only] = variants_of(jitmagic.api.tagged_handle(tagged))
    assert only.number == 1 and not only.missed


def test_a_refused_header_is_in_the_status_and_in_the_journal(monkeypatch) -> None:
    said = "cc1plus: <bad> header\nin detail"
    states = {("", ""): precompiled._State(refusal=said)}
    monkeypatch.setattr(precompiled, "_states", states)
    tagged = jitmagic.jit(lambda x: (x * 1.25 + 0.0625).sum())
    tagged(torch.ones(3))
    handle = handle_of(tagged)
    assert handle is not None
    assert [r.result("forward: load").refused for r in handle.journal] == [(said,)]
    shown = jitmagic.status(tagged)
    assert str(shown).splitlines()[-1].endswith("precompiled header: cc1plus: <bad> header")
    assert "cc1plus: &lt;bad&gt; header" in shown._repr_html_()
    states.clear()
    assert "precompiled" not in str(jitmagic.status(tagged))


def test_ledger_counts_calls_after_the_limit() -> None:
    """Else a card says "compiled" of a function most of whose calls are not."""
    tagged = jitmagic.jit(lambda x, s: torch.cat([x] * len(s)), options={"recompile_limit": 2})
    for n in range(1, 8):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", jitmagic.RecompileWarning)
            tagged(torch.ones(3), "a" * n)
    card = str(jitmagic.status(tagged))
    assert "compiled; calls that fit no variant are plain Python, because its recompile lim" in card
    for shown in (str(jitmagic.explain(tagged)), jitmagic.explain(tagged)._repr_html_()):
        assert "5 calls fitted no variant: plain Python" in shown
