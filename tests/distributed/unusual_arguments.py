"""Unusual arguments of collectives: views, other types, gradients, and what eager refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import Tensor

from .corpus import Tag, World, program
from .functional_collectives import called


def refused(title: str, graphs: int = 2, breaks: int = 0, **stated: Any) -> Callable[[Any], Any]:
    """Register a function of a matrix which eager may refuse: the class of the error counts."""

    def register(function: Callable[[Tensor, World], Any]) -> Any:
        @program(title, graphs, breaks, changing=True, **stated)
        def run(tag: Tag, world: World) -> Any:
            tagged, answers = tag(lambda x: function(x, world)), []
            for x in world.batches(4, 6, 5):
                try:
                    answers += [tagged(x), x]
                except (RuntimeError, ValueError, TypeError) as error:
                    answers.append(type(error).__name__)
            return answers

        return function

    return register


@refused("dist.all_reduce of a transposed matrix", graphs=3)
def _transposed(x: Tensor, world: World) -> Tensor:
    y = x.sin().t()
    dist.all_reduce(y)
    return y * 2


@refused("dist.broadcast and dist.reduce of matrices whose columns are in memory first", graphs=3)
def _columns_first(x: Tensor, world: World) -> Tensor:
    y, z = x.sin().t(), torch.empty_strided((2, 3, 4), (3, 1, 6)).fill_(x.shape[0])
    z += torch.arange(24.0).view(2, 3, 4) * (1 + dist.get_rank())
    dist.broadcast(y, 1)
    dist.all_reduce(z)
    dist.reduce(z, 0)
    return y.sum(1) * 2 if dist.get_rank() else y.sum(1) * z.sum()


@refused("dist.all_reduce with an average, which gloo may refuse")
def _average(x: Tensor, world: World) -> Tensor:
    y = x.sin()
    dist.all_reduce(y, dist.ReduceOp.AVG)
    return y * 2


@refused("dist.all_gather_into_tensor of a wrong size", graphs=3, breaks=6)
def _wrong_size(x: Tensor, world: World) -> Tensor:
    made = torch.empty(x.shape[0] + 1, 8)
    dist.all_gather_into_tensor(made, x)
    return made * 2


@refused("dist.all_gather_into_tensor of another type", breaks=4)
def _wrong_type(x: Tensor, world: World) -> Tensor:
    made = torch.zeros(2 * x.shape[0], 8, dtype=torch.float64)
    dist.all_gather_into_tensor(made, x)
    return made * 2


@refused("dist.all_gather into too few tensors", breaks=4)
def _too_few(x: Tensor, world: World) -> Tensor:
    parts = [torch.empty_like(x)]
    dist.all_gather(parts, x)
    return parts[0] * 2


@refused("dist.reduce_scatter_tensor of odd rows", graphs=3, breaks=2)
def _odd(x: Tensor, world: World) -> Tensor:
    made = x.new_empty(x.shape[0] // 2, 8)
    dist.reduce_scatter_tensor(made, x)
    return made * 2


@refused("dist.all_reduce in a group of the other rank", graphs=4, breaks=4)
def _not_member(x: Tensor, world: World) -> Tensor:
    y = x.sin()
    dist.all_reduce(y, group=dist.GroupMember.NON_GROUP_MEMBER)
    return y * 2


@called("dist.all_gather into the chunks of one tensor")
def _chunks(x: Tensor, world: World) -> Tensor:
    made = x.new_empty(2 * x.shape[0], 8)
    dist.all_gather(list(made.chunk(2)), x.sin())
    return made * 2


@refused("dist.all_gather_into_tensor into a stack, which gloo refuses", graphs=3, breaks=6)
def _stacked(x: Tensor, world: World) -> Tensor:
    made = x.new_empty(2, x.shape[0], 8)
    dist.all_gather_into_tensor(made, x.sin())
    return made.sum(0)


@called("collectives of integers, booleans and halves")
def _types(x: Tensor, world: World) -> list[Tensor]:
    answers = []
    for given in ((x * 4).long(), (x > 0).to(torch.uint8), x.bfloat16(), x.double()):
        y = given.clone()
        dist.all_reduce(y, dist.ReduceOp.MAX)
        answers += [y + 1, funcol.all_gather_tensor(given, 0, world.mesh)]
    return answers


@called("collectives of scalars and of no rows")
def _empty(x: Tensor, world: World) -> list[Tensor]:
    total = x.sum()
    dist.all_reduce(total)
    rows = funcol.all_gather_tensor(x[:0], 0, world.mesh)
    sent = [0, x.shape[0]]
    received = [0, 0] if world.rank == 0 else [x.shape[0], x.shape[0]]
    swapped = funcol.all_to_all_single(x, received, sent, world.mesh)
    return [total * 2, rows + 1, swapped * 2]


@program("dist.all_reduce of an intermediate that requires grad", graphs=2, changing=True)
def _gradient(tag: Tag, world: World) -> Any:
    """Eager changes the values and lets gradients pass as if nothing had happened."""

    def run(x: Tensor) -> Tensor:
        y = x.sin()
        dist.all_reduce(y)
        return y * x

    tagged, answers = tag(run), []
    for x in world.batches(4, 6, 5):
        x.requires_grad_()
        result = tagged(x)
        result.sum().backward()
        answers += [result, x.grad]
    return answers


def without_gradients(title: str, graphs: int = 2, breaks: int = 0) -> Callable[[Any], Any]:
    """Register a function whose collective gets rows that require grad.

    Eager's results of these collectives do not require grad, and no gradients pass; torch.compile
    records functional collectives, which have gradients.
    """

    def register(function: Callable[[Tensor, World], Tensor]) -> Any:
        @program(title, graphs, breaks, changing=True)
        def run(tag: Tag, world: World) -> Any:
            tagged, answers = tag(lambda x: function(x.sin(), world) * x.sum()), []
            for x in world.batches(4, 6, 10):
                x.requires_grad_()
                result = tagged(x)
                result.square().sum().backward()
                answers += [result, x.grad]
            return answers

        return function

    return register


@without_gradients("dist.all_gather of features, of which only this rank's get gradients")
def _contrastive(x: Tensor, world: World) -> Tensor:
    """Compare rows with those of all ranks, as CLIP's loss does."""
    parts = [torch.empty_like(x) for _ in range(world.size)]
    dist.all_gather(parts, x)
    parts[world.rank] = x
    return x @ torch.cat(parts).t()


