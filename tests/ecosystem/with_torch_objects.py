"""Objects of the program that torch knows: subclasses of Tensor, operators, marked functions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.testing._internal.two_tensor import TwoTensor

from .case import Tag, case
from .tensor_programs import called, rows, trained, vector

LIBRARY = "torch_objects"


# -- subclasses ------------------------------------------------------------------------------------


@case(LIBRARY, "subclass as an argument")
def _subclass(tag: Tag) -> Any:
    tagged = tag(lambda x: (x.sin() * 2).sum(0))
    made = tagged(TwoTensor(rows(), rows()))
    return len(type(made).__name__), made.a, made.b


@case(LIBRARY, "subclass and a plain tensor")
def _mixed(tag: Tag) -> Any:
    tagged = tag(lambda x, y: (x * y + 1).relu())
    made = tagged(TwoTensor(rows(), rows()), rows())
    return made.a, made.b


@case(LIBRARY, "subclass, trained")
def _trained_subclass(tag: Tag) -> Any:
    x = TwoTensor(rows(), rows()).requires_grad_()
    made = tag(lambda x: (x * x).sin())(x)
    made.sum().backward()
    return x.grad.a, x.grad.b


@case(LIBRARY, "subclass made inside")
def _made_inside(tag: Tag) -> Any:
    @tag
    def run(a: Tensor, b: Tensor) -> Tensor:
        both = TwoTensor(a, b) * 2
        return both.a + both.b

    return run(rows(), rows())


@case(LIBRARY, "subclass as a parameter")
def _subclass_parameter(tag: Tag) -> Any:
    model = nn.Linear(8, 3)
    weight = model.weight.detach()
    model.weight = nn.Parameter(TwoTensor(weight, weight * 2))
    made = tag(model)(rows())
    return made.a.detach(), made.b.detach()


@case(LIBRARY, "jagged nested tensors")
def _jagged(tag: Tag) -> Any:
    parts = [torch.randn(n, 8) for n in (2, 4, 3)]
    nested = torch.nested.nested_tensor(parts, layout=torch.jagged)
    return tag(lambda x: (x.sin() * 2) @ torch.ones(8, 3))(nested).values()


class Logged(torch.Tensor):
    """Counts the functions that are called with it."""

    calls = 0

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        cls.calls += 1
        return super().__torch_function__(function, types, args, kwargs or {})


@case(LIBRARY, "subclass with __torch_function__")
def _torch_function(tag: Tag) -> Any:
    Logged.calls = 0
    made = tag(lambda x: x.sin() + x * 2)(rows().as_subclass(Logged))
    return len(type(made).__name__), made.as_subclass(Tensor), int(Logged.calls > 0)


# -- calls and operators of the program ------------------------------------------------------------


@torch.library.custom_op("jitmagic_cases::scaled", mutates_args=())
def scaled(x: Tensor, by: float) -> Tensor:
    return x * by


@scaled.register_fake
def _(x: Tensor, by: float) -> Tensor:
    return torch.empty_like(x)


scaled.register_autograd(
    lambda ctx, gradient: (gradient * ctx.by, None),
    setup_context=lambda ctx, inputs, output: setattr(ctx, "by", inputs[1]),
)


@trained(LIBRARY, "operator of torch.library, trained", rows)
def _custom(x: Tensor) -> Tensor:
    return (scaled(x.sin(), 3.0) + 1).square().sum()


@torch.library.custom_op("jitmagic_cases::add_into", mutates_args=("target",))
def add_into(target: Tensor, x: Tensor) -> None:
    target.add_(x)


@called(LIBRARY, "operator that writes to an argument", rows, rows)
def _writing(x: Tensor, y: Tensor) -> Tensor:
    target = x * 2
    add_into(target, y)
    return target.relu() + x


@torch.library.custom_op("jitmagic_cases::positive", mutates_args=())
def positive(x: Tensor) -> Tensor:
    return x[x > 0].clone()


@positive.register_fake
def _(x: Tensor) -> Tensor:
    return x.new_empty(torch.library.get_ctx().new_dynamic_size())


@called(LIBRARY, "operator with a size of its own", vector)
def _sized(x: Tensor) -> Tensor:
    return positive(x + 1).sin() * 2


@torch.compiler.allow_in_graph
def opaque(x: Tensor) -> Tensor:
    with open("/dev/null"):
        return x.sin()


@called(LIBRARY, "allow_in_graph", rows)
def _allowed(x: Tensor) -> Tensor:
    return opaque(x * 2) + 1


@torch.compiler.assume_constant_result
def setting() -> int:
    with open("/dev/null") as file:
        return len(file.read()) + 3


@called(LIBRARY, "assume_constant_result", rows)
def _constant(x: Tensor) -> Tensor:
    return x * setting()


@called(LIBRARY, "compiler.disable around a call", rows)
def _disabled(x: Tensor) -> Tensor:
    return torch.compiler.disable(lambda x: x * 2)(x.sin()) + 1


@called(LIBRARY, "data-dependent size", vector)
def _data_sized(x: Tensor) -> Tensor:
    return torch.nonzero(x > 0).float().sum(0) + x[x > 0].sum()


@called(LIBRARY, "item in arithmetic", vector)
def _item(x: Tensor) -> Tensor:
    return x * x.sum().item() + 1


@case(LIBRARY, "generator function inside")
def _generator(tag: Tag) -> Any:
    def parts(x: Tensor) -> Any:
        for _ in range(3):
            x = x.sin()
            yield x * 2

    return tag(lambda x: sum(parts(x)))(rows())


@case(LIBRARY, "optimizer step")
def _step(tag: Tag) -> Any:
    model = nn.Linear(8, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    x = rows()

    @tag
    def step() -> Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return [step() for _ in range(3)], [p.detach() for p in model.parameters()]
