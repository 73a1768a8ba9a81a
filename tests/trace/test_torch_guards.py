"""Guards of tensor code: every change that matters fails a guard, and no other does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

from jitmagic.guards.check import check
from jitmagic.guards.guard import NoOverlap, SameObject, TensorMatch
from jitmagic.trace.result import Break, Return
from jitmagic.trace.values.tensors.name_lookups import _attributes as attributes

from .replaying import snapshot_of, trace_of
from .test_torch_modules import MLP, Stateful


def pointwise(x, y):
    return torch.relu(x * y + 2)


def t(*shape, **facts):
    return torch.zeros(*shape, **facts)


CHANGES = {
    "shape": (t(3, 4), t(3, 4)),
    "rank": (t(2, 3, 1), t(2, 3, 1)),
    "stride": (t(3, 2).t(), t(2, 3)),
    "dtype": (t(2, 3).double(), t(2, 3)),
    "requires grad": (t(2, 3, requires_grad=True), t(2, 3)),
    "parameter": (nn.Parameter(t(2, 3), requires_grad=False), t(2, 3)),
    "no tensor": (2.0, t(2, 3)),
    "sparse": (t(2, 3).to_sparse(), t(2, 3)),
}


@pytest.mark.parametrize("args", CHANGES.values(), ids=CHANGES)
def test_changed_inputs_fail(args):
    trace = trace_of(pointwise, t(2, 3), t(2, 3))
    assert check(trace.guards, snapshot_of(pointwise, args)) is not None


@pytest.mark.parametrize("args", [(t(2, 3), t(2, 3)), (torch.randn(2, 3), torch.ones(2, 3))])
def test_equal_inputs_pass(args):
    trace = trace_of(pointwise, t(2, 3), t(2, 3))
    assert check(trace.guards, snapshot_of(pointwise, args)) is None


def test_state_of_the_thread():
    trace = trace_of(pointwise, t(2, 3), t(2, 3))
    snapshot = snapshot_of(pointwise, (t(2, 3), t(2, 3)))
    with torch.no_grad():
        assert check(trace.guards, snapshot) is not None
    with torch.inference_mode():
        assert check(trace.guards, snapshot) is not None
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert check(trace.guards, snapshot) is not None
    assert check(trace.guards, snapshot) is None


def test_data_is_no_guard_and_is_not_baked_in():
    weight = torch.ones(3)

    def program(x):
        return x * weight

    trace = trace_of(program, t(3))
    weight.fill_(5.0)
    assert check(trace.guards, snapshot_of(program, (t(3),))) is None
    assert {each.name for each in trace.inputs} == {"x", "weight"}


def module_changes():
    def eval_(m):
        m.eval()

    def hook(m):
        m.fc1.register_forward_hook(lambda *_: None)

    def pre_hook(m):
        m.fc2.register_forward_pre_hook(lambda *_: None)

    def backward_hook(m):
        m.fc3.register_full_backward_hook(lambda *_: None)

    def replaced(m):
        m.fc1 = nn.Identity()

    def no_bias(m):
        m.fc2.bias = None

    def wider(m):
        m.fc3 = nn.Linear(6, 5)

    def frozen(m):
        m.fc1.weight.requires_grad_(False)

    def half(m):
        m.double()

    def forward(m):
        m.fc1.forward = lambda x: x

    def loaded(m):
        m.load_state_dict(MLP().state_dict())

    def equal_layer(m):
        m.fc1 = nn.Linear(12, 8)

    return {
        "hook": (hook, True), "pre hook": (pre_hook, True), "backward hook": (backward_hook, True),
        "replaced": (replaced, True), "no bias": (no_bias, True), "wider": (wider, True),
        "frozen": (frozen, True), "double": (half, True), "forward": (forward, True),
        "eval (nobody read training)": (eval_, False), "loaded": (loaded, False),
        "equal layer": (equal_layer, False),
    }  # fmt: skip


@pytest.mark.parametrize(("change", "fails"), module_changes().values(), ids=module_changes())
def test_changes_of_a_module(change, fails):
    model = MLP()
    trace = trace_of(model, torch.randn(2, 12))
    snapshot = snapshot_of(model, (torch.randn(2, 12),))
    assert check(trace.guards, snapshot) is None
    change(model)
    assert (check(trace.guards, snapshot) is not None) == fails


def test_training_flag_is_guarded_where_it_is_read():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop, self.norm = nn.Dropout(0.5), nn.BatchNorm1d(3)

        def forward(self, x):
            return self.drop(self.norm(x))

    model = Net()
    x = torch.randn(4, 3)
    trace = trace_of(model, x)
    snapshot = snapshot_of(model, (x,))
    assert check(trace.guards, snapshot) is None
    model.drop.eval()
    assert check(trace.guards, snapshot) is not None
    model.drop.train()
    model.norm.eval()
    assert check(trace.guards, snapshot) is not None
    model.norm.train()
    model.norm.momentum = 0.3
    assert check(trace.guards, snapshot) is not None


def test_global_module_hooks():
    model, x = MLP(), torch.randn(2, 12)
    trace = trace_of(model, x)
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        assert check(trace.guards, snapshot_of(model, (x,))) is not None
    finally:
        handle.remove()
    assert check(trace.guards, snapshot_of(model, (x,))) is None


def test_attributes_that_count():
    model, x = Stateful(), torch.randn(3)
    trace = trace_of(model, x)
    assert check(trace.guards, snapshot_of(model, (x,))) is None
    model.calls = 7
    assert check(trace.guards, snapshot_of(model, (x,))) is not None


def test_one_tensor_through_two_arguments():
    def program(x, y):
        return x * y, x is y

    same = torch.ones(3)
    trace = trace_of(program, same, same)
    assert len(trace.inputs) == 1
    assert any(isinstance(guard, SameObject) for guard in trace.guards)
    assert check(trace.guards, snapshot_of(program, (same, torch.ones(3)))) is not None
    trace = trace_of(program, torch.ones(3), torch.ones(3))
    assert check(trace.guards, snapshot_of(program, (same, same))) is not None


def test_writes_need_separate_memory():
    def program(x, y):
        x.add_(y)
        return y * 2

    base = torch.ones(8)
    trace = trace_of(program, torch.ones(4), torch.ones(4))
    assert any(isinstance(guard, NoOverlap) for guard in trace.guards)
    assert check(trace.guards, snapshot_of(program, (base[:4], base[4:]))) is None
    assert check(trace.guards, snapshot_of(program, (base[:4], base[:4]))) is not None


def test_reads_alone_need_no_separate_memory():
    trace = trace_of(pointwise, torch.ones(4), torch.ones(4))
    assert not any(isinstance(guard, NoOverlap) for guard in trace.guards)
    one = torch.ones(4)
    assert check(trace.guards, snapshot_of(pointwise, (one, one))) is None


def test_a_gradient_is_read_by_source():
    def program(w):
        if w.grad is None:
            return w * 2
        return w * w.grad

    w = torch.ones(3, requires_grad=True)
    trace = trace_of(program, w)
    assert check(trace.guards, snapshot_of(program, (w,))) is None
    w.grad = torch.ones(3)
    assert check(trace.guards, snapshot_of(program, (w,))) is not None
    trace = trace_of(program, w)
    assert sum(isinstance(guard, TensorMatch) for guard in trace.guards) == 2


def test_torch_functions_cost_two_guards_for_the_module_they_come_from():
    def program(x):
        return F.relu(F.gelu(x)) + torch.sin(torch.cos(x))

    trace = trace_of(program, torch.ones(3))
    assert len(trace.guards) == 7  # state, F, names in F, torch, names in torch, Tensor, x


def test_a_function_of_torch_imported_by_name():
    relu = F.relu

    def program(x):
        return relu(x)

    trace = trace_of(program, torch.ones(3))
    assert check(trace.guards, snapshot_of(program, (torch.ones(3),))) is None
    relu = F.gelu
    assert check(trace.guards, snapshot_of(program, (torch.ones(3),))) is not None


def test_leaves_may_be_written_where_no_history_has_saved_them() -> None:
    weight = torch.ones(3, requires_grad=True)

    def update(weight: torch.Tensor) -> None:
        weight.sub_(0.5)

    def update_after_use(weight: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            used = weight * 2
        weight.sub_(0.5)
        return used

    def update_what_is_saved(weight: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            used = weight * weight
        weight.sub_(0.5)
        return used

    with torch.no_grad():
        assert isinstance(trace_of(update, weight).exit, Return)
        assert isinstance(trace_of(update_after_use, weight).exit, Return)
        assert isinstance(trace_of(update_what_is_saved, weight).exit, Break)


def test_shared_memory_is_found_whatever_comes_first() -> None:
    flat = torch.zeros(8)
    a, b, c, none = flat[:4], flat[4:], flat[3:5], flat[4:4]

    def write_then_read(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        a.add_(1)
        b.add_(1)
        return c + 1

    def read_then_write(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        d = c + 1
        b.add_(1)
        a.add_(1)
        return d

    for program in (write_then_read, read_then_write):
        assert isinstance(trace_of(program, a, b, c).exit, Break)
        assert isinstance(trace_of(program, a, b, none).exit, Return)
        assert isinstance(trace_of(program, a, b, torch.zeros(2)).exit, Return)


def test_the_operators_that_a_function_uses_on_a_tensor_are_read_from_its_bytecode() -> None:
    """A comparison before a jump has another text in `dis` from Python 3.13 on."""

    def function(a: Any, b: Any) -> Any:
        if a <= b:
            a -= 1
        return (a == b) << 2, a[0]

    wanted = {"__le__", "__ge__", "__sub__", "__rsub__", "__isub__", "__eq__", "__lshift__"}
    found = {name for name in attributes(function.__code__) if name.startswith("__")}
    assert found == wanted | {"__rlshift__", "__getitem__", "__bool__"}


@pytest.mark.parametrize(
    ("function", "method"),
    [
        (lambda x: 1 in x, "__contains__"),
        (lambda x: not x, "__bool__"),
        (lambda x: x or 1, "__bool__"),
        (lambda x: x if x else 1, "__bool__"),
        (lambda x: [y for y in x], "__iter__"),  # noqa: C416
        (lambda x: [*x], "__iter__"),
        (lambda x: len(x), "__len__"),
        (lambda x: +x, "__pos__"),
        (lambda x: f"{x}", "__format__"),
    ],
)
def test_special_methods_that_instructions_and_builtins_look_up(function: Any, method: str) -> None:
    assert method in attributes(function.__code__)


def test_deleting_an_item_looks_up_its_method() -> None:
    def function(x: Any) -> None:
        del x[0]

    assert "__delitem__" in attributes(function.__code__)
