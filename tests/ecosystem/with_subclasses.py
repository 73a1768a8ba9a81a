"""Tensor subclasses: jagged nested tensors, quantised weights, nested wrappers, and modes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing

from .case import Tag, case
from .tensor_programs import called, rows

LIBRARY = "subclasses"
aten = torch.ops.aten


# -- jagged nested tensors -------------------------------------------------------------------------

LENGTHS = ((2, 4, 3), (5, 1, 2), (3, 3, 1, 6))


def ragged(lengths: tuple[int, ...], *last: int) -> Tensor:
    """Return a jagged nested tensor of random numbers with these lengths."""
    parts = [torch.randn(length, *(last or (8,))) for length in lengths]
    return torch.nested.nested_tensor(parts, layout=torch.jagged)


def _parts(result: Any) -> Any:
    """Return plain tensors for what a program returns."""
    if isinstance(result, (list, tuple)):
        return list(map(_parts, result))
    if isinstance(result, Tensor) and result.is_nested:
        return result.detach().values(), result.offsets()
    return result.detach() if isinstance(result, Tensor) else result


def jagged(title: str, grad: bool = False) -> Callable[[Any], Any]:
    """Register a function of a jagged tensor, called with several batches of lengths."""

    def register(program: Callable[[Tensor], Any]) -> Any:
        @case(LIBRARY, "jagged: " + title)
        def run(tag: Tag) -> Any:
            tagged, answers = tag(program), []
            for lengths in LENGTHS:
                x = ragged(lengths).requires_grad_(grad)
                made = tagged(x)
                if grad:
                    (made.values() if made.is_nested else made).sum().backward()
                    answers.append(_parts(x.grad))
                answers.append(_parts(made))
            return answers

        return program

    return register


@jagged("pointwise")
def _jagged_pointwise(x: Tensor) -> Tensor:
    return (x.sin() * 2 + x).relu()


@jagged("pointwise, trained", grad=True)
def _jagged_trained(x: Tensor) -> Tensor:
    return (x.sin() * 2 + x).relu()


@jagged("two results")
def _jagged_two(x: Tensor) -> Any:
    return x + 1, x.cos()


@jagged("linear, trained", grad=True)
def _jagged_linear(x: Tensor) -> Tensor:
    return F.linear(x, torch.ones(3, 8), torch.ones(3)).relu()


@jagged("layer norm, trained", grad=True)
def _jagged_norm(x: Tensor) -> Tensor:
    return F.layer_norm(x, (8,))


@jagged("softmax of the last dimension")
def _jagged_softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


@jagged("sum over the ragged dimension")
def _jagged_sum(x: Tensor) -> Tensor:
    return x.sin().sum(dim=1).sin()


@jagged("values and offsets")
def _jagged_values(x: Tensor) -> Any:
    return x.values() * 2, x.offsets() + 1


@jagged("sizes")
def _jagged_sizes(x: Tensor) -> Any:
    return x.size(0), x.size(-1), x.dim(), x * x.shape[2]


@jagged("attention", grad=True)
def _jagged_attention(x: Tensor) -> Tensor:
    heads = x.unflatten(-1, (1, 8)).transpose(1, 2)
    made = F.scaled_dot_product_attention(heads, heads, heads)
    return made.transpose(1, 2).flatten(-2)


@jagged("clone and detach")
def _jagged_clone(x: Tensor) -> Tensor:
    return x.clone().detach() * 2


@jagged("unbind")
def _jagged_unbind(x: Tensor) -> Any:
    return [one.sum() for one in x.unbind()]


@jagged("to padded and back", grad=True)
def _jagged_padded(x: Tensor) -> Tensor:
    return torch.nested.to_padded_tensor(x.sin(), 0.0).sum(1)


@jagged("made of values and offsets")
def _jagged_of_parts(x: Tensor) -> Tensor:
    made = torch.nested.nested_tensor_from_jagged(x.values() * 2, x.offsets())
    return made.sin()


@case(LIBRARY, "jagged: made inside, returned")
def _jagged_inside(tag: Tag) -> Any:
    @tag
    def run(values: Tensor, offsets: Tensor) -> Tensor:
        made = torch.nested.nested_tensor_from_jagged(values, offsets)
        return (made * 2).sin()

    offsets = [torch.tensor([0, 2, 6, 9]), torch.tensor([0, 3, 4, 9])]
    return [_parts(run(torch.randn(9, 8), one)) for one in offsets]


@case(LIBRARY, "jagged: made inside, values returned, trained")
def _jagged_inside_values(tag: Tag) -> Any:
    @tag
    def run(values: Tensor, offsets: Tensor) -> Tensor:
        made = torch.nested.nested_tensor_from_jagged(values, offsets)
        return (made * 2).sin().values()

    values = torch.randn(9, 8, requires_grad=True)
    made = run(values, torch.tensor([0, 2, 6, 9]))
    made.sum().backward()
    return made.detach(), values.grad


@case(LIBRARY, "jagged: made of tensors inside")
def _jagged_of_tensors(tag: Tag) -> Any:
    @tag
    def run(a: Tensor, b: Tensor) -> Tensor:
        made = torch.nested.as_nested_tensor([a, b], layout=torch.jagged)
        return (made * 2).values()

    return run(torch.randn(3, 4), torch.randn(5, 4))


@case(LIBRARY, "jagged: two of one raggedness")
def _jagged_pair(tag: Tag) -> Any:
    tagged, answers = tag(lambda x, y: x * y + 1), []
    for lengths in LENGTHS:
        x = ragged(lengths)
        y = torch.nested.nested_tensor_from_jagged(torch.randn_like(x.values()), x.offsets())
        answers.append(_parts(tagged(x, y)))
    return answers


@case(LIBRARY, "jagged: transformer layer, trained")
def _jagged_layer(tag: Tag) -> Any:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.qkv = nn.LayerNorm(8), nn.ModuleList(nn.Linear(8, 8) for _ in "qkv")
            self.out, self.wide, self.narrow = nn.Linear(8, 8), nn.Linear(8, 16), nn.Linear(16, 8)

        def forward(self, x: Tensor) -> Tensor:
            x_ = self.norm(x)
            q, k, v = (part(x_).unflatten(-1, (1, 8)).transpose(1, 2) for part in self.qkv)
            made = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2)
            x = x + self.out(made)
            return x + self.narrow(F.gelu(self.wide(x)))

    model, answers = Layer(), []
    tagged = tag(model)
    for lengths in LENGTHS:
        made = tagged(ragged(lengths))
        made.values().square().mean().backward()
        answers.append(_parts(made))
    return answers, [p.grad for p in model.parameters()]


# -- quantised weights and other wrappers ----------------------------------------------------------


class Int8(Tensor):
    """An int8 weight with a scale per row, in the style of torchao."""

    codes: Tensor
    scale: Tensor
    by_function = False

    @staticmethod
    def __new__(cls, codes: Tensor, scale: Tensor, group: int = 1) -> Int8:
        made: Any = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, codes.shape, dtype=scale.dtype, device=codes.device
        )
        return made  # type: ignore[no-any-return]

    def __init__(self, codes: Tensor, scale: Tensor, group: int = 1) -> None:
        self.codes, self.scale, self.group = codes, scale, group

    @classmethod
    def of(cls, weight: Tensor, group: int = 1) -> Int8:
        scale = weight.abs().amax(1, keepdim=True) / 127
        return cls((weight / scale).round().to(torch.int8), scale, group)

    def dequantize(self) -> Tensor:
        return self.codes.to(self.scale.dtype) * self.scale * self.group

    def __tensor_flatten__(self) -> tuple[list[str], object]:
        return ["codes", "scale"], [self.group]

    @classmethod
    def __tensor_unflatten__(
        cls, inner: dict[str, Tensor], context: Any, size: object, stride: object
    ) -> Int8:
        return cls(inner["codes"], inner["scale"], *context)

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Int8({self.shape})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func in (aten.detach.default, aten.clone.default, aten.alias.default):
            own = args[0]
            made = cls(func(own.codes), func(own.scale), own.group)
            return return_and_correct_aliasing(func, args, kwargs or {}, made)
        if func is aten.t.default:
            return args[0].dequantize().t()
        if func in (aten.mm.default, aten.addmm.default):
            args = [one.dequantize() if isinstance(one, Int8) else one for one in args]
            return func(*args, **(kwargs or {}))
        raise NotImplementedError(str(func))


class Int8ByFunction(Int8):
    """Implements linear by `__torch_function__`, the rest by `__torch_dispatch__`."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.linear:
            x, weight, bias = [*args, *kwargs.values(), None][:3]
            made = x @ weight.codes.to(x.dtype).t() * (weight.scale.t() * weight.group)
            return made if bias is None else made + bias
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)


