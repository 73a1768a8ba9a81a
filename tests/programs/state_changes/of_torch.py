"""Functions, methods and classes of torch that the program replaces, as adapters do."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from .mutation import Build, Change, Program, add, both, mutation, put, without

Call = Any


def _twice(original: Any) -> Any:
    def doubled(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs) * 2

    return doubled


def _wrapped(original: Any) -> Any:
    return functools.wraps(original)(_twice(original))


def _partial(original: Any) -> Any:
    return functools.partial(_twice(original))


class _Object:
    def __init__(self, original: Any) -> None:
        self.original = original

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.original(*args, **kwargs) * 2


_KINDS = (_twice, _wrapped, _partial, _Object)


def _replaced(owner: Any, name: str, program: Program, make: Any) -> Build:
    def build() -> tuple[Program, Change]:
        return program, lambda: put(owner, name, make(getattr(owner, name)))

    return build


_FUNCTIONAL = {
    "silu": lambda x: F.silu(x),
    "relu": lambda x: F.relu(x),
    "gelu": lambda x: F.gelu(x),
    "softmax": lambda x: F.softmax(x, -1),
    "leaky_relu": lambda x: F.leaky_relu(x - 1),
    "normalize": lambda x: F.normalize(x),
    "layer_norm": lambda x: F.layer_norm(x, (3,)),
    "linear": lambda x: F.linear(x, x),
    "pad": lambda x: F.pad(x, (1, 1)),
    "mse_loss": lambda x: F.mse_loss(x, x * 2),
    "scaled_dot_product_attention": lambda x: F.scaled_dot_product_attention(x, x, x),
}
_TORCH = {
    "relu": lambda x: torch.relu(x),
    "sin": lambda x: torch.sin(x),
    "add": lambda x: torch.add(x, 1),
    "sum": lambda x: torch.sum(x, 0),
    "cat": lambda x: torch.cat([x, x]),
    "stack": lambda x: torch.stack([x, x]),
    "where": lambda x: torch.where(x > 1, x, 0.0),
    "full": lambda x: x + torch.full((3,), 2.0),
    "einsum": lambda x: torch.einsum("ij->i", x),
    "tensor": lambda x: x + torch.tensor(3.0),
    "as_tensor": lambda x: x + torch.as_tensor([3.0, 4.0, 5.0]),
    "asarray": lambda x: x + torch.asarray([3.0, 4.0, 5.0], copy=True),
}
for _owner, _table in ((F, _FUNCTIONAL), (torch, _TORCH)):
    for _index, (_name, _program) in enumerate(_table.items()):
        for _make in (_KINDS[0], _KINDS[1 + _index % 3]):
            _label = f"{_owner.__name__}.{_name} {_make.__name__}"
            add(_label, _replaced(_owner, _name, _program, _make))


_METHODS = {
    "cosh": lambda x: x.cosh(),
    "exp": lambda x: x.exp(),
    "abs": lambda x: x.abs(),
    "sum": lambda x: x.sum(),
    "mean": lambda x: x.mean(-1),
    "reshape": lambda x: x.reshape(-1),
    "clone": lambda x: x.clone(),
    "norm": lambda x: x.norm(),
    "float": lambda x: x.float(),
    "size": lambda x: x + x.size(0),
    "dim": lambda x: x + x.dim(),
    "item": lambda x: x * 1,
    "add_": lambda x: x.clone().add_(1),
    "split": lambda x: x.split(1)[0] + 1,
    "__add__": lambda x: x + 1,
    "__radd__": lambda x: 1 + x,
    "__sub__": lambda x: x - 1,
    "__rsub__": lambda x: 1 - x,
    "__mul__": lambda x: x * 3,
    "__truediv__": lambda x: x / 3,
    "__rtruediv__": lambda x: 3 / x,
    "__floordiv__": lambda x: x // 0.5,
    "__mod__": lambda x: x % 0.5,
    "__pow__": lambda x: x**2,
    "__rpow__": lambda x: 2**x,
    "__matmul__": lambda x: x @ x.T,
    "__neg__": lambda x: -x,
    "__lt__": lambda x: (x < 1) + 1,
    "__ge__": lambda x: (x >= 1) + 1,
    "__eq__": lambda x: (x == 1) + 1,
    "__ne__": lambda x: (x != 1) + 1,
    "__getitem__": lambda x: x[0],
    "__len__": lambda x: x + len(x),
}


def _triple(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Nothing of the original."""
    return torch.full((2,), 3.0)


