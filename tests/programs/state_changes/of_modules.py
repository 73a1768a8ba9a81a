"""Modules and tensors that change between calls: parts, hooks, modes, layouts."""

from __future__ import annotations

import types
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from .mutation import Change, Program, add, both, entry, mutation, put, switched

# --------------------------------------------------------------------------------------- modules


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fc = nn.Linear(3, 3)
        self.drop = nn.Dropout(0.5)
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("shift", torch.ones(3))
        self.scale = 2.0
        self.eval()

    def forward(self, x: Any) -> Any:
        return self.norm(self.drop(self.fc(x))) * self.scale + self.shift


def _of_module(label: str, change: Any) -> None:
    def build() -> tuple[Program, Change]:
        model = Model()
        return lambda x: model(x), lambda: change(model)

    add(f"module: {label}", build)


def _hook(register: str, hook: Any) -> Any:
    def change(model: Any) -> Any:
        handles: list[Any] = []
        return both(
            lambda: handles.append(getattr(model.fc, register)(hook)),
            lambda: handles.pop().remove(),
        )

    return change


class _Half(nn.Module):
    def forward(self, weight: Any) -> Any:
        return weight / 2


def _parametrized(model: Any) -> Any:
    return both(
        lambda: parametrize.register_parametrization(model.fc, "weight", _Half()),
        lambda: parametrize.remove_parametrizations(model.fc, "weight", leave_parametrized=False),
    )


def _table(table: str, name: str, value: Any) -> Any:
    return lambda model: entry(getattr(model, table), name, value())


_of_module("plain attribute", lambda model: put(model, "scale", 3.0))
_of_module("eps", lambda model: put(model.norm, "eps", 0.5))
_of_module("buffer swapped", _table("_buffers", "shift", lambda: torch.zeros(3)))
_of_module("buffer of another dtype",
           _table("_buffers", "shift", lambda: torch.zeros(3, dtype=torch.float64)))  # fmt: skip
_of_module("buffer is None", _table("_buffers", "shift", lambda: None))
_of_module("submodule swapped", _table("_modules", "fc", lambda: nn.Linear(3, 3)))
_of_module("submodule of another class", _table("_modules", "fc", nn.Tanh))
_of_module("parameter swapped",
           lambda m: entry(m.fc._parameters, "weight", nn.Parameter(torch.ones(3, 3))))  # fmt: skip
_of_module("parameter data",
           lambda m: switched(lambda d: setattr(m.fc.weight, "data", d), torch.ones(3, 3),
                              m.fc.weight.data))  # fmt: skip
_of_module("parameter without gradient",
           lambda m: switched(lambda on: [m.scale, m.fc.requires_grad_(on),
                                          setattr(m, "scale", 2.0 if on else 4.0)],
                              False, True))  # fmt: skip
_of_module("bias is None", lambda m: entry(m.fc._parameters, "bias", None))
_of_module("forward of its own", lambda m: put(m, "forward", lambda x: x * 5))
_of_module("forward of a layer", lambda m: put(m.fc, "forward", lambda x: x * 5))
_of_module("forward of its class", lambda m: put(Model, "forward", lambda self, x: x * 5))
_of_module("forward hook", _hook("register_forward_hook", lambda m, args, out: out * 2))
_of_module("forward pre-hook", _hook("register_forward_pre_hook", lambda m, args: (args[0] * 2,)))
_of_module("parametrization", _parametrized)
_of_module("strides of a parameter",
           lambda m: switched(lambda d: setattr(m.fc.weight, "data", d),
                              torch.arange(9.0).reshape(3, 3).T, m.fc.weight.data))  # fmt: skip
_of_module("class of a layer",
           lambda m: switched(lambda kind: setattr(m.fc, "__class__", kind),
                              type("Other", (nn.Linear,), {"forward": lambda self, x: x * 3}),
                              nn.Linear))  # fmt: skip
