"""explain(f)(x) beside what f has compiled so far, and which guards are worth reading."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import jitmagic
from jitmagic.api import handle_of


def test_a_report_of_a_call_has_the_ledger_of_what_is_tagged():
    """The call is compiled apart; what was recompiled so far is the tagged function's."""

    def scaled(x, k):
        return x * k

    tagged = jitmagic.jit(scaled)
    for k in (torch.ones(3), "a" and 3):
        tagged(torch.ones(3), k)
    told = jitmagic.explain(tagged)(torch.ones(3), 3)
    assert told.graph_count == 1
    assert told.ledger == jitmagic.explain(tagged).now.ledger != ()
    assert jitmagic.explain(scaled)(torch.ones(3), 3).ledger == ()
    assert len(handle_of(tagged).journal) == 2


def test_matching_variant_is_explained_without_a_recompile() -> None:
    def both(x: Tensor, k: Tensor) -> Tensor:
        y = torch.relu(x * k)
        jitmagic.graph_break()
        return y.sum() + 1

    tagged = jitmagic.jit(both, dynamic=False)
    x, other = torch.ones(3, requires_grad=True), torch.ones(5)
    for each in (x, other):
        tagged(each, each)
    journal = handle_of(tagged).journal
    compiled = len(journal)
    for call in range(12):  # turns of eager are among them
        told = jitmagic.explain(tagged)(x, x)
        assert handle_of(tagged).ledger.calls == 3 + 2 * call
        assert (told.variants, told.graph_count, told.graph_break_count) == (1, 2, 1)
        assert {kernel.graph for kernel in told.kernels} == {"forward", "backward"}
        assert not told.waiting and told.costs
        tagged(x, x).backward()
    assert {(r.frame, r.number) for r in told.records} < {(r.frame, r.number) for r in journal}
    assert len(journal) == compiled + 2  # the backwards
    assert all(any(each is record for record in journal) for each in told.records)
    assert "x is float32[3]" in str(told) and "float32[5]" not in str(told)
    assert len(told.ledger) == len(jitmagic.explain(tagged).now.ledger)


@pytest.mark.parametrize(
    ("options", "size"), [({"options": {"fuse": False}}, 3), ({}, 4)], ids=["options", "size"]
)
def test_explain_compiles_a_copy_if_no_variant_matches(options: Any, size: int) -> None:
    tagged = jitmagic.jit(lambda x: (x * 2).relu(), dynamic=False)
    tagged(torch.ones(3))
    told = jitmagic.explain(tagged, **options)(torch.ones(size))
    assert told.graph_count == 1
    assert told.records[0] is not handle_of(tagged).journal.records[0]
    assert (len(handle_of(tagged).journal), handle_of(tagged).ledger.calls) == (1, 1)


def test_module_with_a_new_hook_is_explained_by_another_compile() -> None:
    """A hook has the module's call be Python; what is compiled then is no variant of it."""
    model = jitmagic.jit(torch.nn.Linear(3, 3))
    model(torch.ones(3))
    with model.register_forward_pre_hook(lambda module, args: (args[0] * 2,)):
        told = jitmagic.explain(model)(torch.ones(3))
    apart = torch.nn.Linear(3, 3)
    apart.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    assert told.graph_count == jitmagic.explain(apart)(torch.ones(3)).graph_count == 2


def test_arguments_that_do_not_fit_raise_as_they_do_in_a_call() -> None:
    tagged = jitmagic.jit(lambda x, k: x * k)
    tagged(torch.ones(3), 2)
    for call in (tagged, jitmagic.explain(tagged)):
        with pytest.raises(TypeError, match="missing 1 required positional argument: 'k'"):
            call(torch.ones(3))


def test_disabled_call_is_explained_by_its_matching_variant() -> None:
    """The variant that fits is what such calls have elsewhere."""
    tagged = jitmagic.jit(lambda x: (x * 2).relu())
    tagged(torch.ones(3))
    told = jitmagic.disable(jitmagic.explain(tagged))(torch.ones(3))
    (entry,) = handle_of(tagged).dispatcher.entries
    assert (entry.hits, len(handle_of(tagged).journal)) == (1, 1)
    assert (told.graph_count, len(told.kernels)) == (1, 1)


def test_guards_and_counts_are_those_of_a_variant():
    """No call meets the guards of two variants that differ."""

    def scaled(x, k=2):
        return torch.relu(x * k)

    tagged = jitmagic.jit(scaled, backend="aot_eager", dynamic=False)
    for x in (torch.ones(3), torch.ones(4), torch.ones(4).double()):
        tagged(x)
    now = jitmagic.explain(tagged).now
    assert str(now).splitlines()[1].startswith("3 variants, 3 graphs, no breaks")
    told = [guard for guard in now.guards if "x: float" in guard or "k ==" in guard]
    assert told == [
        "variant 1: x: float32[3] cpu",
        "k == 2",
        "variant 2: x: float32[4] cpu",
        "variant 3: x: float64[4] cpu",
    ]
    page = now._repr_html_()
    assert "recompiles, and the edit that stops each (2)</summary>" in page
    one = jitmagic.explain(tagged)(torch.ones(3))
    assert str(one).splitlines()[1].startswith("1 graph, no breaks")
    assert "the edit that stops each (2)</summary>" in one._repr_html_()
    assert not any(guard.startswith("variant") for guard in one.guards)