@without_gradients("dist.reduce_scatter_tensor of rows that require grad", graphs=6, breaks=4)
def _scattered(x: Tensor, world: World) -> Tensor:
    """Gradients pass to the rows of this rank, because gloo copies them outside of no_grad."""
    made = x.new_empty(x.shape[0] // 2, 8)
    dist.reduce_scatter_tensor(made, x)
    return made


@without_gradients("dist.all_to_all_single of rows that require grad")
def _exchanged(x: Tensor, world: World) -> Tensor:
    made = torch.empty_like(x)
    dist.all_to_all_single(made, x)
    return made


@program("dist.all_reduce of a value that the backward saved", graphs=4, breaks=4, changing=True)
def _saved(tag: Tag, world: World) -> Any:
    def run(x: Tensor) -> Tensor:
        y = x.exp()
        dist.all_reduce(y.detach())
        return y * 2

    tagged, answers = tag(run), []
    for x in world.batches(4, 6, 5):
        x.requires_grad_()
        result = tagged(x)
        result.sum().backward()
        answers += [result, x.grad]
    return answers


@program("dist.all_gather_into_tensor into a buffer that stays", graphs=2, changing=True)
def _buffer(tag: Tag, world: World) -> Any:
    buffers = {count: torch.zeros(2 * count, 8) for count in (4, 6, 5)}

    def run(x: Tensor, buffer: Tensor) -> Tensor:
        dist.all_gather_into_tensor(buffer, x.sin())
        return buffer.sum()

    tagged = tag(run)
    answers = [tagged(x, buffers[len(x)]) for x in world.batches(4, 6, 5)]
    return answers, list(buffers.values())


@program("collectives in inference mode and without gradients", graphs=4, changing=True)
def _inference(tag: Tag, world: World) -> Any:
    def run(x: Tensor) -> Tensor:
        y = x.sin()
        dist.all_reduce(y)
        return funcol.all_gather_tensor(y, 0, world.mesh) * 2

    tagged, answers = tag(run), []
    for x in world.batches(4, 6, 5):
        with torch.inference_mode():
            answers.append(tagged(x).clone())
        with torch.no_grad():
            answers.append(tagged(x))
    return answers


@program(
    "a work that the caller began and tagged code waits for", graphs=2, breaks=2, changing=True
)
def _begun(tag: Tag, world: World) -> Any:
    def run(x: Tensor, work: Any) -> Tensor:
        work.wait()
        return x * 2

    tagged, answers = tag(run), []
    for x in world.batches(4, 6, 5):
        work = dist.all_reduce(x, async_op=True)
        answers.append(tagged(x, work))
    return answers


@program(
    "a work that tagged code begins and the caller waits for", graphs=2, breaks=2, changing=True
)
def _returned_work(tag: Tag, world: World) -> Any:
    def run(x: Tensor) -> Any:
        y = x.sin()
        return y, dist.all_reduce(y, async_op=True)

    tagged, answers = tag(run), []
    for x in world.batches(4, 6, 5):
        y, work = tagged(x)
        work.wait()
        answers.append(y)
    return answers


@program("coalesced calls of dist.all_reduce", graphs=2, changing=True)
def _coalesced(tag: Tag, world: World) -> Any:
    def run(x: Tensor) -> Tensor:
        y, z = x.sin(), x.cos()
        with dist._coalescing_manager():
            dist.all_reduce(y)
            dist.all_reduce(z)
        return y + z

    tagged = tag(run)
    return [tagged(x) for x in world.batches(4, 6, 5)]


@called("coalesced calls in a loop, in a group, and none at all")
def _coalesced_list(x: Tensor, world: World) -> list[Tensor]:
    parts = [x.sin() * (n + 1) for n in range(3)]
    with dist._coalescing_manager(dist.group.WORLD):
        for part in parts:
            dist.all_reduce(part, dist.ReduceOp.MAX)
        dist.broadcast(x, 1)
    with dist._coalescing_manager() as manager:
        assert manager
    return [x, *parts]


@program("a graph break in a block of coalesced calls", graphs=6, breaks=7, changing=True)
def _coalesced_break(tag: Tag, world: World) -> Any:
    def run(x: Tensor) -> Tensor:
        y = x.sin()
        with dist._coalescing_manager():
            dist.all_reduce(y)
            scale = float(y.sum() > 1e9)
        return y + scale

    tagged = tag(run)
    return [tagged(x) for x in world.batches(4, 6, 5)]


@refused("coalesced calls of different collectives, which torch refuses", breaks=9)
def _coalesced_mix(x: Tensor, world: World) -> Tensor:
    y, z = x.sin(), x.new_empty(2 * x.shape[0], 8)
    try:
        with dist._coalescing_manager():
            dist.all_reduce(y)
            dist.all_gather_into_tensor(z, x)
    finally:
        assert not torch.distributed.distributed_c10d._world.pg_coalesce_state
    return y


@program("lists of objects that one rank sends", graphs=2, breaks=1, changing=True)
def _object_list(tag: Tag, world: World) -> Any:
    def run(x: Tensor) -> Tensor:
        scales = [2.0, 3.0] if dist.get_rank() == 0 else [None, None]
        dist.broadcast_object_list(scales, 0)
        return x.sin() * scales[0] + scales[1]

    tagged = tag(run)
    return [tagged(x) for x in world.batches(4, 6, 5)]


# -- works ----------------------------------------------------------------------------------------


@called("works in a list, in another order on each rank")
def _list_of_works(x: Tensor, world: World) -> Tensor:
    parts = [x.sin(), x.cos(), x.tan()]
    works = [dist.all_reduce(part, async_op=True) for part in parts]
    for work in works if world.rank else reversed(works):
        assert work is not None and work.wait()
    return torch.cat(parts) * 2


@called("asynchronous collectives of parts of arguments and of views")
def _parts(x: Tensor, world: World) -> list[Tensor]:
    y, sent = x.sin(), x.cos()
    first = dist.all_reduce(x[1:3], async_op=True)
    second = dist.broadcast(y.t()[2:].t()[:1], 1, async_op=True)
    z = torch.empty(2, *x.shape)
    third = dist.all_gather(list(z.unbind()), sent, async_op=True)
    first.wait()
    third.wait()
    second.wait()
    return [x * 2, y, z]


@called("a work that is dropped", graphs=4, breaks=3)
def _dropped(x: Tensor, world: World) -> Tensor:
    y = x.sin()
    dist.all_reduce(y, async_op=True)
    dist.barrier()
    return x * 2


@called("a work that is asked before it is waited for", graphs=4, breaks=7)
def _asked(x: Tensor, world: World) -> Tensor:
    y = x.sin()
    work = dist.all_reduce(y, async_op=True)
    work.is_completed()
    work.wait()
    return y * 2


@called("a work that is waited for after a message", graphs=4, breaks=6)
def _after_message(x: Tensor, world: World) -> Tensor:
    y, z = x.sin(), x.cos()
    if world.rank == 0:
        work = dist.all_reduce(y, async_op=True)
        dist.send(z, 1)
        work.wait()
        return y
    dist.recv(z, 0)
    dist.all_reduce(y)
    return y + z


@program("an asynchronous sum of what the backward needs", graphs=2, changing=True)
def _needed(tag: Tag, world: World) -> Any:
    def run(x: Tensor) -> Tensor:
        y = x.sin()
        work = dist.all_reduce(y, async_op=True)
        z = x.cos()
        work.wait()
        return y * z

    tagged, answers = tag(run), []
    for x in world.batches(4, 6, 5):
        x.requires_grad_()
        result = tagged(x)
        result.sum().backward()
        answers += [result, x.grad]
    return answers


# -- collectives with a root ----------------------------------------------------------------------


@program("roots by their rank in a group, and parameters", graphs=2, changing=True)
def _roots(tag: Tag, world: World) -> Any:
    both = dist.new_group([0, 1])
    alone = [dist.new_group([rank]) for rank in range(2)][world.rank]

    def run(x: Tensor, parameter: Tensor) -> Tensor:
        dist.broadcast(parameter[0], group_src=1, group=both)
        y = x.sin() + world.rank
        dist.reduce(y, group_dst=0, op=dist.ReduceOp.MAX, group=alone)
        dist.broadcast(y, world.rank, group=alone)
        dist.reduce(x, 1, dist.ReduceOp.MAX)
        return (y * parameter[0]).sum()

    tagged, answers = tag(run), []
    for x in world.batches(4, 6, 5):
        parameter = torch.nn.Parameter(world.rows(3))
        result = tagged(x, parameter)
        result.backward()
        answers += [result, x, parameter, parameter.grad]
    return answers


@called("dist.scatter of a list on the other rank", graphs=2, breaks=4)
def _wrong_root(x: Tensor, world: World) -> Tensor | str:
    try:
        dist.scatter(torch.empty_like(x), [x, x] if world.rank else None, 0)
    except ValueError as error:
        return str(error)
    return x


@called("dist.barrier and nothing else", graphs=1)
def _only_barrier(x: Tensor, world: World) -> int:
    dist.barrier()
    return world.rank
