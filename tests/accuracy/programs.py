"""The programs whose rounding errors are compared with eager's.

In: nothing. Out: PROGRAMS: every reduction over every layout and size, alone and beside others in a
kernel; the layers and losses made of reductions, with their gradients. Invariant: a program maps
tensors to tensors and is as good in float64 as its formula.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["PROGRAMS", "Program", "draw"]

Dims = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Program:
    """`fn` over tensors of `shapes`; `grad`: with the gradients of all inputs. `offset` is added to
    the normal numbers that the first input holds.
    """

    title: str
    fn: Callable[..., tuple[Tensor, ...]]
    shapes: tuple[tuple[int, ...], ...]
    grad: bool = False
    offset: float = 0.0
    dtype: torch.dtype = torch.float32


def draw(program: Program, seed: int) -> list[Tensor]:
    """The inputs of one run, on the CPU."""
    generator = torch.Generator().manual_seed(seed)
    made = [torch.randn(shape, generator=generator) for shape in program.shapes]
    made[0] += program.offset
    return [x.to(program.dtype) for x in made]


# -- reductions -----------------------------------------------------------------------------------

REDUCTIONS: dict[str, Callable[[Tensor, Dims], Tensor]] = {
    "sum": lambda x, d: x.sum(d),
    "mean": lambda x, d: x.mean(d, keepdim=True),
    "prod": lambda x, d: (1 + x / 64).prod(d[-1]),
    "var": lambda x, d: x.var(d),
    "std": lambda x, d: x.std(d, correction=0),
    "norm1": lambda x, d: torch.linalg.vector_norm(x, 1, d),
    "norm2": lambda x, d: torch.linalg.vector_norm(x, 2, d),
    "norm3": lambda x, d: torch.linalg.vector_norm(x, 3, d),
    "logsumexp": lambda x, d: x.logsumexp(d),
    "softmax": lambda x, d: x.softmax(d[-1]),
    "log_softmax": lambda x, d: x.log_softmax(d[-1]),
    "dot": lambda x, d: (x * x.sin()).sum(d),
    "cumsum": lambda x, d: x.cumsum(d[-1]),
}

# (title, shape, reduced dimensions, the view of the input that is reduced)
LAYOUTS: tuple[tuple[str, tuple[int, ...], Dims, Callable[[Tensor], Tensor]], ...] = (
    ("rows 8x64", (8, 64), (1,), lambda x: x),
    ("rows 64x1000", (64, 1000), (1,), lambda x: x),
    ("rows 3x70001", (3, 70001), (1,), lambda x: x),
    ("columns 50x96", (50, 96), (0,), lambda x: x),
    ("columns 20000x24", (20000, 24), (0,), lambda x: x),
    ("middle 6x500x40", (6, 500, 40), (1,), lambda x: x),
    ("planes 4x16x64x64", (4, 16, 64, 64), (0, 2, 3), lambda x: x),
    ("outer 30x8x30x7", (30, 8, 30, 7), (0, 2), lambda x: x),
    ("transposed 900x120", (900, 120), (1,), lambda x: x.t()),
    ("every third of 64x3000", (64, 3000), (1,), lambda x: x[:, ::3]),
    ("windows 400x300", (400, 300), (1, 2), lambda x: x.view(400, 100, 3)),
    ("everything 700x1001", (700, 1001), (0, 1), lambda x: x),
)


def _alone(reduce: Callable[..., Tensor], dims: Dims, view: Callable[[Tensor], Tensor]):
    return lambda x: (reduce(view(x), dims),)


def _together(reduce: Callable[..., Tensor], dims: Dims, view: Callable[[Tensor], Tensor]):
    def fn(x: Tensor) -> tuple[Tensor, ...]:
        y = view(x)
        return reduce(y, dims), y.sum(dims), (y * y).sum(dims), y.amax(dims)

    return fn


def _reductions() -> Iterator[Program]:
    for place, shape, dims, view in LAYOUTS:
        for name, reduce in REDUCTIONS.items():
            for company, build in (("alone", _alone), ("together", _together)):
                yield Program(f"{name} {place} {company}", build(reduce, dims, view), (shape,))
    for place, shape, dims, view in LAYOUTS:
        for name in ("sum", "var", "logsumexp", "norm2"):
            fn = _together(REDUCTIONS[name], dims, view)
            yield Program(f"{name} {place} offset", fn, (shape,), offset=30.0)
    for place, shape, dims, view in LAYOUTS:
        fn = _together(REDUCTIONS["mean"], dims, view)
        yield Program(f"mean {place} bf16", fn, (shape,), dtype=torch.bfloat16)


# -- layers and losses ----------------------------------------------------------------------------


def _labels(x: Tensor) -> Tensor:
    return torch.arange(x.shape[0], device=x.device) * 7 % x.shape[1]


LAYERS: dict[str, tuple[Callable[..., Tensor], tuple[tuple[int, ...], ...]]] = {
    "layer_norm 200x768": (
        lambda x, w, b: F.layer_norm(x, (768,), w, b),
        ((200, 768), (768,), (768,)),
    ),
    "layer_norm 5000x24": (
        lambda x, w, b: F.layer_norm(x, (24,), w, b),
        ((5000, 24), (24,), (24,)),
    ),
    "rms_norm 300x512": (lambda x, w: F.rms_norm(x, (512,), w), ((300, 512), (512,))),
    "group_norm 6x32x20x20": (
        lambda x, w, b: F.group_norm(x, 8, w, b),
        ((6, 32, 20, 20), (32,), (32,)),
    ),
    "instance_norm 4x6x30x30": (lambda x: F.instance_norm(x), ((4, 6, 30, 30),)),
    "batch_norm 4x16x64x64": (
        lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
        ((4, 16, 64, 64), (16,), (16,)),
    ),
    "batch_norm 4x96x2x2": (
        lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
        ((4, 96, 2, 2), (96,), (96,)),
    ),
    "batch_norm 3000x40": (
        lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
        ((3000, 40), (40,), (40,)),
    ),
    "softmax 100x1000": (lambda x: x.softmax(-1), ((100, 1000),)),
    "softmax columns 1000x100": (lambda x: x.softmax(0), ((1000, 100),)),
    "log_softmax 64x3000": (lambda x: x.log_softmax(-1), ((64, 3000),)),
    "logsumexp 64x3000": (lambda x: x.logsumexp(-1), ((64, 3000),)),
    "var 64x3000": (lambda x: x.var(-1), ((64, 3000),)),
    "norm 64x3000": (lambda x: x.norm(dim=-1), ((64, 3000),)),
    "cross_entropy 500x200": (lambda x: F.cross_entropy(x, _labels(x)), ((500, 200),)),
    "mse 300x1000": (lambda x, y: F.mse_loss(x, y), ((300, 1000), (300, 1000))),
    "smooth_l1 300x1000": (lambda x, y: F.smooth_l1_loss(x, y), ((300, 1000), (300, 1000))),
    "bce 300x1000": (
        lambda x, y: F.binary_cross_entropy_with_logits(x, y.sigmoid()),
        ((300, 1000), (300, 1000)),
    ),
    "kl_div 100x1000": (
        lambda x, y: F.kl_div(x.log_softmax(-1), y.softmax(-1), reduction="batchmean"),
        ((100, 1000), (100, 1000)),
    ),
    "bias 3000x40": (lambda x, b: (x + b).tanh(), ((3000, 40), (40,))),
    "cosine 200x700": (lambda x, y: F.cosine_similarity(x, y), ((200, 700), (200, 700))),
    "linear 30x70x20": (lambda x, w, b: F.linear(x, w, b).relu(), ((30, 70), (20, 70), (20,))),
}


def _layers() -> Iterator[Program]:
    for title, (fn, shapes) in LAYERS.items():
        for offset in (0.0, 5.0):
            name = f"{title}{' offset' if offset else ''}"
            yield Program(name, _single(fn), shapes, grad=True, offset=offset)


def _single(fn: Callable[..., Tensor]) -> Callable[..., tuple[Tensor, ...]]:
    return lambda *tensors: (fn(*tensors),)


PROGRAMS: tuple[Program, ...] = (*_reductions(), *_layers())
