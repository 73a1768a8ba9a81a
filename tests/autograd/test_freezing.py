"""freeze=True: what weights alone decide is computed once, and again when a weight has changed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import jitmagic
from jitmagic.api import handle_of
from jitmagic.options import make_options

aten = torch.ops.aten


def _normed(*, bias: bool = True, groups: int = 1) -> nn.Module:
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(8)
    for values in (norm.running_mean, norm.running_var, norm.weight.data, norm.bias.data):
        values.uniform_(0.5, 2)
    return nn.Sequential(nn.Conv2d(4, 8, 3, bias=bias, groups=groups), norm, nn.ReLU()).eval()


MODULES: dict[str, Callable[[], nn.Module]] = {
    "conv and norm": _normed,
    "without a bias": lambda: _normed(bias=False),
    "groups": lambda: _normed(groups=2),
    "weight norm": lambda: nn.utils.parametrizations.weight_norm(nn.Conv2d(4, 8, 3)).eval(),
    "read twice": lambda: nn.Sequential(_normed(), nn.Conv2d(8, 8, 1)).eval(),
}


def _frozen(module: nn.Module) -> Callable[[Tensor], Tensor]:
    return jitmagic.jit(
        lambda x: module(x), options={"freeze": True, "on_error": "raise", "keep": "compiled"}
    )


def _close(run: Callable[[Tensor], Tensor], module: nn.Module, x: Tensor) -> None:
    torch.testing.assert_close(run(x), module(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", MODULES)
def test_a_changed_weight_is_never_stale(name: str) -> None:
    module = MODULES[name]()
    run, x = _frozen(module), torch.randn(2, 4, 7, 7)
    with torch.no_grad():
        _close(run, module, x)
        for tensor in (*module.parameters(), *module.buffers()):
            if tensor.is_floating_point():
                tensor.mul_(1.25)
                _close(run, module, x)
        module.load_state_dict({key: value * 1.5 for key, value in module.state_dict().items()})
        _close(run, module, x)
        for part in module.modules():
            for key, weight in list(part.named_parameters(recurse=False)):
                setattr(part, key, nn.Parameter(weight * 2))
        _close(run, module, x)


def test_a_norm_after_a_convolution_is_part_of_it() -> None:
    module = _normed()
    run = _frozen(module)
    with torch.inference_mode():
        _close(run, module, torch.randn(2, 4, 7, 7))
    (record,) = handle_of(run).journal.records
    calls = [type(step).__name__ for step in record.result("forward: lower").steps]
    assert calls.count("Extern") == 1
    assert len(calls) == 2, "the convolution and the relu"


def test_returned_folded_values_are_copies() -> None:
    layer = nn.Linear(3, 3)
    run = _frozen(lambda x: (layer.weight * 2, x + (layer.weight * 3).sum()))  # type: ignore
    x = torch.ones(3)
    with torch.no_grad():
        run(x)[0].add_(100)
        doubled, moved = run(x)
    torch.testing.assert_close(doubled, layer.weight.detach() * 2)
    torch.testing.assert_close(moved, x + layer.weight.detach().sum() * 3)


def test_a_graph_that_is_differentiated_is_as_without_the_option() -> None:
    module, x = _normed(), torch.randn(2, 4, 7, 7)
    run = _frozen(module)
    _close(run, module, x)
    made = torch.autograd.grad(run(x).square().sum(), list(module.parameters()))
    wanted = torch.autograd.grad(module(x).square().sum(), list(module.parameters()))
    torch.testing.assert_close(made, wanted, rtol=1e-4, atol=1e-4)


def test_a_buffer_that_the_program_counts_in_is_not_frozen() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.count += 1
            return x * self.count.exp()

    first, second = Counting(), Counting()
    run, x = _frozen(first), torch.ones(2)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(run(x), second(x))


def test_torch_compile_calls_it_freezing() -> None:
    assert make_options({"freezing": True}).freeze


class _Quantised(nn.Module):
    """A linear layer of int8 numbers with a scale per row."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.register_buffer("weight", torch.randint(-127, 128, (32, 64), dtype=torch.int8))
        self.register_buffer("scale", torch.rand(32) / 64)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight * self.scale[:, None])


@pytest.mark.parametrize(("freeze", "written"), [(True, 0), ("dequantise", 1)])
def test_quantised_weights_stay_small_by_default(freeze: bool | str, written: int) -> None:
    module, x = _Quantised(), torch.randn(4, 64)
    run = jitmagic.jit(
        lambda x: module(x), options={"freeze": freeze, "on_error": "raise", "keep": "compiled"}
    )
    with torch.no_grad():
        for _ in range(2):
            _close(run, module, x)
            module.weight.neg_()
    (record,) = handle_of(run).journal.records
    program = record.result("forward: lower")
    shapes = [program.buffers[name].dtype for name in program.inputs]
    assert shapes.count(torch.int8) == 1 - written


def test_casts_of_autocast_run_once() -> None:
    module, x = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16)), torch.randn(4, 64)

    def cast(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return module(x)

    run = jitmagic.jit(cast, options={"freeze": True, "on_error": "raise", "keep": "compiled"})
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(run(x), cast(x), rtol=2e-2, atol=2e-2)
            module[0].weight.mul_(1.5)
    (record,) = handle_of(run).journal.records
    program = record.result("forward: lower")
    (own,) = [b for b in map(program.buffers.get, program.inputs) if b.dtype == torch.float32]
    assert own.shape == x.shape, "weights and biases come as bfloat16"
