"""Lowerings by family; importing this package fills registry.LOWERINGS."""

from . import (
    activations,
    generate,
    indexing,
    matmul,
    pointwise,
    random,
    reductions,
    shuffles,
    views,
)

__all__ = [
    "activations",
    "generate",
    "indexing",
    "matmul",
    "pointwise",
    "random",
    "reductions",
    "shuffles",
    "views",
]
