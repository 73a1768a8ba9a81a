"""explain(f)(x) beside what f has compiled so far, and which guards are worth reading."""

from __future__ import annotations

import torch

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


def test_guards_about_installed_packages_are_counted_in_text_and_last_in_html():
    def both(x):
        return helper(torch.relu(x))

    space = {"torch": torch}
    exec("def helper(x):\n    return x + 1", space)
    helper = space["helper"]
    told = jitmagic.explain(both)(torch.ones(3))
    own, settled = told.guards[: -told.settled], told.guards[-told.settled :]
    assert any("helper" in guard for guard in own)
    assert any(guard.startswith("torch: same relu") for guard in settled)
    text = str(told)
    assert "same relu" not in text
    assert f"and {told.settled} about code of installed packages: all are in .guards" in text
    assert "same relu" in told._repr_html_()


def test_values_that_no_variable_holds_are_not_named_after_the_stack():
    """After a break they are parameters of a resume function; no edit can be written with them."""

    def sums(x):
        for row in range(3):
            x = x + (1 if (x > row).any() else 2)
        return x

    tagged = jitmagic.jit(sums)
    for size in (3, 4, 5):
        tagged(torch.arange(float(size)))
    told = str(jitmagic.explain(tagged)) + jitmagic.explain(tagged)._repr_html_()
    assert ".stack" not in told
    assert "(unnamed value" in told
    assert "to stop it: give (unnamed" not in told


def test_a_backward_makes_no_ledger_of_one_variant():
    tagged = jitmagic.jit(lambda x: (x * 2).sum())
    tagged(torch.ones(3, requires_grad=True)).backward()
    assert len(handle_of(tagged).journal) == 2
    assert jitmagic.explain(tagged).now.ledger == ()
