"""DistributedDataParallel: of a tagged module, tagged itself, and called by tagged steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._composable.replicate import replicate
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from .corpus import Chain, Net, Tag, World, gradients, local, program, state, trained

SMALL = 0.0002  # megabytes of a bucket: one or two parameters
Wrap = Callable[..., nn.Module]


def _around(tag: Tag, model: nn.Module, **options: Any) -> nn.Module:
    return tag(DistributedDataParallel(model, **options))


def _inside(tag: Tag, model: nn.Module, **options: Any) -> nn.Module:
    return DistributedDataParallel(tag(model), **options)


def both_ways(title: str, graphs: int = 2, **stated: Any) -> Callable[[Any], Any]:
    """Register a program that wraps a model: `tag(DDP(model))`, and `DDP(tag(model))`. Both ways
    have the same graphs, without a break.
    """

    def register(function: Callable[[Tag, World, Wrap], Any]) -> Any:
        @program(f"tag(DDP): {title}", graphs, **stated)
        def run_around(tag: Tag, world: World) -> Any:
            return function(tag, world, _around)

        @program(f"DDP(tag): {title}", graphs, **stated)
        def run_inside(tag: Tag, world: World) -> Any:
            return function(tag, world, _inside)

        return function

    return register


@both_ways("batches of 4, 6 and 5", changing=True)
def _batches(tag: Tag, world: World, wrap: Wrap) -> Any:
    return trained(wrap(tag, Net()), world.batches(4, 6, 5))


@both_ways("batches that differ between ranks", changing=True)
def _own_batches(tag: Tag, world: World, wrap: Wrap) -> Any:
    counts = [count + 2 * world.rank for count in (4, 6, 5)]
    return trained(wrap(tag, Net()), world.batches(*counts))


@both_ways("several buckets", changing=True, order="ranks")
def _buckets(tag: Tag, world: World, wrap: Wrap) -> Any:
    model = Chain(Net(8, 16, 8), nn.Tanh(), Net(8, 16, 8), nn.Tanh(), Net())
    return trained(wrap(tag, model, bucket_cap_mb=SMALL), world.batches(4, 6, 5))


@both_ways("batch norm, whose buffers are broadcast", changing=True)
def _buffers(tag: Tag, world: World, wrap: Wrap) -> Any:
    model = Chain(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
    return trained(wrap(tag, model), world.batches(4, 6, 5))


@both_ways("gradients accumulated without synchronisation", changing=True)
def _no_sync(tag: Tag, world: World, wrap: Wrap) -> Any:
    model, answers = wrap(tag, Net()), []
    for _ in range(2):
        model.zero_grad()
        with model.no_sync():
            for batch in world.batches(4, 6):
                model(batch).square().mean().backward()
                answers.append(gradients(model))
        model(world.rows(5)).square().mean().backward()
        answers.append(gradients(model))
    return answers


@both_ways("nn.Sequential", changing=True)
def _sequential(tag: Tag, world: World, wrap: Wrap) -> Any:
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    return trained(wrap(tag, model), world.batches(4, 6, 5))


@both_ways("static graph", graphs=1)
def _static(tag: Tag, world: World, wrap: Wrap) -> Any:
    return trained(wrap(tag, Net(), static_graph=True), world.batches(4, 4, 4))


class Branching(nn.Module):
    """Uses one of two layers, as its argument says."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.last = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor, left: bool) -> Tensor:
        return self.last((self.left(x) if left else self.right(x)).relu())


@both_ways("unused parameters", graphs=3, changing=True)
def _unused(tag: Tag, world: World, wrap: Wrap) -> Any:
    model, answers = wrap(tag, Branching(), find_unused_parameters=True), []
    for place, batch in enumerate(world.batches(4, 6, 5, 6)):
        model.zero_grad()
        model(batch, place % 2 == world.rank).square().mean().backward()
        answers.append(gradients(model))
    return answers


