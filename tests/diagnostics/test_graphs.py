"""graphs(): one GraphModule for each stage, which prints, runs, is saved, and compiles again."""

from __future__ import annotations

import operator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import jitmagic
from jitmagic import extend


def layer(x: Tensor, w: Tensor) -> Tensor:
    y = x @ w
    return torch.relu(y).sum(-1)


def broken(x: Tensor) -> Tensor:
    y = x.sin()
    jitmagic.graph_break()
    return y.cos()


X, W = torch.randn(4, 8), torch.randn(8, 16)


def test_graphs_of_training_run_stage_by_stage() -> None:
    w = W.clone().requires_grad_()
    found = jitmagic.graphs(layer)(X, w)
    expected = layer(X, w)
    (gradient,) = torch.autograd.grad(expected.sum(), w)
    assert len(found) == 1
    torch.testing.assert_close(found.captured(X, w)[0], expected)
    ones = torch.ones(4)
    assert found.joint is not None and found.forward is not None and found.backward is not None
    for one, other in zip(found.joint(X, W, ones), (expected, gradient), strict=True):
        torch.testing.assert_close(one, other)
    result, *saved = found.forward(X, W)
    torch.testing.assert_close(result, expected)
    holders = [node.name for node in found.backward.graph.find_nodes(op="placeholder")]
    values = {"x": X, "tangent_0": ones}
    values |= dict(zip([name for name in holders if name not in values], saved, strict=True))
    torch.testing.assert_close(found.backward(*map(values.__getitem__, holders))[0], gradient)


def test_inference_has_no_backward() -> None:
    found = jitmagic.graphs(layer)(X, W)
    assert found.backward is None
    assert list(found[0].modules()) == ["captured", "joint", "forward"]


def test_frame_with_a_break_has_several_graphs() -> None:
    found = jitmagic.graphs(broken)(X)
    assert len(found) == 2
    torch.testing.assert_close(found[1].captured(found[0].captured(X)[0])[0], X.sin().cos())
    with pytest.raises(ValueError, match=r"broken has 2 graphs: choose one by \[0\]"):
        _ = found.captured


def test_nodes_print_the_lines_of_the_user() -> None:
    found = jitmagic.graphs(layer)(X, W)
    for gm in found[0].modules().values():
        lines = [node.meta["lines"][0] for node in gm.graph.nodes if node.op == "call_function"]
        assert {line.text for line in lines} == {"y = x @ w", "return torch.relu(y).sum(-1)"}
        assert "in layer, code: y = x @ w" in gm.print_readable(print_output=False)
    assert "# layer, joint" in str(found)
    assert "in layer, code: return torch.relu(y).sum(-1)" in str(found)


def test_graphs_are_saved_as_python(tmp_path: Path) -> None:
    folder = jitmagic.graphs(broken)(X).save(tmp_path / "graphs")
    names = sorted(path.name for path in folder.glob("*.py"))
    assert names == [f"{n}_{stage}.py" for n in "01" for stage in ("captured", "forward", "joint")]
    namespace: dict[str, object] = {}
    exec((folder / "0_captured.py").read_text(), namespace)
    torch.testing.assert_close(namespace["forward"](None, X)[0], X.sin())  # type: ignore[operator]


def test_edited_graph_is_compiled_and_leaves_the_function_alone() -> None:
    fast = jitmagic.jit(layer)
    gm = jitmagic.graphs(fast)(X, W).captured
    for node in gm.graph.find_nodes(op="call_function", target=operator.matmul):
        with gm.graph.inserting_after(node):
            made = gm.graph.call_function(torch.neg, (node,))
        node.replace_all_uses_with(made, lambda user, made=made: user is not made)
    gm.recompile()
    again = jitmagic.jit(gm)
    torch.testing.assert_close(again(X, W)[0], torch.relu(-(X @ W)).sum(-1))
    assert len(jitmagic.api.handle_of(again).dispatcher.entries) == 1
    torch.testing.assert_close(fast(X, W), layer(X, W))


def test_aten_graph_is_compiled_too() -> None:
    gm = jitmagic.graphs(layer)(X, W).forward
    torch.testing.assert_close(jitmagic.jit(gm)(X, W)[0], layer(X, W))


def test_dynamic_sizes_are_those_of_the_call() -> None:
    found = jitmagic.graphs(layer, dynamic=True)(X, W.clone().requires_grad_())
    for stage, gm in found[0].modules().items():
        gm(*found[0].example_inputs(stage))


def test_module_has_its_parameters_as_inputs() -> None:
    model = nn.Sequential(nn.Linear(8, 3), nn.Tanh())
    found = jitmagic.graphs(model)(X)
    inputs = found[0].example_inputs()
    assert sorted(tuple(one.shape) for one in inputs) == [(3,), (3, 8), (4, 8)]
    assert found.captured(*inputs)[0].shape == (4, 3)
    assert jitmagic.api.handle_of(model) is None


def test_backend_without_aten_graphs_has_the_captured_one_alone() -> None:
    assert list(jitmagic.graphs(layer, backend="eager")(X, W)[0].modules()) == ["captured"]


def test_graphs_show_what_passes_made_of_them() -> None:
    def to_abs(gm: torch.fx.GraphModule, context: extend.PassContext) -> None:
        for node in gm.graph.find_nodes(op="call_function", target=torch.relu):
            node.target = torch.abs

    with extend.register_pass("captured", to_abs):
        found = jitmagic.graphs(layer)(X, W)
    assert "torch.abs" in found.captured.code
    assert found.forward is not None and "aten.abs.default" in found.forward.code


def test_arguments_in_the_first_call_are_refused() -> None:
    with pytest.raises(ValueError, match=r"graphs\(f, x\) is written graphs\(f\)\(x\)"):
        jitmagic.graphs(layer, X, W)
