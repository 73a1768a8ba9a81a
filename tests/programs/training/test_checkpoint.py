"""Activation checkpointing around and inside of compiled code: what it saves it must meet again."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.fx import GraphModule
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)

import jitmagic
from jitmagic.api import handle_of
from jitmagic.autograd.result import Partition
from jitmagic.errors import Unsupported
from jitmagic.records import COMPILED
from jitmagic.spec import TensorSpec
from tests.covering import covered

LAYER = nn.Linear(3, 3)
with torch.no_grad():
    LAYER.weight.copy_(torch.linspace(-0.6, 0.5, 9).view(3, 3))
    LAYER.bias.copy_(torch.linspace(0.1, 0.3, 3))


def block(x: Tensor) -> Tensor:
    return (LAYER(x).tanh() * x).exp().sin()


def inside(x: Tensor) -> Tensor:
    return checkpoint(lambda q: LAYER(q).tanh(), x * 2, use_reentrant=False) + 1


def reentrant(x: Tensor) -> Tensor:
    return checkpoint(block, x * 2, use_reentrant=True) + 1


def in_segments(x: Tensor) -> Tensor:
    layers = [LAYER, nn.ReLU(), LAYER]
    return checkpoint_sequential(layers, 2, x * 2, use_reentrant=False).sin()


def outside(x: Tensor, function: Callable[[Tensor], Tensor] = block) -> Tensor:
    return checkpoint(function, x, use_reentrant=False) * 2


def agree(function: Callable[[Tensor], Tensor], eager: Callable[[Tensor], Tensor]) -> None:
    for seed in range(3):
        shown = []
        for run in (function, eager):
            torch.manual_seed(seed)
            x = torch.randn(2, 3, requires_grad=True)
            LAYER.zero_grad()
            made = run(x)
            made.sum().backward()
            shown.append((made.detach(), x.grad, LAYER.weight.grad.clone()))
        for ours, wanted in zip(*shown, strict=True):
            torch.testing.assert_close(ours, wanted)


def with_dropout(x: Tensor) -> Tensor:
    def drop(q: Tensor) -> Tensor:
        return nn.functional.dropout(LAYER(q).relu(), 0.5) * q

    return checkpoint(drop, checkpoint(drop, x, use_reentrant=False), use_reentrant=False)


def with_keywords(x: Tensor) -> tuple[Tensor, ...] | Tensor:
    def pair(q: Tensor, *, scale: float) -> tuple[Tensor, Tensor]:
        return LAYER(q).tanh() * scale, q.view(-1)

    found, flat = checkpoint(pair, x * 2, use_reentrant=False, scale=3.0)
    return found.exp() + flat.view_as(found)


def nested_regions(x: Tensor) -> Tensor:
    def outer(q: Tensor) -> Tensor:
        return checkpoint(block, q, use_reentrant=False).cos() * q

    return checkpoint(outer, x + 1, use_reentrant=False)


def in_place_inside(x: Tensor) -> Tensor:
    return checkpoint(lambda q: LAYER(q).relu_() * 2, x * 2, use_reentrant=False).exp()


def under_autocast(x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return checkpoint(block, x, use_reentrant=False).float()


FOLLOWED = [
    reentrant, inside, in_segments, outside, with_dropout, with_keywords, nested_regions,
    in_place_inside, under_autocast,
]  # fmt: skip


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("function", FOLLOWED)
def test_a_checkpoint_is_part_of_the_graph(
    function: Callable[[Tensor], Tensor], backend: str
) -> None:
    agree(jitmagic.jit(function, backend=backend, fullgraph=True), function)


def saved_bytes(parts: Partition) -> int:
    flat = parts.forward.graph.output_node().args[0][parts.results :]
    return sum(spec_bytes(node.meta["spec"]) for node in flat)


def spec_bytes(spec: TensorSpec) -> int:
    return math.prod(spec.shape) * spec.dtype.itemsize


def of_blocks(run: Callable[[Callable[[Tensor], Tensor], Tensor], Tensor]) -> Partition:
    """Three blocks of two products and a draw, each called by `run`."""
    weights = [torch.randn(16, 16, requires_grad=True) for _ in range(3)]

    def fn(x: Tensor) -> Tensor:
        for w in weights:
            x = run(lambda q, w=w: nn.functional.dropout((q @ w).tanh() @ w, 0.5).exp() + q, x)
        return x.sum()

    compiled = jitmagic.jit(fn, backend="aot_eager", fullgraph=True)
    compiled(torch.randn(8, 16, requires_grad=True)).backward()
    (found,) = [part for r in handle_of(compiled).journal if (part := r.result("partition"))]
    return found


@pytest.mark.parametrize("amp", [False, True])
def test_a_region_keeps_little(amp: bool) -> None:
    """With autocast what backward of eager needs is a cast of each weight: that is cast again."""
    with torch.autocast("cpu", torch.bfloat16, enabled=amp):
        regions = of_blocks(lambda block, x: checkpoint(block, x, use_reentrant=False))
        plain = of_blocks(lambda block, x: block(x))
    assert saved_bytes(regions) * 1.4 < saved_bytes(plain)
    assert products(regions.backward) == products(plain.backward) + 6


def products(module: GraphModule) -> int:
    return sum(node.target is torch.ops.aten.mm.default for node in module.graph.nodes)


def test_a_region_keeps_what_enters_it_and_its_draws() -> None:
    regions = of_blocks(lambda block, x: checkpoint(block, x, use_reentrant=False))
    plain = of_blocks(lambda block, x: block(x))
    draws, entered = 3 * 8 * 16 * 4, 2 * 8 * 16 * 4
    assert saved_bytes(regions) == draws + entered < saved_bytes(plain)
    assert (products(plain.forward), products(plain.backward)) == (6, 12)
    assert (products(regions.forward), products(regions.backward)) == (6, 18)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.calls = nn.BatchNorm1d(3), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.norm(LAYER(x))


def statistics() -> tuple[Callable[[Tensor], Tensor], Callable[[], list[object]]]:
    norm = nn.BatchNorm1d(3)
    table = lambda: [norm.running_mean, norm.running_var, norm.num_batches_tracked]  # noqa: E731
    return lambda x: checkpoint(norm, LAYER(x), use_reentrant=False), table


def counted() -> tuple[Callable[[Tensor], Tensor], Callable[[], list[object]]]:
    module = Counting().eval()
    return lambda x: checkpoint(module, x, use_reentrant=False), lambda: [module.calls]


def written_outside() -> tuple[Callable[[Tensor], Tensor], Callable[[], list[object]]]:
    seen = torch.zeros(3)

    def note(x: Tensor) -> Tensor:
        seen.add_(x.detach().sum(0))
        return LAYER(x).tanh()

    return lambda x: checkpoint(note, x, use_reentrant=False), lambda: [seen]


def other_draws() -> tuple[Callable[[Tensor], Tensor], Callable[[], list[object]]]:
    def drop(x: Tensor) -> Tensor:
        return checkpoint(
            lambda q: nn.functional.dropout(LAYER(q).exp()),
            x,
            use_reentrant=False,
            preserve_rng_state=False,
        )

    return drop, lambda: [torch.get_rng_state()]


@pytest.mark.parametrize("make", [statistics, counted, written_outside, other_draws])
def test_what_a_second_run_changes_again_is_a_break(
    make: Callable[[], tuple[Callable[[Tensor], Tensor], Callable[[], list[object]]]],
) -> None:
    (function, state), (plain, wanted) = make(), make()
    compiled = jitmagic.jit(function)
    shown: list[list[object]] = []
    for run, seen in ((compiled, state), (plain, wanted)):
        LAYER.zero_grad()
        torch.manual_seed(0)
        for _ in range(3):
            x = torch.randn(4, 3, requires_grad=True)
            run(x * 1).sum().backward()
        shown.append([LAYER.weight.grad.clone(), x.grad, *map(copy.deepcopy, seen())])
    for ours, eagers in zip(*shown, strict=True):
        torch.testing.assert_close(ours, eagers)
    with pytest.raises(Unsupported, match=r"checkpoint\(\) stays outside"):
        jitmagic.jit(make()[0], fullgraph=True)(torch.randn(4, 3, requires_grad=True))


@pytest.mark.parametrize("function", [inside, in_segments, outside, with_dropout, reentrant])
def test_a_compiled_function_checkpoints(function: Callable[[Tensor], Tensor]) -> None:
    agree(jitmagic.jit(function), function)


def test_a_compiled_block_is_checkpointed() -> None:
    compiled = jitmagic.jit(block)
    agree(lambda x: outside(x, compiled), outside)
    assert jitmagic.api.handle_of(compiled).outcome == COMPILED


def test_both_are_compiled() -> None:
    function, compiled = jitmagic.jit(outside), jitmagic.jit(block)
    agree(lambda x: function(x, compiled), outside)


def test_a_compiled_module_is_checkpointed() -> None:
    plain = nn.Sequential(LAYER, nn.Tanh())
    module = jitmagic.jit(nn.Sequential(LAYER, nn.Tanh()))
    agree(lambda x: outside(x, module), lambda x: outside(x, plain))


def test_hooks_never_see_what_a_compile_saves() -> None:
    seen: list[torch.device] = []

    def pack(tensor: Tensor) -> Tensor:
        seen.append(tensor.device)
        return tensor

    compiled, x = jitmagic.jit(block), torch.randn(2, 3, requires_grad=True)
    counts = []
    for _ in range(2):
        with saved_tensors_hooks(pack, lambda tensor: tensor):
            compiled(x).sum().backward()
        counts.append(len(seen))
    assert set(seen) == {torch.device("cpu")}
    assert counts[1] == 2 * counts[0]  # the call that compiled saved no more than the next one


def test_what_a_hook_raises_reaches_the_caller_once() -> None:
    calls = []

    def pack(tensor: Tensor) -> Tensor:
        calls.append(tensor)
        raise KeyError("packed")

    compiled, x = jitmagic.jit(block), torch.randn(2, 3, requires_grad=True)
    compiled(x)
    with saved_tensors_hooks(pack, lambda tensor: tensor), pytest.raises(KeyError, match="packed"):
        compiled(x)
    assert len(calls) == 1
    assert jitmagic.api.handle_of(compiled).outcome == COMPILED


class Block(nn.Module):
    """A parameter, a buffer and a plain tensor, of which backward needs the values."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-0.6, 0.5, 9).view(3, 3))
        self.register_buffer("scale", torch.linspace(0.5, 1.5, 3))
        self.plain = torch.linspace(0.3, 0.9, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu((x * self.scale) @ self.weight * self.plain)

    def named(self, x: Tensor) -> dict[str, Tensor]:
        tensors = {"parameter": self.weight, "buffer": self.scale, "attribute": self.plain}
        return {**tensors, "input": x}


def replace_data(tensor: Tensor) -> None:
    tensor.data = tensor.data * 1.5 + 0.25


def write_data(tensor: Tensor) -> None:
    tensor.data.add_(0.5)


def write_array(tensor: Tensor) -> None:
    tensor.detach().numpy()[...] += 0.5


def one_region(block: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return checkpoint(block, x, use_reentrant=False)


def read_after(block: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return checkpoint(block, x * 2, use_reentrant=False).sin()


def two_regions(block: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return checkpoint(block, checkpoint(block, x, use_reentrant=False), use_reentrant=False)


@covered(
    target=["parameter", "buffer", "attribute", "input"],
    write=[replace_data, write_data, write_array],
    program=[one_region, read_after, two_regions],
    options=[{}, {"backend": "aot_eager"}, {"dynamic": True}],
)
def test_a_region_reads_tensors_as_they_are_when_backward_runs(target, write, program, options):
    """No version counter sees these writes: what is recomputed reads the new values, and all that
    eager has saved outside of the region stays as it was."""
    shown = []
    for wrap in (lambda run: jitmagic.jit(run, **options), lambda run: run):
        block, gradients = Block(), []
        run = wrap(lambda x, block=block: program(block, x))
        for size in (2, 4):
            x = torch.linspace(-1, 1, size * 3).view(size, 3).requires_grad_()
            made = run(x)
            write(block.named(x)[target])
            gradients += torch.autograd.grad(made.exp().sum(), (x, block.weight))
        shown.append(gradients)
    torch.testing.assert_close(*shown)


# -- selective checkpointing -----------------------------------------------------------------------

MM, SCALE = torch.ops.aten.mm.default, [2.0]


def two_products(x: Tensor, y: Tensor) -> Tensor:
    return torch.sigmoid((x @ y).sin() @ y) * y * SCALE[0]


def saves_products(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    is_square = op is MM and args[0].shape == args[1].shape
    return CheckpointPolicy.MUST_SAVE if is_square else CheckpointPolicy.PREFER_RECOMPUTE


def every_second_product() -> Any:
    seen = []

    def policy(context: Any, op: Any, *args: Any, **kwargs: Any) -> bool:
        seen.extend([op] if op is MM else [])
        return op is MM and len(seen) % 2 == 0

    return create_selective_checkpoint_contexts(policy)


def of_products(context_fn: Callable[[], Any], x: Tensor, y: Tensor) -> Tensor:
    made = checkpoint(two_products, x, y, use_reentrant=False, context_fn=context_fn)
    return made.square().sum()


OPERATORS_TO_SAVE = [MM]
POLICIES = {  # each with the number of products in the backward, of which 4 are gradients
    "a function": (partial(create_selective_checkpoint_contexts, saves_products), 4),
    "a list": (partial(create_selective_checkpoint_contexts, OPERATORS_TO_SAVE), 4),
    "a count": (every_second_product, 5),
    "nothing": (lambda: create_selective_checkpoint_contexts(lambda *call, **named: False), 6),
}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("options", [{}, {"backend": "aot_eager"}, {"backend": "eager"}])
def test_a_policy_saves_what_it_names(policy: str, options: dict[str, Any]) -> None:
    context_fn, left = POLICIES[policy]
    compiled = jitmagic.jit(partial(of_products, context_fn), fullgraph=True, **options)
    for _ in range(2):
        x, y = (torch.randn(4, 4, requires_grad=True) for _ in range(2))
        made, wanted = compiled(x, y), of_products(context_fn, x, y)
        found = torch.autograd.grad(made, (x, y))
        torch.testing.assert_close(found, torch.autograd.grad(wanted, (x, y)))
    for record in handle_of(compiled).journal:
        if (parts := record.result("partition")) is not None:
            assert products(parts.backward) == left


@pytest.mark.filterwarnings("ignore::jitmagic.errors.FallbackWarning")
@pytest.mark.parametrize("policy", ["a function", "a count"])
def test_a_region_with_a_policy_runs_again_if_facts_changed(policy: str) -> None:
    context_fn, _ = POLICIES[policy]
    shown = []
    for run in (jitmagic.jit(partial(of_products, context_fn)), partial(of_products, context_fn)):
        x, y = (torch.linspace(-1, 1, 16).view(4, 4).requires_grad_() for _ in range(2))
        made = run(x, y)
        SCALE[0] = 3.0
        try:
            shown.append(torch.autograd.grad(made, (x, y)))
        finally:
            SCALE[0] = 2.0
    torch.testing.assert_close(*shown)


@pytest.mark.filterwarnings("ignore::jitmagic.errors.FallbackWarning")
def test_a_policy_that_raises_runs_as_eager() -> None:
    def fails(context: Any, op: Any, *args: Any, **kwargs: Any) -> bool:
        raise KeyError("of the policy")

    context_fn = partial(create_selective_checkpoint_contexts, fails)
    compiled = jitmagic.jit(partial(of_products, context_fn))
    x = torch.randn(4, 4, requires_grad=True)
    with pytest.raises(KeyError, match="of the policy"):
        compiled(x, x)


# -- the reentrant form ----------------------------------------------------------------------------


def test_the_reentrant_form_refuses_grad() -> None:
    x, message = torch.randn(2, 3, requires_grad=True), "use_reentrant=True"
    for run in (jitmagic.jit(reentrant, fullgraph=True), reentrant):
        with pytest.raises(RuntimeError, match=message):
            torch.autograd.grad(run(x).sum(), x)
        with pytest.raises(RuntimeError, match=message):
            run(x).sum().backward(inputs=[x])


def of_constants(x: Tensor) -> Tensor:
    return checkpoint(block, x.detach(), use_reentrant=True) + x


def with_other_result(x: Tensor) -> Tensor:
    made, other = checkpoint(lambda q: (q.sin(), LAYER.bias.detach() * 2), x, use_reentrant=True)
    return made + other


def of_the_argument(x: Tensor) -> Tensor:
    return checkpoint(lambda q: q.view(-1), x, use_reentrant=True).exp()


def captures(x: Tensor) -> Tensor:
    hidden = x.sin()
    return checkpoint(lambda q: q * hidden, x, use_reentrant=True)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("function", [of_constants, with_other_result, of_the_argument, captures])
def test_other_reentrant_forms_are_as_eager(function: Callable[[Tensor], Tensor]) -> None:
    shown = []
    for run in (jitmagic.jit(function), function):
        x, parameters = torch.linspace(-1, 1, 6).view(2, 3).requires_grad_(), []
        LAYER.zero_grad()
        made = run(x)
        try:
            made.sum().backward()
            parameters = [p.grad for p in LAYER.parameters()]
        except RuntimeError as error:
            parameters = [str(error)[:40]]
        shown.append((made.detach(), made.requires_grad, x.grad, *parameters))
    torch.testing.assert_close(shown[0][0], shown[1][0])
    assert shown[0][1] == shown[1][1]
    for ours, wanted in zip(shown[0][2:], shown[1][2:], strict=True):
        if isinstance(wanted, Tensor):
            torch.testing.assert_close(ours, wanted)
        else:
            assert ours == wanted