for _name, _program in _METHODS.items():
    if _name not in ("item", "size", "dim", "__len__", "split"):
        add(f"Tensor.{_name} _twice", _replaced(torch.Tensor, _name, _program, _twice))
    if _name not in ("item", "size", "dim", "__len__"):
        add(f"Tensor.{_name} another", _replaced(torch.Tensor, _name, _program, lambda _: _triple))
for _name in ("size", "dim", "__len__"):
    add(
        f"Tensor.{_name} a number",
        _replaced(torch.Tensor, _name, _METHODS[_name], lambda _: lambda self, *args: 7),
    )
for _name, _program in {
    "ndim": lambda x: x + x.ndim,
    "T": lambda x: x.T + 1,
    "mT": lambda x: x.mT + 1,
    "is_cuda": lambda x: x + x.is_cuda,
    "itemsize": lambda x: x + x.itemsize,
}.items():
    add(
        f"Tensor.{_name} a property",
        _replaced(torch.Tensor, _name, _program, lambda _: property(lambda self: (5, 5)[0])),
    )


@mutation
def tensor_gets_a_method() -> tuple[Program, Change]:
    def program(x: Any) -> Any:
        return x.doubled() if hasattr(x, "doubled") else x + 1

    return program, lambda: put(torch.Tensor, "doubled", lambda self: self * 2)


@mutation
def tensor_gets_an_operator_in_place() -> tuple[Program, Change]:
    def program(x: Any) -> Any:
        x = x.clone()
        x += 1
        return x

    return program, lambda: put(torch.Tensor, "__iadd__", lambda self, other: self - other)


@mutation
def tensor_method_is_another_of_torch() -> tuple[Program, Change]:
    return lambda x: x.cosh(), lambda: put(torch.Tensor, "cosh", torch.Tensor.sinh)


_LAYERS: dict[str, Any] = {
    "Linear": lambda: nn.Linear(3, 2),
    "ReLU": lambda: nn.ReLU(),
    "GELU": lambda: nn.GELU(),
    "SiLU": lambda: nn.SiLU(),
    "LayerNorm": lambda: nn.LayerNorm(3),
    "RMSNorm": lambda: nn.RMSNorm(3),
    "Softmax": lambda: nn.Softmax(-1),
    "Identity": lambda: nn.Identity(),
    "Flatten": lambda: nn.Flatten(0),
    "Bilinear": lambda: nn.Bilinear(3, 3, 2),
    "Sequential": lambda: nn.Sequential(nn.Linear(3, 3), nn.Tanh()),
}


def _layer(name: str, member: str, owner: Any = None) -> Build:
    def build() -> tuple[Program, Change]:
        torch.manual_seed(0)
        kind = getattr(nn, name)
        layer = _LAYERS[name]()
        where = owner or kind
        run = (lambda x: layer(x, x)) if name == "Bilinear" else (lambda x: layer(x))
        return run, lambda: put(where, member, _twice(getattr(where, member)))

    return build


for _name in _LAYERS:
    add(f"nn.{_name}.forward", _layer(_name, "forward"))
for _name in ("Linear", "Sequential", "Softmax"):
    for _member in ("__call__", "_call_impl"):
        add(f"nn.{_name} by Module.{_member}", _layer(_name, _member, nn.Module))
        add(f"nn.{_name}.{_member}", _layer(_name, _member))
add("nn.Linear by F.linear", lambda: (_layer("Linear", "forward")()[0], _patch(F, "linear")))
add("nn.SiLU by F.silu", lambda: (_layer("SiLU", "forward")()[0], _patch(F, "silu")))
add("nn.Softmax by F.softmax", lambda: (_layer("Softmax", "forward")()[0], _patch(F, "softmax")))


def _patch(owner: Any, name: str) -> Change:
    return lambda: put(owner, name, _twice(getattr(owner, name)))


@mutation
def a_layer_is_said_to_be_another() -> tuple[Program, Change]:
    layer = nn.Softmax(-1)
    return lambda x: layer(x), lambda: put(nn.Softmax, "forward", nn.Identity.forward)


@mutation
def containers_are_walked_another_way() -> tuple[Program, Change]:
    layers = nn.ModuleList([nn.Tanh(), nn.ReLU(), nn.Sigmoid()])

    def program(x: Any) -> Any:
        for layer in layers:
            x = layer(x)
        return x + len(layers)

    def change() -> Any:
        return put(nn.ModuleList, "__iter__", lambda self: iter(list(self._modules.values())[:1]))

    return program, change


