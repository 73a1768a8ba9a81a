"""Lowerings by family; importing this package fills registry.LOWERINGS."""

from . import (
    accumulating,
    activations,
    extrema,
    generate,
    indexing,
    matmul,
    orders,
    pointwise,
    pooling,
    random,
    reductions,
    scans,
    shuffles,
    views,
)

__all__ = [
    "accumulating",
    "activations",
    "extrema",
    "generate",
    "indexing",
    "matmul",
    "orders",
    "pointwise",
    "pooling",
    "random",
    "reductions",
    "scans",
    "shuffles",
    "views",
]
