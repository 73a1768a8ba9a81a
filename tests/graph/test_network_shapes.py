"""Shape rules of layers and losses agree with eager or give None where eager may refuse; a
convolutional network imports neither torch._dynamo nor sympy.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch

from jitmagic.graph.operators.shapes import infer
from tests.processes import run_forked

aten = torch.ops.aten
IMAGE = torch.randn(4, 6, 8, 10)
ROWS = torch.randn(5, 8)
SIX = torch.rand(6) + 0.5
CLASSES = torch.randint(0, 8, (5,))
PAIRS = torch.randint(0, 8, (2, 5))

CASES: list[tuple[Any, ...]] = [
    (aten.native_batch_norm.default, IMAGE, SIX, SIX, SIX.clone(), SIX.clone(), True, 0.1, 1e-5),
    (aten.native_batch_norm.default, IMAGE, None, None, SIX, SIX, False, 0.1, 1e-5),
    (
        *(aten.native_batch_norm.default, IMAGE.contiguous(memory_format=torch.channels_last)),
        *(SIX, SIX, None, None, True, 0.1, 1e-5),
    ),
    *(
        (aten.native_batch_norm.default, x, SIX, SIX, SIX.clone(), SIX.clone(), training, 0.1, 1e-5)
        for training in (True, False)
        for x in (IMAGE.mT, IMAGE[..., ::2], IMAGE[:, :1].expand(4, 6, 8, 10), ROWS.T[:6].T)
    ),
    (aten.native_group_norm.default, IMAGE, SIX, SIX, 4, 6, 80, 3, 1e-5),
    (aten.var.correction, IMAGE, [1, -1]),
    (aten.std.correction, ROWS),
    (aten.var_mean.correction, ROWS, [0]),
    (aten.logsumexp.default, ROWS, [1], True),
    (aten.linalg_vector_norm.default, ROWS, 2, [1]),
    (aten._adaptive_avg_pool2d.default, IMAGE, [3, 2]),
    (aten.adaptive_max_pool2d.default, IMAGE, [3, 2]),
    (aten.constant_pad_nd.default, IMAGE, [1, 2, -1, 3]),
    *(
        (aten.constant_pad_nd.default, x, pads)
        for x in (IMAGE.permute(0, 3, 1, 2), IMAGE.permute(0, 3, 1, 2)[:, 1:], IMAGE.mT, ROWS.T)
        for pads in ([0, 0, 0, 0], [1, 2], [0, 0, -1, 3])
    ),
    *((aten.cumsum.default, x, -1) for x in (IMAGE.mT, IMAGE[..., ::2], PAIRS.T)),
    (aten.im2col.default, IMAGE, [3, 2], [1, 2], [1, 0], [2, 1]),
    (aten.im2col.default, IMAGE.permute(0, 3, 1, 2), [3, 3], [1, 1], [1, 1], [2, 2]),
    (aten.im2col.default, IMAGE[0], [2, 2], [1, 1], [0, 0], [2, 2]),
    (aten.col2im.default, torch.randn(4, 12, 20), [8, 10], [2, 2], [1, 1], [0, 0], [2, 2]),
    (aten.upsample_nearest2d.default, IMAGE, [16, 20]),
    (aten.upsample_bilinear2d.default, IMAGE, [16, 20], False),
    (aten.upsample_nearest2d_backward.default, IMAGE, [8, 10], [4, 6, 4, 5]),
    (aten.stack.default, [ROWS, ROWS], -1),
    (aten.glu.default, ROWS, 1),
    (aten.mse_loss.default, ROWS, ROWS, 0),
    (aten.huber_loss.default, ROWS, ROWS),
    (aten.binary_cross_entropy_with_logits.default, ROWS, ROWS, None, None, 1),
    (aten.nll_loss_forward.default, ROWS, CLASSES, None, 1, -100),
    (aten.nll_loss_forward.default, ROWS, CLASSES, None, 0, 2),
    (
        *(aten.nll_loss2d_forward.default, IMAGE, torch.zeros(4, 8, 10, dtype=torch.int64)),
        *(None, 0, -100),
    ),
    (aten.masked_fill.Scalar, IMAGE, IMAGE[0] > 0, 0.5),
    *(
        (aten.masked_fill.Scalar, x, x > 0, 0.5)
        for x in (IMAGE.mT, IMAGE[:, :1].expand(4, 6, 8, 10), IMAGE.permute(0, 3, 1, 2)[:, 1:])
    ),
    (aten.gather.default, ROWS, 1, CLASSES[:, None]),
    (aten.xlogy.Tensor, ROWS, ROWS[0]),
]
REFUSED: list[tuple[Any, ...]] = [
    (aten.native_batch_norm.default, IMAGE, ROWS[0], None, None, None, True, 0.1, 1e-5),
    (aten.native_batch_norm.default, IMAGE, None, None, None, None, False, 0.1, 1e-5),
    (aten.nll_loss_forward.default, ROWS, CLASSES[:3], None, 1, -100),
    (aten.nll_loss_forward.default, ROWS, CLASSES.int(), None, 1, -100),
    (aten.constant_pad_nd.default, ROWS, [-9, 4]),
    (aten.stack.default, [ROWS, ROWS[1:]], 0),
    (aten.glu.default, ROWS, 0),
    (aten.masked_fill.Scalar, ROWS, CLASSES > 2, 0.0),
    (aten.gather.default, ROWS, 1, torch.zeros(9, 2, dtype=torch.int64)),
    (aten.var.correction, ROWS, [0, 0]),
]


def _meta(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        strides = value.stride()
        return torch.empty_strided(value.shape, strides, dtype=value.dtype, device="meta")
    return [_meta(v) for v in value] if isinstance(value, list) else value


def _facts(result: Any) -> list[tuple[Any, ...]]:
    results = result if isinstance(result, tuple) else (result,)
    return [(r.shape, r.stride(), r.dtype) for r in results]


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case[0]))
def test_rules_agree_with_eager(case: tuple[Any, ...]) -> None:
    op, *args = case
    assert _facts(infer(op, _meta(args), {})) == _facts(op(*args))


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: str(case[0]))
def test_rules_raise_or_give_none_where_eager_refuses(case: tuple[Any, ...]) -> None:
    op, *args = case
    made = None
    with suppress(RuntimeError, IndexError):
        made = infer(op, _meta(args), {})
    assert made is None


_HOW = (0.1, 1e-5)


def _of_running(training: bool) -> Callable[..., tuple[Any, ...]]:
    return lambda w, m, v: (w, w, m, v, training, *_HOW)


_BATCH_NORMS: dict[str, tuple[Any, Callable[..., tuple[Any, ...]]]] = {
    **{
        f"{op._schema.name} {training}": (op, _of_running(training))
        for op in (
            aten.native_batch_norm.default,
            aten._native_batch_norm_legit.default,
            aten._native_batch_norm_legit_functional.default,
        )
        for training in (True, False)
    },
    "alone": (aten.native_batch_norm.default, lambda w, m, v: (w, w, None, None, True, *_HOW)),
    "no stats": (aten._native_batch_norm_legit.no_stats, lambda w, m, v: (w, w, True, *_HOW)),
    **{
        op._schema.name: (op, lambda w, m, v: (w, w, m, v, *_HOW))
        for op in (
            aten._native_batch_norm_legit_no_training.default,
            aten._batch_norm_with_update.default,
            aten._batch_norm_with_update_functional.default,
            aten._batch_norm_no_update.default,
        )
    },
}
_LAYOUTS: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    lambda x: x,
    lambda x: x.contiguous(memory_format=torch.channels_last),
    lambda x: x.mT,
    lambda x: x[..., ::2],
    lambda x: x[..., 0],
)


@pytest.mark.parametrize("name", _BATCH_NORMS)
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str
)
def test_batch_norm_statistics_have_eager_dtype(name: str, dtype: torch.dtype) -> None:
    """Covers 16-bit images with 16-bit or float32 parameters, or with statistics only."""
    op, arguments = _BATCH_NORMS[name]
    for layout, weights, statistics, has_weights in itertools.product(
        _LAYOUTS, {dtype, torch.float32}, {dtype, torch.float32}, (True, False)
    ):
        x, w = layout(IMAGE.to(dtype)), SIX.to(weights) if has_weights else None
        args = arguments(w, torch.zeros(6, dtype=statistics), torch.ones(6, dtype=statistics))
        told = infer(op, tuple(map(_meta, (x, *args))), {})
        if told is not None:
            assert _facts(told) == _facts(op(x, *args)), (x.stride(), weights, statistics)
        else:
            assert not x.is_contiguous() or {weights, statistics} != {dtype}


ORDERS = ((0, 1, 2), (0, 2, 1), (2, 1, 0), (1, 2, 0))  # of the dimensions in memory


def _in_order(x: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    back = tuple(order.index(d) for d in range(3))
    return x.permute(order).contiguous().permute(back)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
@pytest.mark.parametrize("transposed", [False, True])
def test_conv1d_layouts_equal_eager(dtype: torch.dtype, transposed: bool) -> None:
    """One of length 1, or its weight, may look like an image that is channels_last."""
    settings = ([2], [0], [1], transposed, [1 if transposed else 0], 1)
    shapes = itertools.product((1, 2), (1, 2, 3), (1, 2, 4), (1, 2))
    for (n, c, length, k), first, second in itertools.product(shapes, ORDERS, ORDERS):
        if k > length:
            continue
        x = _in_order(torch.ones(n, c, length, dtype=dtype), first)
        kernel = (c, 2, k) if transposed else (2, c, k)
        w = _in_order(torch.ones(kernel, dtype=dtype), second)
        wanted = aten.convolution.default(x, w, None, *settings)
        told = infer(aten.convolution.default, _meta([x, w, None, *settings]), {})
        assert told.shape == wanted.shape
        for d, size in enumerate(wanted.shape):
            assert size == 1 or told.stride(d) == wanted.stride(d), (x.stride(), w.stride())


SCRIPT = """
import sys, torch, jitmagic
import torch.nn as nn, torch.nn.functional as F
net = nn.Sequential(
    nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.3),
    nn.Conv2d(8, 8, 3), nn.GroupNorm(2, 8), nn.GELU(), nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(1),
    nn.Flatten(), nn.Linear(8, 10),
)
def step(x, target):
    out = net(x)
    hot = F.one_hot(target, 10) * 1.0
    return F.cross_entropy(out, target) + F.mse_loss(out, hot)
x, target = torch.randn(4, 3, 16, 16), torch.arange(4)
jitmagic.jit(step)(x, target).backward()
net.eval()
jitmagic.jit(lambda x: net(x).argmax(1) == 3)(x)
print([m for m in ("torch._dynamo", "torch._inductor", "sympy") if m in sys.modules])
"""


def test_a_convolutional_network_needs_neither_dynamo_nor_sympy() -> None:
    out = run_forked(SCRIPT)
    assert out.stdout.strip() == "[]", out.stderr
