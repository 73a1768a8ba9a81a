"""quantize_weights: values, memory, state_dict, refusals, and what compiled code makes of it."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import jitmagic
from jitmagic.api import handle_of
from jitmagic.errors import UsageError
from jitmagic.loops.ir import Extern
from jitmagic.quantised_linear import QuantisedLinear

DTYPES = [torch.int8, torch.float8_e4m3fn]


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.Linear(96, 32, bias=False)).eval()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("group", [None, 32, 16])
def test_values_are_near_and_the_model_is_small(dtype, group):
    model, x = mlp(), torch.randn(5, 64)
    small = jitmagic.quantize_weights(copy.deepcopy(model), dtype, group)
    with torch.no_grad():
        error = (small(x) - model(x)).abs().max() / model(x).abs().max()
    assert error < (0.02 if dtype is torch.int8 else 0.06)
    weights = [part.weight for part in small.modules() if isinstance(part, QuantisedLinear)]
    assert [weight.dtype for weight in weights] == [dtype] * 2


@pytest.mark.parametrize("group", [None, 32])
@pytest.mark.parametrize("rows", [1, 7, 40])
def test_compiled_layers_multiply_in_one_kernel_each(group, rows):
    model, x = jitmagic.quantize_weights(mlp(), group=group), torch.randn(rows, 64)
    expected = model(x)
    run = jitmagic.jit(
        lambda x: model(x), options={"freeze": True, "on_error": "raise", "keep": "compiled"}
    )
    with torch.no_grad():
        torch.testing.assert_close(run(x), expected, rtol=1e-4, atol=1e-5)
        model[0].scale.mul_(2)
        torch.testing.assert_close(run(x), model(x), rtol=1e-4, atol=1e-5)
    (record,) = handle_of(run).journal.records
    steps = record.result("forward: schedule").program.steps
    assert len(steps) == 2
    assert not any(isinstance(step, Extern) for step in steps)


@pytest.mark.parametrize("dtype", DTYPES)
def test_state_dicts_of_both_models_are_loaded(dtype):
    model = mlp()
    first = jitmagic.quantize_weights(copy.deepcopy(model), dtype, 16)
    second = jitmagic.quantize_weights(mlp().apply(_zeroed), dtype, 16)
    third = copy.deepcopy(second)
    second.load_state_dict(first.state_dict())
    third.load_state_dict(model.state_dict(), strict=True)
    x = torch.randn(3, 64)
    torch.testing.assert_close(second(x), first(x))
    torch.testing.assert_close(third(x), first(x))


def _zeroed(part: nn.Module) -> None:
    if isinstance(part, nn.Linear):
        nn.init.zeros_(part.weight)


def test_a_layer_keeps_its_identity_and_hooks():
    layer = nn.Linear(16, 16)
    calls: list[object] = []
    layer.register_forward_hook(lambda *_: calls.append(None))
    shared = nn.ModuleList([layer, layer])
    assert jitmagic.quantize_weights(layer) is layer
    assert shared[0] is shared[1]
    layer(torch.randn(2, 16))
    assert calls
    assert "QuantisedLinear(in_features=16, out_features=16, bias=True, torch.int8" in repr(layer)


def test_rows_of_zeros_stay_zero():
    layer = nn.Linear(16, 4, bias=False)
    with torch.no_grad():
        layer.weight[2] = 0
    assert not jitmagic.quantize_weights(layer)(torch.randn(3, 16))[:, 2].any()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [({"dtype": torch.int32}, "torch.int8"), ({"group": 5}, "groups of 5 do not divide"),
     ({"group": 0}, "positive")],
)  # fmt: skip
def test_refusals_change_nothing(arguments, told):
    model = mlp()
    with pytest.raises(UsageError, match=told):
        jitmagic.quantize_weights(model, **arguments)
    assert [type(part) for part in model] == [nn.Linear, nn.GELU, nn.Linear]


def test_weights_that_are_not_finite_are_refused():
    model = mlp()
    with torch.no_grad():
        model[2].weight[0, 0] = torch.inf
    with pytest.raises(UsageError, match="the weight of 2 has infinite"):
        jitmagic.quantize_weights(model)
    assert type(model[0]) is nn.Linear
