"""FSDP2: `fully_shard` before and after tagging, by layer and as a whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
    offload_wrapper,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint

from .corpus import Net, Tag, World, gradients, local, program, state, trained


class Stack(nn.Module):
    """Three blocks, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Net(8, 16, 8), Net(8, 16, 8), Net(8, 16, 4)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).tanh()
        return x


def _by_layer(world: World, **options: Any) -> nn.Module:
    model = Stack()
    for layer in model.layers:
        fully_shard(layer, mesh=world.mesh, **options)
    return fully_shard(model, mesh=world.mesh, **options)


Make = Callable[..., nn.Module]


def _tagged_first(tag: Tag, world: World, **options: Any) -> nn.Module:
    """Tag each layer, then shard it, as torchtitan does."""
    model = Stack()
    for layer in model.layers:
        fully_shard(tag(layer), mesh=world.mesh, **options)
    return fully_shard(model, mesh=world.mesh, **options)


def _tagged_layers(tag: Tag, world: World, **options: Any) -> nn.Module:
    """Tag each layer after it was sharded."""
    model = _by_layer(world, **options)
    for layer in model.layers:
        tag(layer)
    return model


def _tagged_whole(tag: Tag, world: World, **options: Any) -> nn.Module:
    return tag(_by_layer(world, **options))


def _tagged_then_sharded(tag: Tag, world: World, **options: Any) -> nn.Module:
    return fully_shard(tag(Stack()), mesh=world.mesh, **options)


FIRST, LATER = "layers tagged, then sharded", "layers sharded, then tagged"
WHOLE, ONCE = "sharded by layer, tagged as a whole", "tagged, then sharded as a whole"
WAYS = {
    FIRST: _tagged_first,
    LATER: _tagged_layers,
    WHOLE: _tagged_whole,
    ONCE: _tagged_then_sharded,
}
BY_LAYER = {FIRST: (6, 0), WHOLE: (9, 5)}


def each_way(
    title: str, expected: dict[str, tuple[int, int]] = BY_LAYER, **stated: Any
) -> Callable[[Any], Any]:
    """Register a program that makes a model, for some of the ways to tag and shard it.

    `expected` has the graphs and breaks of each way. torch.compile captures each layer, without
    breaks, and leaves the frame of the whole to eager.
    """

    def register(function: Callable[[Tag, World, Make], Any]) -> Any:
        for way, counts in expected.items():

            @program(f"FSDP2, {way}: {title}", *counts, **stated)
            def run(tag: Tag, world: World, make: Make = WAYS[way]) -> Any:
                return function(tag, world, make)

        return function

    return register


@each_way(
    "batches of 4, 6 and 5",
    {FIRST: (6, 0), LATER: (6, 0), WHOLE: (9, 5), ONCE: (2, 0)},
    changing=True,
)
def _batches(tag: Tag, world: World, make: Make) -> Any:
    return trained(make(tag, world), world.batches(4, 6, 5))


@each_way("no reshard after the forward", changing=True)
def _no_reshard(tag: Tag, world: World, make: Make) -> Any:
    return trained(make(tag, world, reshard_after_forward=False), world.batches(4, 6, 5))


@each_way("mixed precision", changing=True, rtol=2e-2, atol=1e-2)
def _mixed(tag: Tag, world: World, make: Make) -> Any:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return trained(make(tag, world, mp_policy=policy), world.batches(4, 6, 5))


@each_way("resharded to both ranks after the forward", changing=True)
def _resharded(tag: Tag, world: World, make: Make) -> Any:
    return trained(make(tag, world, reshard_after_forward=2), world.batches(4, 6, 5))


@each_way("mixed precision, results of float32", changing=True, rtol=2e-2, atol=1e-2)
def _mixed_results(tag: Tag, world: World, make: Make) -> Any:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, output_dtype=torch.float32)
    return trained(make(tag, world, mp_policy=policy), world.batches(4, 6, 5))


