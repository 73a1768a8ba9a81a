"""Programs on the device of demos/extend_device.py. Each is a function without arguments, which
raises if something is wrong; test_devices.py runs each in a process of its own, because torch has
one device of this kind per process.
"""

from __future__ import annotations

import runpy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import jitmagic
from jitmagic import extend
from jitmagic.api import handle_of
from jitmagic.errors import UsageError
from tests.processes import ROOT

DEMO = runpy.run_path(str(ROOT / "demos" / "extend_device.py"), run_name="demo")
on_toy, on_host = DEMO["on_toy"], DEMO["on_host"]


def program(function: Callable[[], None]) -> Callable[[], None]:
    """Mark a function that test_devices.py runs."""
    return function


def compared(fn: Callable[..., Any], *args: Tensor, **options: Any) -> Any:
    """Return the compiled function after its result on the device was compared with the CPU's."""
    compiled = jitmagic.jit(fn, fullgraph=True, **options)
    for _ in range(2):
        made = compiled(*map(on_toy, args))
        torch.testing.assert_close(on_host(made), fn(*args), equal_nan=True)
    return compiled


def languages(compiled: Any) -> set[str]:
    """Return the languages of the kernels of all its compiles."""
    journal = handle_of(compiled).journal
    made = [stage.result for record in journal.records for stage in record.stages]
    return {one[1].language for one in made if isinstance(one, tuple) and one[1] is not None}


@program
def reductions_masks_and_gathers() -> None:
    DEMO["register"]()
    x, at = torch.randn(6, 9), torch.randint(-6, 6, (4,))
    for fn in (
        lambda x, at: x.softmax(-1) * x.amax(0),
        lambda x, at: x.argmax(-1),
        lambda x, at: F.pad(x, (2, 1)) + 1,
        lambda x, at: x.roll(3, 1) * x.double().sum(),
        lambda x, at: x[at] * 2,
        lambda x, at: (x > 0).any(0) | (x < -1).all(0),
        lambda x, at: torch.where(x > 0, x, x.abs().sqrt()).reshape(9, 6).t() - 1,
    ):
        assert languages(compared(fn, x, at)) == {"c"}


@program
def edges_of_numbers() -> None:
    DEMO["register"]()
    x = torch.tensor([0.0, -0.0, float("nan"), float("inf"), -float("inf"), 1e-40, 3e38, -1.5])
    y = x.flip(0)
    for fn in (torch.maximum, torch.minimum, torch.add, torch.sub, torch.mul, torch.div, torch.ne):
        compared(lambda x, y, fn=fn: fn(x, y), x, y)
    for one in (torch.abs, torch.neg, torch.relu, torch.exp, torch.isnan, torch.sigmoid):
        compiled = jitmagic.jit(lambda x, one=one: one(x))
        made = on_host(compiled(on_toy(x)))
        torch.testing.assert_close(made, one(x), equal_nan=True)
        if made.is_floating_point():
            assert torch.equal(made.signbit() & ~made.isnan(), one(x).signbit() & ~one(x).isnan())


@program
def dynamic_sizes_in_one_graph() -> None:
    DEMO["register"]()
    compiled = compared(lambda x: (x * 2).sum(-1) + x.shape[0], torch.randn(5, 7), dynamic=True)
    for rows in (6, 9):
        x = torch.randn(rows, 7)
        torch.testing.assert_close(on_host(compiled(on_toy(x))), (x * 2).sum(-1) + rows)
    assert len(handle_of(compiled).journal.records) == 1


@program
def bad_index_raises_as_in_eager() -> None:
    DEMO["register"]()
    x, at = torch.randn(3, 4), torch.tensor([0, 3])
    compiled = jitmagic.jit(lambda x, at: x[at] + 1)
    with pytest.raises(IndexError):
        compiled(on_toy(x), on_toy(at))


@program
def writes_views_and_aliases() -> None:
    DEMO["register"]()

    def fn(x: Tensor) -> Tensor:
        x[:, 1:].mul_(2)
        return x.t()

    x = torch.randn(3, 4)
    there, expected = on_toy(x.clone()), x.clone()
    made, wanted = jitmagic.jit(fn, fullgraph=True)(there), fn(expected)
    torch.testing.assert_close(on_host(made), wanted)
    torch.testing.assert_close(on_host(there), expected)
    assert made.data_ptr() == there.data_ptr()


