"""Runs as one of four ranks: groups of two, meshes of 2 x 2, unequal batches; beside eager twins.

python -m tests.distributed.four RANK SIZE FOLDER
"""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves

import jitmagic
from jitmagic.api import handle_of

from .corpus import Net, local
from .launching import answer, leave

_SETTLING = 0.6  # seconds in which every rank has read its notes, five times a second
OPTIONS = {"persist": False, "keep": "compiled"}


def _tag(target: Any) -> Any:
    return jitmagic.jit(target, options=OPTIONS)


def _batches(rank: int, counts: tuple[int, ...] = (4, 6, 5, 7)) -> Iterator[Tensor]:
    for count in counts:
        seeded = torch.Generator().manual_seed(10 * rank + count)
        yield torch.randn(count, 8, generator=seeded)


def _losses(model: nn.Module, rank: int) -> list[Any]:
    """Train a few steps; return losses and the parameters that this rank holds."""
    optimizer, found = torch.optim.SGD(model.parameters(), lr=0.1), []
    for x in _batches(rank):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        found.append(loss.detach())
    return [*map(local, found), *(local(one) for one in model.parameters())]


def _trained(make: Callable[[nn.Module, bool], nn.Module], rank: int) -> None:
    """Compare a model that is compiled with its twin."""
    torch.manual_seed(0)
    model = Net()
    twins = [make(copy.deepcopy(model), tagged) for tagged in (True, False)]
    for made, wanted in zip(*(tree_leaves(_losses(one, rank)) for one in twins), strict=True):
        if isinstance(made, Tensor):
            torch.testing.assert_close(made, wanted, rtol=1e-4, atol=1e-5)
        else:
            assert made == wanted  # how a parameter is divided


def groups(rank: int) -> int:
    """Reduce in two groups of two, one of which has sizes that vary; return the compiles."""
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    own = pairs[rank // 2]

    def reduced(x: Tensor) -> Tensor:
        total = x.sin().sum(0)
        dist.all_reduce(total, group=own)
        return total.cos()

    tagged = _tag(reduced)
    for step in range(8):
        x = torch.randn(4 + step % 3 if rank < 2 and step > 2 else 4, 8)
        torch.testing.assert_close(tagged(x), reduced(x))
        dist.barrier()
        time.sleep(_SETTLING if step == 4 else 0)
    handle = handle_of(tagged)
    assert handle is not None
    return sum(record.result("trace") is not None for record in handle.journal)


def shapes(rank: int) -> None:
    """Let each rank have columns of its own."""

    def normed(x: Tensor) -> Tensor:
        total = x.square().sum()
        dist.all_reduce(total)
        return x / total.sqrt()

    tagged = _tag(normed)
    for rows in (3, 5, 4):
        x = torch.randn(rows, 2 + rank)
        torch.testing.assert_close(tagged(x), normed(x))


def hybrid_sharded(rank: int) -> None:
    """Shard over one dimension of a mesh and replicate over the other."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))

    def make(model: nn.Module, tagged: bool) -> nn.Module:
        return fully_shard(_tag(model) if tagged else model, mesh=mesh)

    _trained(make, rank)


def tensor_parallel(rank: int) -> None:
    """Divide layers over one dimension of a mesh, and batches over the other."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "model"))
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}

    def make(model: nn.Module, tagged: bool) -> nn.Module:
        model = parallelize_module(model, mesh["model"], plan)
        return fully_shard(_tag(model) if tagged else model, mesh=mesh["data"])

    _trained(make, rank // 2)


def joined(rank: int) -> None:
    """Train with more batches on some ranks, whose last one is short."""
    states = []
    for tagged in (True, False):
        torch.manual_seed(0)
        model = DistributedDataParallel(_tag(Net()) if tagged else Net())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with Join([model]):
            for x in _batches(rank, (4,) * (2 + rank) + (1 + rank,)):
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
        states.append([local(one) for one in model.parameters()])
    torch.testing.assert_close(*states, rtol=1e-4, atol=1e-5)


def small_collectives(rank: int) -> None:
    """Join collectives of all ranks, and of pairs, where two floats are added in one order only."""
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    own, everyone = pairs[rank // 2], dist.group.WORLD

    def mixed(x: Tensor) -> list[Tensor]:
        found = []
        for group in (everyone, own):
            found += [funcol.all_gather_tensor(x * n, 0, group) for n in (1, 2)]
            found += [funcol.all_reduce(x[0] * n, "sum", group) for n in (1, 2, 4)]
            found += [funcol.all_reduce((x[n] > 0).sum(), "sum", group) for n in (0, 1)]
        return found

    tagged = jitmagic.jit(mixed, options={"persist": False, "collectives": "joined"})
    for x in _batches(rank, (4, 6, 5)):
        for made, wanted in zip(tagged(x), mixed(x), strict=True):
            assert torch.equal(made, wanted)
    handle = handle_of(tagged)
    assert handle is not None
    for record in handle.journal:
        joined = record.result("forward: join collectives")
        kinds = [(one.kind.removesuffix("_into_tensor"), one.count) for one in joined.found]
        assert sorted(kinds) == [
            ("all_gather", 2), ("all_gather", 2),
            ("all_reduce", 2), ("all_reduce", 2), ("all_reduce", 3),
        ], kinds  # fmt: skip


def main() -> None:
    rank, size, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    compiles = groups(rank)
    for run in (shapes, hybrid_sharded, tensor_parallel, joined, small_collectives):
        print(run.__name__, flush=True)
        run(rank)
    answer(compiles)
    leave()


if __name__ == "__main__":
    main()