@each_way("activations saved on the CPU", changing=True)
def _saved_on_cpu(tag: Tag, world: World, make: Make) -> Any:
    model = make(tag, world)
    with torch.autograd.graph.save_on_cpu():
        return trained(model, world.batches(4, 6, 5))


@each_way("clipped gradients and AdamW foreach", changing=True)
def _clipped(tag: Tag, world: World, make: Make) -> Any:
    model = make(tag, world)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, foreach=True)
    norms = []

    def finish() -> None:
        norms.append(local(nn.utils.clip_grad_norm_(model.parameters(), 0.1)))
        optimizer.step()

    return trained(model, world.batches(4, 6, 6, 6, 3), finish), norms


@each_way("fused AdamW", changing=True)
def _fused(tag: Tag, world: World, make: Make) -> Any:
    model = make(tag, world)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, fused=True)
    return trained(model, world.batches(4, 6, 6, 6, 3), optimizer.step)


@each_way(
    "evaluation without gradients, then training", {FIRST: (9, 0), WHOLE: (12, 9)}, changing=True
)
def _evaluated(tag: Tag, world: World, make: Make) -> Any:
    model = make(tag, world)
    with torch.no_grad():
        answers = [local(model(batch)) for batch in world.batches(4, 6)]
    return [*answers, trained(model, world.batches(4, 6, 5))]


@each_way("gradients accumulated without synchronisation", changing=True)
def _accumulated(tag: Tag, world: World, make: Make) -> Any:
    model, answers = make(tag, world), []
    for place, batch in enumerate(world.batches(4, 6, 5)):
        model.set_requires_gradient_sync(place == 2)
        model(batch).square().mean().backward()
    answers.append(gradients(model))
    return answers


@program("FSDP2, checkpointed layers, tagged, then sharded", graphs=6, changing=True)
def _checkpointed_layers(tag: Tag, world: World) -> Any:
    model = Stack()
    apply_activation_checkpointing(model, check_fn=lambda module: isinstance(module, Net))
    for layer in model.layers:
        fully_shard(tag(layer), mesh=world.mesh)
    return trained(fully_shard(model, mesh=world.mesh), world.batches(4, 6, 5))


