"""register_pass: edits reach the compiled code; wrong edits are errors that name the pass."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.utils.checkpoint import checkpoint

import jitmagic
from jitmagic import extend
from jitmagic.extend import PassContext, PassFailed

aten = torch.ops.aten
X, W = torch.randn(4, 8), torch.randn(8, 16)


def layer(x: Tensor, w: Tensor) -> Tensor:
    return torch.relu(x @ w).sum(-1)


def replacing(old: object, new: Callable[..., Any], **kwargs: Any) -> extend.GraphPass:
    """A pass that calls `new` wherever the graph calls `old`."""

    def replace(gm: GraphModule, context: PassContext) -> None:
        for node in gm.graph.find_nodes(op="call_function", target=old):
            with gm.graph.inserting_after(node):
                made = gm.graph.call_function(new, node.args, kwargs)
            node.replace_all_uses_with(made)

    return replace


def grad_of(fn: Callable[..., Tensor], x: Tensor, w: Tensor) -> Tensor:
    w = w.clone().requires_grad_()
    return torch.autograd.grad(fn(x, w).sum(), w)[0]


def with_gelu(x: Tensor, w: Tensor) -> Tensor:
    return F.gelu(x @ w).sum(-1)


def with_abs(x: Tensor, w: Tensor) -> Tensor:
    return (x @ w).abs().sum(-1)


# -- edits -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["native", "aot_eager", "eager"])
def test_captured_pass_changes_values_and_gradients(backend: str) -> None:
    fast = jitmagic.jit(layer, backend=backend)
    with extend.register_pass("captured", replacing(torch.relu, F.gelu)):
        torch.testing.assert_close(fast(X, W), with_gelu(X, W))
        torch.testing.assert_close(grad_of(fast, X, W), grad_of(with_gelu, X, W))


@pytest.mark.parametrize("stage", ["joint", "forward"])
@pytest.mark.parametrize("backend", ["native", "aot_eager"])
def test_aten_pass_changes_the_values_of_inference(stage: str, backend: str) -> None:
    with extend.register_pass(stage, replacing(aten.relu.default, aten.abs.default)):
        fast = jitmagic.jit(layer, backend=backend)
        torch.testing.assert_close(fast(X, W), with_abs(X, W))


def test_backward_pass_changes_gradients_alone() -> None:
    def doubled(gm: GraphModule, context: PassContext) -> None:
        output = gm.graph.output_node()
        with gm.graph.inserting_before(output):
            made = [gm.graph.call_function(aten.mul.Tensor, (g, 2.0)) for g in output.args[0]]
        output.args = (tuple(made),)

    with extend.register_pass("backward", doubled):
        fast = jitmagic.jit(layer)
        torch.testing.assert_close(fast(X, W), layer(X, W))
        torch.testing.assert_close(grad_of(fast, X, W), 2 * grad_of(layer, X, W))


def test_joint_pass_may_replace_a_result_that_the_backward_reads() -> None:
    def rebuilt(gm: GraphModule, context: PassContext) -> None:
        for node in gm.graph.find_nodes(op="call_function", target=aten.mm.default)[:1]:
            with gm.graph.inserting_after(node):
                made = gm.graph.call_function(aten.mm.default, node.args)
            node.replace_all_uses_with(made)

    def product(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        y = x @ w
        return y, y.square().sum()

    with extend.register_pass("joint", rebuilt, training=True):
        fast = jitmagic.jit(product)
        made = grad_of(lambda x, w: fast(x, w)[1], X, W)
    torch.testing.assert_close(made, grad_of(lambda x, w: product(x, w)[1], X, W))


@pytest.mark.parametrize("stage", extend.STAGES)
@pytest.mark.parametrize("wanted", [None, True, False])
def test_pass_sees_the_graphs_that_it_is_for(stage: str, wanted: bool | None) -> None:
    seen: list[PassContext] = []
    with extend.register_pass(stage, lambda gm, c: seen.append(c), training=wanted, name="see"):
        jitmagic.jit(layer)(X, W)
        jitmagic.jit(layer)(X, W.clone().requires_grad_())
    expected = [PassContext(stage, training, "layer") for training in (False, True)]
    if stage == "backward":
        expected = expected[1:]
    assert seen == [c for c in expected if wanted in (None, c.training)]


def test_passes_run_in_the_order_of_registration() -> None:
    order: list[str] = []
    for name in ("first", "second", "third"):
        extend.register_pass("captured", lambda gm, c, name=name: order.append(name), name=name)
    jitmagic.jit(layer)(X, W)
    assert order == ["first", "second", "third"]


def test_later_pass_sees_the_edit_and_metas_of_an_earlier_one() -> None:
    seen: list[Node] = []
    extend.register_pass("captured", replacing(torch.relu, F.gelu), name="to gelu")
    extend.register_pass(
        "captured",
        lambda gm, c: seen.extend(gm.graph.find_nodes(op="call_function", target=F.gelu)),
        name="see",
    )
    jitmagic.jit(layer)(X, W)
    (node,) = seen
    assert node.meta["spec"].shape == (4, 16)
    assert node.meta["lines"][0].text.startswith("return torch.relu")


def test_symbolic_sizes_keep_one_variant_with_the_pass() -> None:
    fast = jitmagic.jit(layer, dynamic={"x": {0: None}})
    to_tanh = replacing(aten.erf.default, aten.tanh.default)
    with (
        extend.register_pass("captured", replacing(torch.relu, F.gelu), name="to gelu"),
        extend.register_pass("joint", to_tanh, name="to tanh"),
    ):
        for rows in (3, 5, 9):
            x = torch.randn(rows, 8)
            y = x @ W
            expected = (0.5 * y * (1 + torch.tanh(y / math.sqrt(2)))).sum(-1)
            torch.testing.assert_close(fast(x, W), expected)
        assert len(jitmagic.api.handle_of(fast).dispatcher.entries) == 1


def test_pass_reaches_the_graphs_behind_a_break_and_those_of_callees() -> None:
    def broken(x: Tensor, w: Tensor) -> Tensor:
        y = torch.relu(x @ w)
        jitmagic.graph_break()
        return torch.relu(y - 1)

    with extend.register_pass("captured", replacing(torch.relu, torch.abs)):
        torch.testing.assert_close(jitmagic.jit(broken)(X, W), ((X @ W).abs() - 1).abs())


def test_pass_edits_a_training_step_with_its_backward_inside() -> None:
    def step(x: Tensor, w: Tensor) -> Tensor:
        loss = torch.sigmoid(x @ w).sum()
        loss.backward()
        return loss

    def run(fn: Callable[..., Tensor], activation: Callable[[Tensor], Tensor]) -> None:
        w, v = W.clone().requires_grad_(), W.clone().requires_grad_()
        expected = activation(X @ v).sum()
        expected.backward()
        torch.testing.assert_close(fn(X, w), expected)
        torch.testing.assert_close(w.grad, v.grad)

    with extend.register_pass("captured", replacing(torch.sigmoid, torch.tanh)):
        run(jitmagic.jit(step), torch.tanh)


def test_new_calls_follow_autocast() -> None:
    def product(x: Tensor, w: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return torch.relu(x @ w)

    def twice(gm: GraphModule, context: PassContext) -> None:
        for node in gm.graph.find_nodes(op="call_function", target=torch.relu):
            with gm.graph.inserting_before(node):
                eye = gm.graph.call_function(torch.eye, (16,))
                node.args = (gm.graph.call_function(torch.mm, (node.args[0], eye)),)

    with extend.register_pass("captured", twice):
        made = jitmagic.jit(product)(X, W)
    assert made.dtype is torch.bfloat16
    torch.testing.assert_close(made, product(X, W))


# -- attention -------------------------------------------------------------------------------------


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    return (torch.softmax(scores, -1) @ v).transpose(1, 2).reshape(q.shape[0], q.shape[2], -1)


def fuse_attention(gm: GraphModule, context: PassContext) -> None:
    """Replace softmax(q @ k.T / sqrt(d)) @ v by scaled_dot_product_attention."""
    for softmax in gm.graph.find_nodes(op="call_function", target=torch.softmax):
        (scaled, _), (product,) = softmax.args, softmax.users
        scores, root = scaled.args
        query, transposed = scores.args
        with gm.graph.inserting_after(product):
            fused = gm.graph.call_function(
                F.scaled_dot_product_attention,
                (query, transposed.args[0], product.args[1]),
                {"scale": 1 / root},
            )
        product.replace_all_uses_with(fused)


@pytest.mark.parametrize("training", [False, True])
def test_pass_replaces_attention_that_is_written_out(training: bool) -> None:
    names: list[list[str]] = []

    def see(gm: GraphModule, context: PassContext) -> None:
        names.append([node.name for node in gm.graph.nodes])

    def inputs() -> list[Tensor]:
        torch.manual_seed(1)
        return [torch.randn(2, 4, 16, 8, requires_grad=training) for _ in range(3)]

    with extend.register_pass("captured", fuse_attention), extend.register_pass("captured", see):
        mine, theirs = inputs(), inputs()
        made, expected = jitmagic.jit(attention)(*mine), attention(*theirs)
    (nodes,) = names
    assert "scaled_dot_product_attention" in nodes
    assert "softmax" not in nodes
    torch.testing.assert_close(made, expected)
    assert made.stride() == expected.stride()
    if training:
        made.square().sum().backward()
        expected.square().sum().backward()
        for one, other in zip(mine, theirs, strict=True):
            torch.testing.assert_close(one.grad, other.grad)


# -- scope and names -------------------------------------------------------------------------------


def test_functions_that_were_compiled_before_follow_each_change() -> None:
    fast = jitmagic.jit(layer)
    torch.testing.assert_close(fast(X, W), layer(X, W))
    with extend.register_pass("captured", replacing(torch.relu, F.gelu)):
        torch.testing.assert_close(fast(X, W), with_gelu(X, W))
    torch.testing.assert_close(fast(X, W), layer(X, W))


def test_backward_of_a_call_inside_the_scope_keeps_the_pass() -> None:
    fast, w = jitmagic.jit(layer), W.clone().requires_grad_()
    with extend.register_pass("captured", replacing(torch.relu, F.gelu)):
        made = fast(X, w)
    made.sum().backward()
    torch.testing.assert_close(w.grad, grad_of(with_gelu, X, W))


def test_scope_ends_when_its_block_raises() -> None:
    with pytest.raises(KeyError), extend.register_pass("captured", lambda gm, c: None, name="p"):
        raise KeyError
    with pytest.raises(ValueError, match="no extension 'p'"):
        extend.unregister("p")


def test_decorator_returns_the_function_and_takes_its_name() -> None:
    @extend.register_pass("captured", training=False)
    def watch(gm: GraphModule, context: PassContext) -> None:
        seen.append(context)

    seen: list[PassContext] = []
    assert watch.__name__ == "watch"
    jitmagic.jit(layer)(X, W)
    extend.unregister("watch")
    jitmagic.jit(layer)(X, W)
    assert len(seen) == 1


def test_second_pass_of_a_name_is_refused() -> None:
    extend.register_pass("captured", lambda gm, c: None, name="mine")
    with pytest.raises(ValueError, match="there is a pass 'mine' already"):
        extend.register_pass("joint", lambda gm, c: None, name="mine")


def test_removing_twice_leaves_a_new_pass_of_the_same_name() -> None:
    first = extend.register_pass("captured", lambda gm, c: None, name="mine")
    first.remove()
    extend.register_pass("captured", lambda gm, c: None, name="mine")
    first.remove()
    extend.unregister("mine")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("plan",), "no stage 'plan'; known: captured, joint, forward, backward, loops"),
        (("captured", 3), "a pass is a function of a graph and a context, not 3"),
    ],
)
def test_wrong_arguments_are_explained(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        extend.register_pass(*arguments)


# -- wrong passes ----------------------------------------------------------------------------------


def drops_an_output(gm: GraphModule, context: PassContext) -> None:
    gm.graph.output_node().args = ((),)


def returns_a_number(gm: GraphModule, context: PassContext) -> None:
    gm.graph.output_node().args = ((1,),)


def changes_the_shape(gm: GraphModule, context: PassContext) -> None:
    (result,) = gm.graph.output_node().args[0]  # type: ignore[misc]
    with gm.graph.inserting_after(result):
        made = gm.graph.call_function(aten.unsqueeze.default, (result, 0))
    gm.graph.output_node().args = ((made,),)


def changes_the_dtype(gm: GraphModule, context: PassContext) -> None:
    (result,) = gm.graph.output_node().args[0]  # type: ignore[misc]
    with gm.graph.inserting_after(result):
        made = gm.graph.call_function(aten.gt.Scalar, (result, 0))
    gm.graph.output_node().args = ((made,),)


def uses_before_definition(gm: GraphModule, context: PassContext) -> None:
    first, last = gm.graph.find_nodes(op="placeholder")[-1], gm.graph.output_node().args[0][0]
    with gm.graph.inserting_after(first):
        made = gm.graph.call_function(aten.neg.default, (last,))
    last.args = (made, *last.args[1:])


def adds_an_input(gm: GraphModule, context: PassContext) -> None:
    with gm.graph.inserting_before(next(iter(gm.graph.nodes))):
        gm.graph.placeholder("more")


def writes_to_an_input(gm: GraphModule, context: PassContext) -> None:
    x = next(iter(gm.graph.nodes))
    with gm.graph.inserting_before(gm.graph.output_node()):
        target = "zero_" if context.stage == "captured" else aten.copy_.default
        if context.stage == "captured":
            gm.graph.call_method(target, (x,))  # type: ignore[arg-type]
        else:
            zeros = gm.graph.call_function(aten.neg.default, (x,))
            gm.graph.call_function(target, (x, zeros))  # type: ignore[arg-type]


def raises(gm: GraphModule, context: PassContext) -> None:
    raise LookupError("no such table")


def returns_a_graph(gm: GraphModule, context: PassContext) -> GraphModule:
    return gm


def has_wrong_arguments(gm: GraphModule, context: PassContext) -> None:
    (result,) = gm.graph.output_node().args[0]  # type: ignore[misc]
    with gm.graph.inserting_after(result):
        made = gm.graph.call_function(aten.mm.default, (result, result))
    gm.graph.output_node().args = ((made,),)


WRONG: dict[Any, str] = {
    drops_an_output: "it has 0 outputs, not 1",
    returns_a_number: "it has the constant 1 as output 0",
    changes_the_shape: r"it changes output 0: it is float32\[1, 4\] cpu, not float32\[4\] cpu",
    changes_the_dtype: r"it changes output 0: it is bool\[4\] cpu, not float32\[4\] cpu",
    uses_before_definition: "used before it has been defined",
    adds_an_input: "it changes the inputs, which were x, w",
    writes_to_an_input: "it writes to other inputs: x instead of none",
    raises: "raised LookupError: no such table",
    returns_a_graph: "it returned a .*: it has to edit the graph",
    has_wrong_arguments: "made a wrong graph",
}


@pytest.mark.parametrize("stage", ["captured", "joint", "forward"])
@pytest.mark.parametrize("wrong", WRONG, ids=lambda one: one.__name__)
def test_wrong_pass_is_an_error_that_names_it(wrong: Any, stage: str) -> None:
    fast = jitmagic.jit(layer)
    with (
        extend.register_pass(stage, wrong),
        pytest.raises(PassFailed, match=WRONG[wrong]) as caught,
    ):
        fast(X, W)
    assert f"the pass '{wrong.__name__}' on the {stage} graph" in str(caught.value)
    torch.testing.assert_close(fast(X, W), layer(X, W))


def test_wrong_backward_pass_is_an_error_that_names_it() -> None:
    with (
        extend.register_pass("backward", drops_an_output),
        pytest.raises(PassFailed, match="'drops_an_output' on the backward graph"),
    ):
        jitmagic.jit(layer)(X, W.clone().requires_grad_())


def test_wrong_pass_under_symbolic_sizes_is_an_error_that_names_it() -> None:
    fast = jitmagic.jit(layer, dynamic=True)
    with (
        extend.register_pass("joint", changes_the_shape),
        pytest.raises(PassFailed, match="'changes_the_shape' on the joint graph"),
    ):
        fast(X, W)


def test_aten_pass_may_not_call_other_functions_or_write_in_place() -> None:
    fast = jitmagic.jit(layer)
    for new, message in (
        (torch.abs, "it calls abs: calls of this stage are ATen overloads"),
        (aten.relu_.default, "it writes in place by aten.relu_.default"),
    ):
        with (
            extend.register_pass("joint", replacing(aten.relu.default, new)),
            pytest.raises(PassFailed, match=message),
        ):
            fast(X, W)


def test_pass_that_detaches_a_result_is_refused() -> None:
    def detach(gm: GraphModule, context: PassContext) -> None:
        for node in gm.graph.find_nodes(op="call_function", target=torch.relu):
            with gm.graph.inserting_after(node):
                made = gm.graph.call_method("detach", (node,))
            node.replace_all_uses_with(made, lambda user: user is not made)

    with (
        extend.register_pass("captured", detach),
        pytest.raises(PassFailed, match=r"it is float32\[4\] cpu, not float32\[4\] cpu grad"),
    ):
        jitmagic.jit(layer)(X, W.clone().requires_grad_())


def test_pass_that_never_ends_leaves_the_call_to_eager() -> None:
    def forever(gm: GraphModule, context: PassContext) -> None:
        while True:
            pass

    fast = jitmagic.jit(layer, options={"compile_seconds": 1.0})
    message = r"longer than 1 seconds \(pass forever"
    with (
        extend.register_pass("captured", forever),
        pytest.warns(jitmagic.FallbackWarning, match=message),
    ):
        torch.testing.assert_close(fast(X, W), layer(X, W))


def test_values_are_never_mixed_with_those_of_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JITMAGIC_KEEP", "faster")
    fast = jitmagic.jit(layer)
    with extend.register_pass("captured", replacing(torch.relu, F.gelu)):
        for _ in range(50):
            torch.testing.assert_close(fast(X, W), with_gelu(X, W))


SCALE = [2.0]  # read by the backward too, which therefore runs the region again


def checkpointed(x: Tensor, w: Tensor) -> Tensor:
    y = torch.relu(x @ w)
    return checkpoint(lambda y: y.sin().exp() * SCALE[0], y, use_reentrant=False).sum(-1)


@pytest.mark.parametrize("backend", ["native", "eager"])
def test_pass_edits_a_checkpointed_region_and_may_not_drop_what_enters_it(backend: str) -> None:
    def to_abs(gm: GraphModule, context: PassContext) -> None:
        for node in gm.graph.find_nodes(op="call_function", target=torch.relu):
            node.target = torch.abs
        for node in gm.graph.find_nodes(op="call_method", target="sin"):
            node.target = "cos"

    def expected(x: Tensor, w: Tensor) -> Tensor:
        return ((x @ w).abs().cos().exp() * SCALE[0]).sum(-1)

    fast = jitmagic.jit(checkpointed, backend=backend)
    with extend.register_pass("captured", to_abs):
        torch.testing.assert_close(grad_of(fast, X, W), grad_of(expected, X, W))
    with (
        extend.register_pass("captured", replacing(torch.relu, torch.abs)),
        pytest.raises(PassFailed, match="it drops relu, on which later stages rely"),
    ):
        grad_of(fast, X, W)