_of_module("dictionary entry that hides a layer",
           lambda m: entry(m.__dict__, "scale", 8.0))  # fmt: skip


@mutation
def training_mode() -> tuple[Program, Change]:
    model = nn.Sequential(nn.BatchNorm1d(3, track_running_stats=True, momentum=0.0)).eval()
    return lambda x: model(x), lambda: both(model.train, model.eval)


@mutation
def global_forward_hooks() -> tuple[Program, Change]:
    model = nn.Linear(3, 3)
    handles: list[Any] = []

    def do() -> None:
        register = nn.modules.module.register_module_forward_hook
        handles.append(register(lambda m, args, out: out * 2))

    return lambda x: model(x), lambda: both(do, lambda: handles.pop().remove())


@mutation
def a_layer_is_appended() -> tuple[Program, Change]:
    model = nn.Sequential(nn.Tanh())
    return lambda x: model(x), lambda: both(
        lambda: model.append(nn.Sigmoid()), lambda: model.__delitem__(-1)
    )


# --------------------------------------------------------------------------------------- tensors


def _of_tensor(label: str, make: Any, program: Any, other: Any) -> None:
    def build() -> tuple[Program, Change]:
        held = types.SimpleNamespace(t=make())
        return lambda x: program(held, x), lambda: put(held, "t", other())

    add(f"tensor: {label}", build)


_times = lambda held, x: x * held.t  # noqa: E731
_of_tensor("values", lambda: torch.ones(3), _times, lambda: torch.zeros(3))
_of_tensor("dtype", lambda: torch.ones(3), _times, lambda: torch.ones(3, dtype=torch.float64))
_of_tensor("shape", lambda: torch.ones(3), _times, lambda: torch.ones(4, 1, 3))
_of_tensor("strides", lambda: torch.ones(3, 3), lambda h, x: h.t.stride(),
           lambda: torch.ones(3, 6)[:, ::2])  # fmt: skip
_of_tensor("contiguity", lambda: torch.ones(2, 3), lambda h, x: h.t.is_contiguous(),
           lambda: torch.ones(3, 2).T)  # fmt: skip
_of_tensor("gradient wanted", lambda: torch.ones(3), lambda h, x: (x * h.t).requires_grad,
           lambda: torch.ones(3, requires_grad=True))  # fmt: skip
_of_tensor("leaf", lambda: torch.ones(3, requires_grad=True), lambda h, x: h.t.is_leaf,
           lambda: torch.ones(3, requires_grad=True) * 1)  # fmt: skip
_of_tensor("class", lambda: torch.ones(3), lambda h, x: isinstance(h.t, nn.Parameter),
           lambda: nn.Parameter(torch.ones(3)))  # fmt: skip
_of_tensor("becomes a number", lambda: torch.ones(3), _times, lambda: 4.0)
_of_tensor("becomes None", lambda: torch.ones(3), lambda h, x: x if h.t is None else x * 2,
           lambda: None)  # fmt: skip
_of_tensor("conjugated", lambda: torch.ones(3) * 1j, lambda h, x: h.t.is_conj(),
           lambda: (torch.ones(3) * 1j).conj())  # fmt: skip
_of_tensor("gradient", lambda: torch.ones(3, requires_grad=True),
           lambda h, x: h.t.grad is None, lambda: _with_gradient())  # fmt: skip


def _with_gradient() -> torch.Tensor:
    made = torch.ones(3, requires_grad=True)
    made.sum().backward()
    return made


@mutation
def an_attribute_of_a_tensor() -> tuple[Program, Change]:
    weight = torch.ones(3)
    return lambda x: x * getattr(weight, "scale", 2.0), lambda: put(weight, "scale", 3.0)


@mutation
def two_names_of_one_tensor() -> tuple[Program, Change]:
    one = torch.ones(3)
    held = types.SimpleNamespace(left=one, right=one)
    return lambda x: x + (held.left is held.right), lambda: put(held, "right", torch.ones(3))
