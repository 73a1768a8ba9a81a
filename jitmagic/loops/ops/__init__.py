"""Lowerings by family; importing this package fills registry.LOWERINGS."""

from . import (
    activations,
    generate,
    indexing,
    matmul,
    normalization,
    pointwise,
    random,
    reductions,
    shuffles,
    softmax,
    views,
)

__all__ = [
    "activations",
    "generate",
    "indexing",
    "matmul",
    "normalization",
    "pointwise",
    "random",
    "reductions",
    "shuffles",
    "softmax",
    "views",
]