def _quantised(kind: type[Int8]) -> nn.Module:
    model = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))
    for part in (model[0], model[2]):
        weight = kind.of(part.weight.detach())
        part.weight = nn.Parameter(weight, requires_grad=False)
    return model


@case(LIBRARY, "int8 weights by __torch_dispatch__")
def _int8(tag: Tag) -> Any:
    tagged = tag(_quantised(Int8))
    return [tagged(rows()).detach() for _ in range(2)]


@case(LIBRARY, "int8 weights by __torch_function__")
def _int8_function(tag: Tag) -> Any:
    tagged = tag(_quantised(Int8ByFunction))
    return [tagged(rows()).detach() for _ in range(2)]


@case(LIBRARY, "int8 weights, biases trained")
def _int8_trained(tag: Tag) -> Any:
    model = _quantised(Int8)
    made = tag(model)(rows())
    made.square().mean().backward()
    return made.detach(), [p.grad for p in model.parameters()]


@case(LIBRARY, "metadata that changes")
def _metadata(tag: Tag) -> Any:
    tagged = tag(lambda x, w: x @ w.t())
    weight = torch.randn(3, 8)
    return [tagged(rows(), Int8.of(weight, group)) for group in (1, 2, 1, 3)]


@case(LIBRARY, "an attribute that changes")
def _attribute(tag: Tag) -> Any:
    tagged = tag(lambda w: w.dequantize() * w.group)
    weight = Int8.of(torch.randn(3, 8))
    answers = []
    for group in (1, 2, 1):
        weight.group = group
        answers.append(tagged(weight))
    return answers