@mutation
def containers_have_another_length() -> tuple[Program, Change]:
    layers = nn.ModuleList([nn.Tanh(), nn.ReLU()])
    return lambda x: x + len(layers), lambda: put(nn.ModuleList, "__len__", lambda self: 9)


@mutation
def modules_find_attributes_another_way() -> tuple[Program, Change]:
    layer = nn.Linear(3, 3)

    def found(self: Any, name: str) -> Any:
        return 5.0 if name == "scale" else getattr_of(self, name)

    getattr_of = nn.Module.__getattr__
    return (
        lambda x: x * getattr(layer, "scale", 2.0),
        lambda: put(nn.Module, "__getattr__", found),
    )


@mutation
def a_class_of_torch_gets_an_attribute() -> tuple[Program, Change]:
    layer = nn.Linear(3, 3)
    return lambda x: x * getattr(layer, "scale", 2.0), lambda: put(nn.Linear, "scale", 3.0)


@mutation
def a_class_of_torch_gets_a_list() -> tuple[Program, Change]:
    layer, scales = nn.Linear(3, 3), [2.0]
    nn.Linear.scales = scales  # type: ignore[attr-defined]
    change = lambda: both(lambda: scales.append(3.0), scales.pop)  # noqa: E731
    return lambda x: x * sum(layer.scales), change  # type: ignore[arg-type, union-attr]


@mutation
def a_class_of_torch_loses_its_length() -> tuple[Program, Change]:
    layers = nn.Sequential(nn.Tanh())
    return lambda x: x + (2 if hasattr(layers, "__len__") else 3), lambda: without(
        nn.Sequential, "__len__"
    )


@mutation
def a_module_of_torch_gets_a_name() -> tuple[Program, Change]:
    def program(x: Any) -> Any:
        return x * (F.our_scale if hasattr(F, "our_scale") else 2.0)

    return program, lambda: put(F, "our_scale", 7.0)


@mutation
def a_module_of_torch_loses_a_name() -> tuple[Program, Change]:
    return lambda x: F.silu(x) if hasattr(F, "silu") else x, lambda: without(F, "silu")


@mutation
def a_module_of_torch_hides_a_builtin() -> tuple[Program, Change]:
    layer = nn.Linear(3, 3)
    layer.extra_repr = torch.nn.modules.linear.Linear.extra_repr  # type: ignore[method-assign]
    module = torch.nn.modules.container
    layers = nn.ModuleList([nn.Tanh(), nn.ReLU()])
    return lambda x: x + len(layers), lambda: put(module, "len", lambda value: 40)


@mutation
def torch_nn_functional_is_replaced_as_a_whole() -> tuple[Program, Change]:
    class Space:
        silu = staticmethod(lambda x: x * 9)
        relu = staticmethod(lambda x: x * 8)

    return lambda x: torch.nn.functional.silu(x), lambda: put(torch.nn, "functional", Space)


def _attends(x: Any) -> Any:
    weights = torch.linspace(-1, 1, 9 * x.shape[-1]).view(3 * x.shape[-1], -1)[:9, :3]
    made, _ = F.multi_head_attention_forward(
        x.view(-1, 1, 3), x.view(-1, 1, 3), x.view(-1, 1, 3), 3, 1, weights, None, None, None,
        False, 0.0, torch.eye(3), None, need_weights=True,
    )  # fmt: skip
    return made


for _owner, _name, _program in (
    (torch.Tensor, "__truediv__", lambda x: F.normalize(x)),
    (torch.Tensor, "norm", lambda x: F.normalize(x)),
    (torch.Tensor, "clamp_min", lambda x: F.normalize(x)),
    (torch._C._nn, "silu", lambda x: F.silu(x)),
    (torch, "relu", lambda x: F.relu(x)),
    (torch, "layer_norm", lambda x: F.layer_norm(x, (3,))),
    (torch, "norm", lambda x: x.norm()),
    (torch.linalg, "vector_norm", lambda x: x.norm()),
    (F, "softmax", _attends),
    (F, "linear", _attends),
    (torch, "bmm", _attends),
):
    add(
        f"{_owner.__name__}.{_name} within a function of torch",
        _replaced(_owner, _name, _program, _twice),
    )
