"""`torch.compiler.is_compiling()` and its kin: True in traced code, False in plain Python."""

from __future__ import annotations

import pytest
import torch

import jitmagic

from ..counts import counts_of


def branches(x):
    return x + 1 if torch.compiler.is_compiling() else x - 1


def before_and_behind(x, seen):
    inside = torch.compiler.is_dynamo_compiling()
    jitmagic.graph_break()
    seen.append((inside, torch.compiler.is_compiling(), torch.compiler.is_exporting()))
    return x + 1


@jitmagic.disable
def plain():
    return torch.compiler.is_compiling()


def test_true_where_code_is_traced():
    tagged = jitmagic.jit(branches, fullgraph=True, backend="eager")
    assert tagged(torch.zeros(2)).tolist() == [1, 1]
    assert branches(torch.zeros(2)).tolist() == [-1, -1]


def test_false_in_code_that_runs_as_plain_python():
    tagged = jitmagic.jit(lambda x: (x + 1, plain()), backend="eager")
    assert tagged(torch.zeros(1))[1] is False


def test_code_that_raises_only_under_compilers_runs_as_in_eager():
    def mask(x, given=None):
        if given is None and not torch.compiler.is_compiling():
            given = torch.ones_like(x)
        return x * given[:, None]

    tagged = jitmagic.jit(mask, fullgraph=True, backend="eager")
    assert tagged(torch.ones(2)).tolist() == mask(torch.ones(2)).tolist()
    assert counts_of(tagged).graphs == 1


def test_code_that_raises_in_both_modes_raises():
    tagged = jitmagic.jit(lambda x: x.size(5 if torch.compiler.is_compiling() else 6))
    with pytest.raises(IndexError, match="got 6"):
        tagged(torch.ones(2))


def test_after_a_graph_break():
    seen: list[tuple[bool, ...]] = []
    jitmagic.jit(before_and_behind, backend="eager")(torch.zeros(1), seen)
    assert seen == [(True, True, False)]


def test_torchs_own_code_takes_eagers_branch():
    """Compiled, Adam would count its steps in float32: other bits than eager's."""

    def trained(compiled):
        torch.manual_seed(0)
        weight = torch.randn(5, requires_grad=True)
        optimizer = torch.optim.Adam([weight], lr=0.1)

        def step():
            optimizer.zero_grad()
            (weight * weight.detach().cos()).sum().backward()
            optimizer.step()

        run = jitmagic.jit(step, backend="eager") if compiled else step
        for _ in range(5):
            run()
        return weight

    assert torch.equal(trained(True), trained(False))


def test_whole_where_only_the_compiled_branch_is():
    def masks(x):
        if not torch.compiler.is_compiling() and bool((x > 0).all()):
            return None
        return x > 0

    tagged = jitmagic.jit(masks, backend="eager")
    assert tagged(torch.ones(2)).tolist() == [True, True]
    assert counts_of(tagged).breaks == 0