class Residual(nn.Module):
    """A checkpointed part in a block."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Net(8, 16, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + checkpoint(self.inner, x.tanh(), use_reentrant=False)


class Blocks(nn.Module):
    """Equal blocks between an embedding and a head."""

    def __init__(self, make: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.embedding, self.head = nn.Linear(8, 8), nn.Linear(8, 4)
        self.blocks = nn.ModuleList([make() for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        x = self.embedding(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def _whole_blocks(tag: Tag, world: World, make: Callable[[], nn.Module]) -> nn.Module:
    model = Blocks(make)
    for block in model.blocks:
        fully_shard(block, mesh=world.mesh)
    return tag(fully_shard(model, mesh=world.mesh))


@program("FSDP2, equal blocks of a tagged model share one graph", 3, 2)
def _equal_blocks(tag: Tag, world: World) -> Any:
    model = _whole_blocks(tag, world, lambda: Net(8, 16, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    return trained(model, world.batches(4, 4, 4), optimizer.step)


@program("FSDP2, a part of each block of a tagged model is checkpointed", 3, 2)
def _checkpointed_parts(tag: Tag, world: World) -> Any:
    return trained(_whole_blocks(tag, world, Residual), world.batches(4, 4, 4))


@program("FSDP2, activations of each block of a tagged model offloaded", 3, 2)
def _offloaded_activations(tag: Tag, world: World) -> Any:
    model = _whole_blocks(tag, world, lambda: offload_wrapper(Net(8, 16, 8)))
    return trained(model, world.batches(4, 4, 4))


@program("FSDP2, a tagged step that clips and runs fused AdamW", 6, 4)
def _fused_step(tag: Tag, world: World) -> Any:
    model = _whole_blocks(tag, world, lambda: Net(8, 16, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, fused=True)
    norms: list[Any] = []

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.1))
        optimizer.step()
        return loss.detach()

    tagged = tag(step)
    losses = [tagged(x) for x in world.batches(4, 4, 4)]
    return losses, [local(norm) for norm in norms], state(model)


@program("FSDP2, a tagged step with its backward and AdamW", graphs=13, breaks=8, changing=True)
def _whole_step(tag: Tag, world: World) -> Any:
    model = _by_layer(world)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    tagged = tag(step)
    return [tagged(x) for x in world.batches(4, 6, 5, 4)], gradients(model), state(model)


@program("FSDP2, a tagged optimizer step over DTensors", graphs=2)
def _optimizer(tag: Tag, world: World) -> Any:
    model = _by_layer(world)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    tagged = tag(lambda: optimizer.step())
    return trained(model, world.batches(4, 6, 5), tagged)


@program("FSDP2, a tagged clip over DTensors", graphs=1)
def _clip(tag: Tag, world: World) -> Any:
    model = _by_layer(world)
    clip = tag(lambda: nn.utils.clip_grad_norm_(model.parameters(), 0.1))
    norms: list[Any] = []
    return trained(model, world.batches(4, 6, 5), lambda: norms.append(local(clip()))), norms


@program("FSDP2, parameters gathered in full by tagged code")
def _gathered(tag: Tag, world: World) -> Any:
    model = _by_layer(world)
    tagged = tag(lambda: [p.full_tensor().sum() for p in model.parameters()])
    return [local(value) for value in tagged()]


@program("FSDP2, offloaded to the CPU, tagged, then sharded", graphs=6, changing=True)
def _offloaded(tag: Tag, world: World) -> Any:
    model = _tagged_first(tag, world, offload_policy=CPUOffloadPolicy(pin_memory=False))
    return trained(model, world.batches(4, 6, 5))


@program("FSDP2, replicated and sharded on a mesh of 1 x 2", graphs=6, changing=True)
def _hybrid(tag: Tag, world: World) -> Any:
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("replicated", "sharded"))
    model = Stack()
    for layer in model.layers:
        fully_shard(tag(layer), mesh=mesh)
    return trained(fully_shard(model, mesh=mesh), world.batches(4, 6, 5))


class Tied(nn.Module):
    """An embedding whose weight is the head's too, of a size that does not divide evenly."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.body = nn.Embedding(7, 5), Net(5, 9, 5)
        self.head = nn.Linear(5, 7, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.embedding(x)))


@program("FSDP2, tied weights and uneven shards", graphs=2, changing=True)
def _tied(tag: Tag, world: World) -> Any:
    model = fully_shard(tag(Tied()), mesh=world.mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    return trained(model, [world.classes(count, 7) for count in (4, 6, 5)], optimizer.step)


@program("FSDP2, two layers in one group, and a frozen one", graphs=6, changing=True)
def _grouped(tag: Tag, world: World) -> Any:
    model = Stack()
    model.layers[2].requires_grad_(False)
    first, second, last = (tag(layer) for layer in model.layers)
    fully_shard([first, second], mesh=world.mesh)
    fully_shard(last, mesh=world.mesh)
    model = fully_shard(model, mesh=world.mesh)
    answers = []
    for batch in world.batches(4, 6, 5):
        model.zero_grad()
        model(batch).square().mean().backward()
        answers.append([local(p.grad) for p in model.parameters() if p.requires_grad])
    return answers


@program("FSDP2, a tagged step by list operations, with the optimizer's first", graphs=8, breaks=6)
def _listed_step(tag: Tag, world: World) -> Any:
    """On a GPU, AdamW updates lists as it comes; its state is made in the first step."""
    model = _by_layer(world)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, foreach=True)

    @tag
    def step(x: Tensor) -> Tensor:
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    losses = [local(step(batch)) for batch in world.batches(4, 4, 4)]
    return [*losses, state(model)]
