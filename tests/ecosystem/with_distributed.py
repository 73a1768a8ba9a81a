"""torch.distributed on one process: functional collectives, DTensor, parallelised modules."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.testing._internal.distributed.fake_pg import FakeStore

from .case import Tag, case
from .tensor_programs import rows, square

LIBRARY = "distributed"


@contextmanager
def group(backend: str, size: int) -> Any:
    """Initialise a process group of this process; one of several ranks is fake."""
    with tempfile.TemporaryDirectory() as folder:
        store = FakeStore() if backend == "fake" else dist.FileStore(folder + "/store", size)
        dist.init_process_group(backend, store=store, rank=0, world_size=size)
        try:
            yield init_device_mesh("cpu", (size,))
        finally:
            dist.destroy_process_group()


Program = Callable[[Tag, Any], Any]
PROGRAMS: dict[str, Program] = {}
"""The programs that run on any number of processes."""


def distributed(title: str, fake: int = 0) -> Callable[[Program], Program]:
    """Register a program of a mesh: of one process, or the first of `fake` processes."""

    def register(program: Program) -> Program:
        if not fake:
            PROGRAMS[title] = program

        @case(LIBRARY, title)
        def run(tag: Tag) -> Any:
            with group("fake" if fake else "gloo", fake or 1) as mesh:
                return program(tag, mesh)

        return program

    return register


# -- functional collectives ------------------------------------------------------------------------


def _reduced(x: Tensor, mesh: Any) -> Tensor:
    return funcol.all_reduce(x * 2, "sum", mesh) + 1


def _gathered(x: Tensor, mesh: Any) -> Tensor:
    return funcol.all_gather_tensor(x.sin(), 0, mesh) * 2


def _scattered(x: Tensor, mesh: Any) -> Tensor:
    return funcol.reduce_scatter_tensor(x.sin(), "avg", 0, mesh).cos()


def _waited(x: Tensor, mesh: Any) -> Tensor:
    made = funcol.all_reduce(x.sin(), "sum", mesh)
    other = x.cos()
    return funcol.wait_tensor(made) + other


def _returned(x: Tensor, mesh: Any) -> Tensor:
    return funcol.all_reduce(x.sin(), "sum", mesh)


def _unused(x: Tensor, mesh: Any) -> Tensor:
    funcol.all_reduce(x.sin(), "sum", mesh)
    return x + 1


def _all_to_all(x: Tensor, mesh: Any) -> Tensor:
    return funcol.all_to_all_single(x.sin(), None, None, mesh) * 2


def _coalesced(x: Tensor, mesh: Any) -> Tensor:
    first, second = funcol.all_reduce_coalesced([x, x * 2], "sum", mesh)
    return first + second


def _cast(x: Tensor, mesh: Any) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        y = x @ x.t()
        return funcol.all_reduce(y, "sum", mesh) @ x


def _named(x: Tensor, mesh: Any) -> Tensor:
    return funcol.all_reduce(x * 2, "sum", dist.group.WORLD) + 1


_COLLECTIVES = {
    "all_reduce": _reduced,
    "all_gather_tensor": _gathered,
    "reduce_scatter_tensor": _scattered,
    "wait_tensor": _waited,
    "returned without a wait": _returned,
    "unused": _unused,
    "all_to_all_single": _all_to_all,
    "all_reduce_coalesced": _coalesced,
    "all_reduce under autocast": _cast,
    "all_reduce in the world group": _named,
}


def _collective(title: str, program: Callable[[Tensor, Any], Tensor], fake: int) -> None:
    @distributed(title + (", fake group" if fake else ""), fake)
    def run(tag: Tag, mesh: Any) -> Any:
        tagged = tag(lambda x: program(x, mesh))
        return [tagged(rows()) + 0 for _ in range(2)]


for _title, _program in _COLLECTIVES.items():
    _collective(_title, _program, 0)
    # The fake group of torch 2.11 leaves the results of these unwritten.
    if not _title.startswith(("reduce_scatter", "all_to_all")):
        _collective(_title, _program, 2)


@distributed("all_gather with gradients")
def _gathered_trained(tag: Tag, mesh: Any) -> Any:
    tagged = tag(lambda x: funcol.all_gather_tensor_autograd(x.sin(), 0, mesh) * 2)
    x = rows().requires_grad_()
    tagged(x).sum().backward()
    return x.grad


@distributed("an argument that is not waited for")
def _argument(tag: Tag, mesh: Any) -> Any:
    tagged = tag(lambda x: x * 2 + 1)
    return [tagged(funcol.all_reduce(rows(), "sum", mesh)) + 0 for _ in range(2)]


@distributed("torch.distributed.all_reduce in place")
def _in_place(tag: Tag, mesh: Any) -> Any:
    def run(x: Tensor) -> Tensor:
        y = x * 2
        dist.all_reduce(y)
        return y + 1

    return tag(run)(rows())


# -- DTensor ---------------------------------------------------------------------------------------


def _local(made: Any) -> Any:
    if isinstance(made, (list, tuple)):
        return list(map(_local, made))
    local = made.to_local() if isinstance(made, DTensor) else made
    return local.detach() if isinstance(local, Tensor) else local


def on_mesh(title: str, grad: bool = False) -> Callable[[Any], Any]:
    """Register a function of a plain tensor, a DTensor and a mesh, on one and on two processes."""

    def register(program: Callable[..., Any]) -> Any:
        for fake in (0, 2):

            @distributed("DTensor: " + title + (", fake group" if fake else ""), fake)
            def run(tag: Tag, mesh: Any) -> Any:
                tagged, answers = tag(lambda x, d: program(x, d, mesh)), []
                for _ in range(2):
                    x = rows().requires_grad_(grad)
                    d = distribute_tensor(square(), mesh, [Shard(0)], src_data_rank=None)
                    made = tagged(x, d.detach().requires_grad_(grad))
                    if grad:
                        made.sum().backward()
                        answers.append(x.grad)
                    answers.append(_local(made))
                return answers

        return program

    return register


@on_mesh("from_local, to_local", grad=True)
def _from_local(x: Tensor, d: Any, mesh: Any) -> Tensor:
    return (DTensor.from_local(x, mesh, [Shard(0)]) * 2).to_local() + 1


@on_mesh("from_local, returned")
def _from_local_returned(x: Tensor, d: Any, mesh: Any) -> Tensor:
    return DTensor.from_local(x, mesh, [Shard(0)]) * 2


@on_mesh("redistribute")
def _redistribute(x: Tensor, d: Any, mesh: Any) -> Tensor:
    return (d.redistribute(mesh, [Replicate()]) * 2).sin()


@on_mesh("redistribute by keyword", grad=True)
def _redistribute_trained(x: Tensor, d: Any, mesh: Any) -> Tensor:
    made = DTensor.from_local(x, mesh, [Shard(0)], run_check=False)
    return made.redistribute(placements=[Replicate()]).to_local().sin()


@on_mesh("full_tensor")
def _full(x: Tensor, d: Any, mesh: Any) -> Tensor:
    return (d * 2).full_tensor() + 1


@on_mesh("partial", grad=True)
def _partial(x: Tensor, d: Any, mesh: Any) -> Tensor:
    made = DTensor.from_local(x, mesh, [Partial()])
    return made.redistribute(mesh, [Replicate()]).to_local() * 2


@on_mesh("distribute_tensor")
def _distribute(x: Tensor, d: Any, mesh: Any) -> Tensor:
    return distribute_tensor(x, mesh, [Shard(0)], src_data_rank=None) * 2


@on_mesh("product")
def _product(x: Tensor, d: Any, mesh: Any) -> Tensor:
    made = distribute_tensor(x, mesh, [Replicate()], src_data_rank=None)
    return (made @ d).relu()


@on_mesh("attributes")
def _attributes(x: Tensor, d: Any, mesh: Any) -> Any:
    same = d.placements == (Shard(0),)
    return x * d.device_mesh.size() * (2 if same else 3)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.up(x).relu())


def _parallel(title: str, plan: dict[str, Any], fake: int) -> None:
    @distributed(f"parallelised: {title}" + (", fake group" if fake else ""), fake)
    def run(tag: Tag, mesh: Any) -> Any:
        plan_ = {name: make() for name, make in plan.items()}
        model = parallelize_module(Block(), mesh, plan_, src_data_rank=None)
        tagged = tag(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = tagged(rows()).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return losses, [_local(p) for p in model.parameters()]


for _fake in (0, 2):
    _parallel("columns and rows", {"up": ColwiseParallel, "down": RowwiseParallel}, _fake)
_SEQUENCE = {
    "up": lambda: ColwiseParallel(input_layouts=Shard(0)),
    "down": lambda: RowwiseParallel(output_layouts=Shard(0)),
}
_parallel("sequence", _SEQUENCE, 0)


@distributed("torch.distributed collectives with outputs and reductions")
def _outputs(tag: Tag, mesh: Any) -> Any:
    def run(x: Tensor) -> Tensor:
        count = dist.get_world_size()
        gathered, scattered = torch.empty(6 * count, 8), torch.empty(6 // count, 8)
        dist.all_gather_into_tensor(gathered, x.sin())
        dist.reduce_scatter_tensor(scattered, x.cos(), op=dist.ReduceOp.MAX)
        y = x * count + dist.get_rank()
        parts, swapped = [torch.empty(6, 8) for _ in range(count)], torch.empty(6, 8)
        dist.all_gather(parts, x.tan())
        sizes = [6 // count] * count
        dist.all_to_all_single(swapped, x.exp(), input_split_sizes=sizes, output_split_sizes=sizes)
        dist.all_reduce(y, dist.ReduceOp.SUM, group=dist.group.WORLD)
        return gathered.sum(0) + scattered.sum(0) + y + sum(parts) + swapped

    tagged = tag(run)
    return [tagged(rows()) for _ in range(2)]