@both_ways("gradients that are views of buckets", changing=True)
def _bucket_views(tag: Tag, world: World, wrap: Wrap) -> Any:
    model = wrap(tag, Net(), gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return trained(model, world.batches(4, 6, 5), optimizer.step)


@both_ways("hook that communicates float16", changing=True, rtol=2e-3, atol=1e-4)
def _compressed(tag: Tag, world: World, wrap: Wrap) -> Any:
    """torch's hook for bfloat16 refuses to run on gloo."""
    model = wrap(tag, Net())
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    return trained(model, world.batches(4, 6, 5))


@both_ways("PowerSGD hook", changing=True, rtol=1e-3, atol=1e-4)
def _power_sgd(tag: Tag, world: World, wrap: Wrap) -> Any:
    """Compress one matrix: of two, each would get random numbers in the order of the buckets."""
    model = wrap(tag, Chain(nn.Linear(8, 32), nn.Tanh()))
    options = {"matrix_approximation_rank": 1, "start_powerSGD_iter": 2, "min_compression_rate": 1}
    made = powerSGD_hook.PowerSGDState(process_group=None, **options)
    model.register_comm_hook(made, powerSGD_hook.powerSGD_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return trained(model, world.batches(4, 6, 5, 4), optimizer.step)


@both_ways("communication hook of the user", changing=True)
def _own_hook(tag: Tag, world: World, wrap: Wrap) -> Any:
    def hook(buckets, bucket):  # without annotations, which DDP would check
        buckets.append(bucket.buffer().numel())
        work = dist.all_reduce(bucket.buffer(), async_op=True)
        return work.get_future().then(lambda future: future.value()[0] / 4)

    model, buckets = wrap(tag, Net()), []
    model.register_comm_hook(buckets, hook)
    return trained(model, world.batches(4, 6, 5)), buckets


@both_ways("hooks of parameters", changing=True)
def _parameter_hooks(tag: Tag, world: World, wrap: Wrap) -> Any:
    net = Net()
    net.up.weight.register_hook(lambda gradient: gradient * 0.5)
    seen: list[Any] = []
    accumulated = lambda parameter: seen.append(parameter.grad.sum().item())
    net.down.bias.register_post_accumulate_grad_hook(accumulated)
    answers = trained(wrap(tag, net), world.batches(4, 6, 5))
    return answers, seen


@both_ways("join of ranks with fewer batches", changing=True, order="ranks")
def _join(tag: Tag, world: World, wrap: Wrap) -> Any:
    model = wrap(tag, Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    counts = (4, 6, 5, 6) if world.rank else (4, 6)
    with Join([model]):
        for batch in world.batches(*counts):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
    return state(model)


@both_ways("five steps of AdamW, the last batch shorter", changing=True)
def _adamw(tag: Tag, world: World, wrap: Wrap) -> Any:
    model = wrap(tag, Net())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    return trained(model, world.batches(6, 6, 6, 6, 3), optimizer.step)


@both_ways("five steps of ZeroRedundancyOptimizer", changing=True)
def _zero(tag: Tag, world: World, wrap: Wrap) -> Any:
    model = wrap(tag, Net())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.05)
    return trained(model, world.batches(6, 6, 6, 6, 3), optimizer.step)


@both_ways("evaluation without gradients, then training", graphs=3, changing=True)
def _evaluated(tag: Tag, world: World, wrap: Wrap) -> Any:
    model = wrap(tag, Chain(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 4)))
    model.eval()
    with torch.no_grad():
        answers = [local(model(batch)) for batch in world.batches(4, 6)]
    return [*answers, trained(model, world.batches(4, 6, 5))]


@both_ways("autocast to bfloat16", changing=True, rtol=2e-2, atol=1e-2)
def _autocast(tag: Tag, world: World, wrap: Wrap) -> Any:
    model, answers = wrap(tag, Net()), []
    for batch in world.batches(4, 6, 5):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(batch).square().mean()
        loss.float().backward()
        answers += [local(loss), gradients(model)]
    return answers


class Checkpointed(nn.Module):
    """Two blocks whose activations are computed again in the backward."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Net(8, 16, 8), Net(8, 16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = checkpoint(self.first, x, use_reentrant=False)
        return checkpoint(self.second, x.tanh(), use_reentrant=False)


@both_ways("checkpointed activations", changing=True)
def _checkpointed(tag: Tag, world: World, wrap: Wrap) -> Any:
    return trained(wrap(tag, Checkpointed()), world.batches(4, 6, 5))


@both_ways("two models, one of which reads the other", graphs=6, changing=True)
def _adversarial(tag: Tag, world: World, wrap: Wrap) -> Any:
    maker, critic = wrap(tag, Net(8, 16, 8)), wrap(tag, Net(8, 16, 1))
    answers = []
    for batch in world.batches(4, 6, 5):
        for model in (maker, critic):
            model.zero_grad()
        made = maker(batch)
        critic(made.detach()).mean().backward()
        answers.append(gradients(critic))
        critic.zero_grad()
        critic(made).square().mean().backward()
        answers += [gradients(maker), gradients(critic)]
    return answers


class Described(nn.Module):
    """Returns a dictionary of a tuple, and uses one layer twice."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = Net(8, 16, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor, *, scale: float = 1.0) -> dict[str, Any]:
        x = self.body(self.body(x)) * scale
        return {"logits": (self.head(x), x.mean()), "rows": x.shape[0]}


@both_ways("a result that is a dictionary, and keywords", changing=True)
def _dictionary(tag: Tag, world: World, wrap: Wrap) -> Any:
    model, answers = wrap(tag, Described()), []
    for place, batch in enumerate(world.batches(4, 6, 5)):
        model.zero_grad()
        made = model(batch, scale=1.0 + place)
        (made["logits"][0].square().mean() * made["rows"] + made["logits"][1]).backward()
        answers += [local(made["logits"][0]), gradients(model)]
    return answers


@both_ways("frozen parameters, and two forwards before a backward", changing=True)
def _twice(tag: Tag, world: World, wrap: Wrap) -> Any:
    net = Net()
    net.up.bias.requires_grad_(False)
    model, answers = wrap(tag, net), []
    for batch in world.batches(4, 6, 5):
        model.zero_grad()
        first, second = model(batch), model(batch * 2)
        (first * second).sum().backward()
        answers += [local(first), gradients(model)]
    return answers


@program("replicate(), the module tagged before", graphs=2, changing=True)
def _replicated(tag: Tag, world: World) -> Any:
    return trained(replicate(tag(Net())), world.batches(4, 6, 5))


@program("parameters averaged every second step", graphs=2, changing=True)
def _averaged(tag: Tag, world: World) -> Any:
    model = tag(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    averager = PeriodicModelAverager(period=2, warmup_steps=1)

    def step() -> None:
        optimizer.step()
        averager.average_parameters(model.parameters())

    return trained(model, world.batches(4, 6, 5, 4), step)


@program("DDP of which one rank is tagged", graphs=2, changing=True)
def _one_tagged(tag: Tag, world: World) -> Any:
    """A rank whose compiled code is slower, or is not ready, runs as eager."""
    chosen = tag if world.rank else lambda target: target
    return trained(_inside(chosen, Net()), world.batches(4, 6, 5))


@program("SyncBatchNorm, which refuses to train on CPUs", graphs=3, breaks=1, changing=True)
def _sync_batch_norm(tag: Tag, world: World) -> Any:
    model = Chain(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
    model = tag(nn.SyncBatchNorm.convert_sync_batchnorm(model))
    refused = ""
    try:
        model(world.rows())
    except ValueError as error:
        refused = str(error)
    return refused, trained(model.eval(), world.batches(4, 6, 5))


# -- tagged steps ----------------------------------------------------------------------------------


@program("a tagged step that calls DDP, its backward and AdamW", graphs=6, breaks=3, changing=True)
def _whole_step(tag: Tag, world: World) -> Any:
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    tagged = tag(step)
    return [tagged(x) for x in world.batches(4, 6, 5, 4)], gradients(model), state(model)


@program("a tagged loss of a DDP model", graphs=4, breaks=1, changing=True)
def _loss(tag: Tag, world: World) -> Any:
    model = DistributedDataParallel(Net())
    tagged = tag(lambda x, y: nn.functional.cross_entropy(model(x), y))
    answers = []
    for batch in world.batches(4, 6, 5):
        model.zero_grad()
        loss = tagged(batch, world.classes(len(batch)))
        loss.backward()
        answers += [local(loss), gradients(model)]
    return answers


@program("a tagged step that clips the gradients of a DDP model", graphs=2, changing=True)
def _clipped(tag: Tag, world: World) -> Any:
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def finish() -> Tensor:
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
        return norm

    tagged, answers = tag(finish), []
    for batch in world.batches(4, 6, 5):
        model(batch).square().mean().backward()
        answers.append(local(tagged()))
    return answers, state(model)


@program("a tagged layer of a DDP model", graphs=2, changing=True, order="ranks")
def _tagged_layer(tag: Tag, world: World) -> Any:
    model = Chain(Net(8, 16, 8), nn.Tanh(), Net())
    tag(model.layers[0])
    return trained(DistributedDataParallel(model, bucket_cap_mb=SMALL), world.batches(4, 6, 5))


@program(
    "tagged gradient accumulation by no_sync in a step",
    graphs=7,
    breaks=9,
    changing=True,
)
def _accumulated(tag: Tag, world: World) -> Any:
    model = DistributedDataParallel(Net())

    def step(first: Tensor, second: Tensor) -> Tensor:
        with model.no_sync():
            model(first).square().mean().backward()
        loss = model(second).square().mean()
        loss.backward()
        return loss.detach()

    tagged, answers = tag(step), []
    for batch in world.batches(4, 6, 5):
        model.zero_grad()
        answers += [tagged(batch, batch * 2), gradients(model)]
    return answers