@case(LIBRARY, "wrapper of wrappers")
def _nested(tag: Tag) -> Any:
    x = TwoTensor(TwoTensor(rows(), rows()), TwoTensor(rows(), rows()))
    made = tag(lambda x: (x * 2).sin() + 1)(x)
    return made.a.a, made.a.b, made.b.a, made.b.b


@case(LIBRARY, "wrapper of wrappers, trained")
def _nested_trained(tag: Tag) -> Any:
    x = TwoTensor(TwoTensor(rows(), rows()), TwoTensor(rows(), rows())).requires_grad_()
    made = tag(lambda x: (x * 2).sin() + 1)(x)
    made.sum().backward()
    return x.grad.a.a, x.grad.a.b, x.grad.b.a, x.grad.b.b


@case(LIBRARY, "wrappers in containers")
def _containers(tag: Tag) -> Any:
    tagged = tag(lambda given: [given["x"] * 2, given["rest"][0] + given["x"]])
    made = tagged({"x": TwoTensor(rows(), rows()), "rest": (rows(), 3)})
    return [(one.a, one.b) for one in made]


@case(LIBRARY, "wrappers made of arguments, trained")
def _made_trained(tag: Tag) -> Any:
    @tag
    def run(a: Tensor, b: Tensor) -> Tensor:
        return TwoTensor(a, b).sin()

    a, b = rows().requires_grad_(), rows().requires_grad_()
    made = run(a * 1, b * 1)
    return made.a.detach(), made.b.detach()


@case(LIBRARY, "quantised inside")
def _quantise_inside(tag: Tag) -> Any:
    @tag
    def run(x: Tensor, weight: Tensor) -> Tensor:
        return x @ Int8.of(weight).t()

    return run(rows(), torch.randn(3, 8))


@case(LIBRARY, "model of wrappers trained with SGD")
def _trained_model(tag: Tag) -> Any:
    model = nn.Linear(8, 3)
    weight = model.weight.detach()
    model.weight = nn.Parameter(TwoTensor(weight, weight * 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tagged, x = tag(model), rows()
    for _ in range(3):
        optimizer.zero_grad()
        made = tagged(x)
        made.square().sum().backward()
        optimizer.step()
    return model.weight.a.detach(), model.weight.b.detach()


# -- modes -----------------------------------------------------------------------------------------


class Doubling(TorchFunctionMode):
    """Doubles what torch.sin returns."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        return made * 2 if func is torch.sin else made


class Counting(TorchDispatchMode):
    """Counts the operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


@called(LIBRARY, "torch function mode inside", rows)
def _mode_inside(x: Tensor) -> Tensor:
    with Doubling():
        y = torch.sin(x) + 1
    return y * torch.sin(x)


@case(LIBRARY, "torch function mode around a call")
def _mode_around(tag: Tag) -> Any:
    tagged = tag(lambda x: torch.sin(x) + 1)
    with Doubling():
        first = tagged(rows())
    return first, tagged(rows())


@case(LIBRARY, "dispatch mode around a call")
def _dispatch_around(tag: Tag) -> Any:
    tagged = tag(lambda x: torch.sin(x) + 1)
    with Counting() as mode:
        first = tagged(rows())
        second = tagged(rows())
    return first, second, tagged(rows()), mode.count


@case(LIBRARY, "dispatch mode inside")
def _dispatch_inside(tag: Tag) -> Any:
    mode = Counting()

    @tag
    def run(x: Tensor) -> Tensor:
        with mode:
            y = torch.sin(x) + 1
        return y * 2

    return run(rows()), run(rows()), mode.count


@case(LIBRARY, "set_default_device around a call")
def _default_device(tag: Tag) -> Any:
    tagged = tag(lambda: torch.ones(3) + torch.arange(3))
    first = tagged()
    torch.set_default_device("meta")
    try:
        second = tagged()
    finally:
        torch.set_default_device(None)
    return first, len(second.device.type), tagged()


@case(LIBRARY, "a device as a mode around a call")
def _device_mode(tag: Tag) -> Any:
    tagged = tag(lambda: torch.ones(3) + torch.arange(3))
    first = tagged()
    with torch.device("meta"):
        second = tagged()
    return first, len(second.device.type), tagged()


@called(LIBRARY, "a device as a mode inside", rows)
def _meta_inside(x: Tensor) -> Any:
    with torch.device("meta"):
        made = torch.ones(3, 4).sum(0)
    return x * made.shape[0], len(made.device.type)


@case(LIBRARY, "set_default_device inside")
def _set_inside(tag: Tag) -> Any:
    @tag
    def run(x: Tensor) -> Any:
        torch.set_default_device("meta")
        made = torch.ones(3)
        torch.set_default_device(None)
        return x * 2, len(made.device.type), torch.ones(2)

    made = run(rows())
    return made, torch.ones(1)