@program
def second_order_gradients() -> None:
    DEMO["register"]()

    def slope(device: str) -> Tensor:
        torch.manual_seed(0)
        x = torch.randn(5, 3).to(device).requires_grad_()
        fn = (lambda x: (x.tanh() * x).sum()) if device == "cpu" else compiled
        (first,) = torch.autograd.grad(fn(x), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), x)[0].cpu()

    compiled = jitmagic.jit(lambda x: (x.tanh() * x).sum(), fullgraph=True)
    torch.testing.assert_close(slope("toy"), slope("cpu"))


@program
def device_runs_in_eager_until_it_is_registered() -> None:
    compiled = jitmagic.jit(lambda x: x * 2 + 1)
    x = torch.randn(4)
    torch.testing.assert_close(on_host(compiled(on_toy(x))), x * 2 + 1)
    assert "c" not in languages(compiled)
    DEMO["register"]()
    torch.testing.assert_close(on_host(compiled(on_toy(x))), x * 2 + 1)
    assert languages(compiled) == {"c"}
    extend.unregister("toy")
    torch.testing.assert_close(on_host(compiled(on_toy(x))), x * 2 + 1)


@program
def device_without_renderer_runs_operator_by_operator() -> None:
    extend.register_device("toy")
    x = torch.randn(3, 4)
    assert languages(compared(lambda x: (x * 2).sum(-1), x)) == set()


@program
def autocast_for_the_device_is_eager() -> None:
    DEMO["register"]()
    library = torch.library.Library("_", "IMPL")
    library.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    compiled = jitmagic.jit(lambda x: x * 2)
    x = torch.randn(4)
    for enabled in (False, True, False):
        torch.set_autocast_enabled("toy", enabled)
        torch.testing.assert_close(on_host(compiled(on_toy(x))), x * 2)
    torch.set_autocast_enabled("toy", True)
    assert len(handle_of(compiled).journal.records) == 1


@program
def registered_scalar_has_a_text_for_the_renderer() -> None:
    DEMO["register"]()
    facts = {"cpp": "{0} * {0} * {0}", "texts": {"c": "{0} * {0} * {0}"}}
    extend.register_scalar("cubed", lambda x: x * x * x, **facts)

    @torch.library.custom_op("toy::cube", mutates_args=())
    def cube(x: Tensor) -> Tensor:
        return x * x * x

    cube.register_fake(torch.empty_like)
    extend.register_lowering(cube, lambda x: extend.scalar.cubed(x))
    assert languages(compared(lambda x: cube(x) + 1, torch.randn(4))) == {"c"}


@program
def renderer_serves_the_cpu() -> None:
    extend.register_renderer("c", DEMO["CRenderer"](), load=DEMO["build"])
    compiled = jitmagic.jit(lambda x: x.exp().sum(-1), options={"cpu_tier": "c"})
    x = torch.randn(3, 4)
    torch.testing.assert_close(compiled(x), x.exp().sum(-1))
    assert languages(compiled) == {"c"}


@program
def failing_renderer_is_a_warning_and_the_result_is_right() -> None:
    class Failing:
        def render(self, nests: Any, buffers: Any, target: Any, configs: Any) -> Any:
            return {}["nothing"]

    def loads_nothing(source: Any, target: Any) -> dict[str, Any]:
        return {}

    extend.register_renderer("failing", Failing(), load=loads_nothing)
    extend.register_renderer("loads nothing", DEMO["CRenderer"](), load=loads_nothing)
    extend.register_renderer("c", DEMO["CRenderer"](), load=DEMO["build"])
    x = torch.rand(3, 4)
    for name, fn, text in (
        ("failing", lambda x: x * 2, "raised KeyError: 'nothing'"),
        ("loads nothing", lambda x: x * 3, "returned no ctypes function"),
        ("c", lambda x: x.erfinv() + 1, "no c for the scalar operation 'erfinv'"),
    ):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            made = jitmagic.jit(fn, options={"cpu_tier": name})(x)
        torch.testing.assert_close(made, fn(x))
        assert any(text in str(one.message) for one in seen), [str(one.message) for one in seen]


@program
def names_that_are_taken_or_unknown_are_refused() -> None:
    with pytest.raises(UsageError, match="PrivateUse1"):
        extend.register_device("tpu")
    with pytest.raises(UsageError, match="renderer"):
        extend.register_device("toy", renderer="none")
    with pytest.raises(UsageError, match="already"):
        extend.register_renderer("numba", DEMO["CRenderer"](), load=DEMO["build"])
    with extend.register_device("toy"), pytest.raises(UsageError, match="already"):
        extend.register_device("toy")
    extend.register_device("toy")