def test_ledger_lists_resume_functions():
    def repeat(x, n):
        y = x * 3
        jitmagic.graph_break()
        return torch.cat([y + i for i in range(n)])

    tagged = jitmagic.jit(repeat, backend="eager")
    tagged(torch.ones(3), 2)
    assert jitmagic.explain(tagged).now.ledger == ()
    tagged(torch.ones(3), 3)
    first, second, *told = jitmagic.explain(tagged).now.ledger
    line = repeat.__code__.co_firstlineno + 2
    place = f"of {repeat.__qualname__.rpartition('.')[2]} from test_explain_calls.py:{line} on"
    assert first.startswith(f"variant 1 {place}: compiled in")
    assert second.startswith(f"variant 2 {place}: compiled in")
    assert told[0] == "    not variant 1: n is 3, was 2"


def test_what_is_compiled_now_has_pictures():
    tagged = jitmagic.jit(lambda x: x * 2)
    with pytest.raises(jitmagic.errors.UsageError, match="nothing of <lambda> is compiled yet"):
        jitmagic.explain(tagged).picture()
    tagged(torch.ones(3))
    shown = jitmagic.explain(tagged).picture("compile")
    assert shown.svg == jitmagic.explain(tagged).now.picture("compile").svg


def test_facts_that_no_caller_changes_are_counted_and_guards_about_packages_are_last():
    def both(x):
        return helper(torch.relu(x))

    space = {"torch": torch}
    exec("def helper(x):\n    return x + 1", space)
    helper = space["helper"]
    told = jitmagic.explain(both)(torch.ones(3))
    own, of_library = told.guards[: -told.library_guards], told.guards[-told.library_guards :]
    assert any("helper" in guard for guard in own)
    assert any(guard.startswith("torch: same relu") for guard in of_library)
    assert told.facts[0] == "x is float32[3] cpu"
    assert not any("helper" in fact or "relu" in fact for fact in told.facts)
    assert told.other_facts > 0
    more = f"and {told.other_facts} further fact"
    for text in (str(told.full()), told._repr_html_()):
        assert more in text
        assert "same relu" in text
    assert "same relu" not in str(told)


def test_values_that_no_variable_holds_are_not_named_after_the_stack():
    """After a break they are parameters of a resume function; no edit can be written with them."""

    def sums(x):
        for row in range(3):
            x = x + (1 if (x > row).any() else 2)
        return x

    tagged = jitmagic.jit(sums)
    for size in (3, 4, 5):
        tagged(torch.arange(float(size)))
    told = str(jitmagic.explain(tagged).now.full()) + jitmagic.explain(tagged)._repr_html_()
    assert ".stack" not in told
    assert "(unnamed value" in told
    assert "to stop it: give (unnamed" not in told


def test_a_backward_makes_no_ledger_of_one_variant():
    tagged = jitmagic.jit(lambda x: (x * 2).sum())
    tagged(torch.ones(3, requires_grad=True)).backward()
    assert len(handle_of(tagged).journal) == 2
    assert jitmagic.explain(tagged).now.ledger == ()


def test_rolled_loop_is_reported_once() -> None:
    def rows(x: Tensor) -> Tensor:
        h = torch.zeros(x.shape[1])
        for t in range(x.shape[0]):
            h = torch.tanh(h + x[t])
        return h

    tagged = jitmagic.jit(rows)
    for length in (3, 5, 7):
        tagged(torch.randn(length, 4))
    told = str(jitmagic.explain(tagged))
    assert told.count("the trip count of this loop varies (range)") == 1
    assert told.count("hint: write it without a loop over that") == 1
    assert told.count("Python runs this loop: one compiled iteration serves any number") == 1


def test_indexes_that_vary_are_shown_in_loops(tmp_path: Path) -> None:
    """The index of a rolled loop's round: a report of it raised."""
    tagged = jitmagic.jit(lambda x, t: x[t] * 2)
    for t in (1, 2, 3):
        tagged(torch.randn(5, 4), t)
    assert jitmagic.report(tmp_path / "out", tagged).capsules


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    weights = torch.softmax(q @ k.transpose(-2, -1) * 0.3, dim=-1)
    return weights @ v


def normalised(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.transpose(-2, -1), dim=-2) @ v


def test_notes_say_what_became_of_attention_that_is_written_out() -> None:
    q, k, v = torch.randn(3, 2, 2, 256, 8)
    line = attention.__code__.co_firstlineno + 2
    found = jitmagic.explain(attention)(q, k, v)
    assert f"attention written out at line {line} -> scaled_dot_product_attention" in found.notes
    (note,) = jitmagic.explain(normalised)(q, k, v).notes
    assert note == "attention stays written out: its softmax is not over the last dimension"
