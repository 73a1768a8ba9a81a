"""Reports on control-flow nodes: the graphs of branches and loop bodies, and their kernels."""

from __future__ import annotations

import torch
from torch import Tensor

import jitmagic

W = torch.ones(4, 4, requires_grad=True)


def program(x: Tensor, p: Tensor) -> Tensor:
    y = x * 2
    made: Tensor = torch.cond(p, lambda: (y @ W).sin(), lambda: y.cos() * W[0]) + 1
    return made


def test_explain_shows_one_graph_with_the_operations_of_both_branches() -> None:
    found = jitmagic.explain(program)(torch.rand(3, 4), torch.tensor(True))
    assert "1 graph, no breaks" in str(found)
    operations = {name for kernel in found.kernels for name in kernel.operations}
    assert {"sin", "cos"} <= operations
    assert "each branch and loop body is measured for one run" in str(found.costs)


def test_graphs_have_the_branches() -> None:
    found = jitmagic.graphs(program)(torch.rand(3, 4), torch.tensor(True))
    names = [one.name.rpartition(", ")[2] for one in found if one.forward is not None]
    assert names == ["part 0", "part 2", "cond.true_fn", "cond.false_fn"]
    assert "torch.cond" not in str(found[1].captured.code)
    for one in found:
        if one.forward is not None:
            assert one.forward(*one.example_inputs("forward"))
    assert "sin" in str(found[3])
    assert "cos" in str(found[4])


def test_script_of_a_graph_holds_the_branches(tmp_path) -> None:  # type: ignore[no-untyped-def]
    from jitmagic.diagnostics.checking.scripts import script
    from jitmagic.trace.result import Trace

    compiled = jitmagic.jit(program)
    compiled(torch.rand(3, 4), torch.tensor(True))
    (trace,) = (
        t for r in jitmagic.api.handle_of(compiled).journal
        if isinstance(t := r.result("trace"), Trace)
    )  # fmt: skip
    text = script("A graph.", "test", trace.graph.graph, "run", "")
    scope: dict[str, object] = {}
    exec(compile(text, "script", "exec"), scope)
    x, p = torch.rand(3, 4), torch.tensor(False)
    torch.testing.assert_close(scope["repro"](x, p, W)[0], (x * 2).cos() + 1)  # type: ignore[operator]
