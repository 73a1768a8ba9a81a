"""Lowers random numbers: ATen draws them from the user's own generator, so that the stream is
eager's.

Only the draw is an Extern step; the arithmetic around it is loops. Draws keep the graph's order,
which is the order of the steps that contain them: no later stage may swap two of them.
"""

from __future__ import annotations

import torch

from ...spec import TensorSpec
from ..builder import Decline, LoopBuilder, Out
from ..ir import Value
from ..registry import fallback, lowers
from ..tensor_view import Point, TensorView
from ..values import cast, compute, opmath, round_to

__all__: list[str] = []

fallback(
    "random numbers come from eager's generator",
    *("rand.default", "rand.generator", "rand_like.default", "randn.default", "randn.generator"),
    *("randn_like.default", "randint.default", "randint.low", "randint_like.default"),
    *("randint_like.low_dtype", "randperm.default", "bernoulli.default", "bernoulli.p"),
    *("uniform.default", "normal_functional.default", "normal.Tensor_Tensor"),
    *("normal.Tensor_float", "normal.float_Tensor", "normal.float_float", "exponential.default"),
    *("multinomial.default", "poisson.default", "geometric.default", "log_normal.default"),
    *("cauchy.default", "random.default", "random.from", "rrelu_with_noise_functional.default"),
)


@lowers("native_dropout.default")
def native_dropout(
    builder: LoopBuilder, out: Out, x: TensorView, p: float, train: bool | None
) -> list[TensorView | None]:
    """Draw the mask, then return x * mask * 1 / (1 - p), as native_dropout_cpu does."""
    if x.device.type != "cpu":
        raise Decline("dropout on this device draws inside its own kernel")
    if x.numel == 0 or train is False:
        raise Decline("dropout that drops nothing")
    probability = 1.0 - p
    scale = round_to(0.0 if probability == 0.0 else 1.0 / probability, x.dtype)
    spec = TensorSpec(x.shape, builder.stride(x), x.dtype, x.device)
    drawn = builder.extern(
        Out(f"{out.name}_draw", (spec,)),
        torch.ops.aten.bernoulli.p,
        (x, probability),
        {},
        "random numbers come from eager's generator",
    )[0]
    if drawn is None:
        raise Decline("a draw without a result")
    wide = opmath(x.dtype)

    def dropped(point: Point) -> Value:
        factor = cast(builder.load(drawn, point), wide)
        product = compute("mul", cast(builder.load(x, point), wide), factor)
        return compute("mul", cast(cast(product, x.dtype), wide), scale)

    def mask(point: Point) -> Value:
        return cast(builder.load(drawn, point), torch.bool)

    return builder.used(out, [dropped, mask])
