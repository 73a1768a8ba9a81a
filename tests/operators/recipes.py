"""The base call of an operator: tensors and plain values that its kernel takes.

Comes in: an overload and a dtype. Goes out: a value per argument that has no default, by its type
and name; RECIPES has what cannot be told from those: shapes that have to fit together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

__all__ = ["Operand", "base_of", "built"]

_FLOATS = (1.5, -0.5, 0.25, -2.0, 3.0, 0.75, -1.25, 0.1, 100.0, -0.0, math.inf, math.nan)
_TAME = (1.5, -0.5, 0.25, -2.0, 3.0, 0.75, -1.25, 0.1, 2.5, -0.7, 0.9, 0.0)
_INTS = (1, 2, -1, 3, 0, 5, -7, 2, 100, -3, 4, -100)


@dataclass(frozen=True)
class Operand:
    """A tensor argument. `kind`: "data", "tame" (finite), "index" or "mask"."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    kind: str = "data"

    def __str__(self) -> str:
        return f"{self.kind} {list(self.shape)} {str(self.dtype).removeprefix('torch.')}"


def built(operand: Operand, device: str = "cpu") -> torch.Tensor:
    """The same numbers every time; floats with infinities and NaN in the last row only."""
    count = math.prod(operand.shape)
    made = _data(operand.kind, operand.dtype, count)
    return made.reshape(operand.shape).to(device)


def _data(kind: str, dtype: torch.dtype, count: int) -> torch.Tensor:
    if kind == "index":
        return (torch.arange(count) % 3).to(dtype)
    if kind == "mask" or dtype is torch.bool:
        return (torch.arange(count) % 3 == 0).to(dtype)
    if dtype.is_floating_point or dtype.is_complex:
        row = torch.tensor(_FLOATS if kind == "data" else _TAME, dtype=torch.float64)
        values = row.repeat(count // len(row) + 1)[:count]
        return (
            torch.complex(values, values.flip(0)).to(dtype)
            if dtype.is_complex
            else values.to(dtype)
        )
    values = torch.tensor(_INTS).repeat(count // len(_INTS) + 1)[:count]
    return (values.abs() if dtype is torch.uint8 else values).to(dtype)


# -- recipes --------------------------------------------------------------------------------------


def _index(*shape: int) -> Operand:
    return Operand(shape, torch.int64, "index")


# A tuple is the shape of a tensor of the case's dtype.
RECIPES: Mapping[str, Mapping[str, Any]] = {
    "addmv": {"self": (3,), "mat": (3, 4), "vec": (4,)},
    "addr": {"self": (3, 4), "vec1": (3,), "vec2": (4,)},
    "baddbmm": {"self": (2, 3, 4), "batch1": (2, 3, 5), "batch2": (2, 5, 4)},
    "bmm": {"self": (2, 3, 4), "mat2": (2, 4, 3)},
    "mm": {"self": (3, 4), "mat2": (4, 3)},
    "mv": {"self": (3, 4), "vec": (4,)},
    "as_strided": {"size": [2, 3], "stride": [1, 2]},
    "as_strided_scatter": {"size": [2, 3], "stride": [1, 2], "src": (2, 3)},
    "_reshape_alias": {"size": [4, 3], "stride": [3, 1]},
    "broadcast_to": {"size": [2, 3, 4]},
    "expand": {"size": [2, 3, 4]},
    "channel_shuffle": {"self": (1, 4, 2, 2), "groups": 2},
    "native_channel_shuffle": {"self": (1, 4, 2, 2), "groups": 2},
    "pixel_shuffle": {"self": (1, 4, 2, 3), "upscale_factor": 2},
    "pixel_unshuffle": {"self": (1, 1, 4, 6), "downscale_factor": 2},
    "constant_pad_nd": {"pad": [1, 2]},
    "diagonal_backward": {
        **{"grad_output": (3,), "input_sizes": [3, 4], "offset": 0, "dim1": 0, "dim2": 1}
    },
    "diagonal_scatter": {"src": (3,)},
    "embedding": {"weight": (3, 4), "indices": _index(2, 2)},
    "empty_permuted": {"size": [3, 4], "physical_layout": [1, 0]},
    "empty_strided": {"size": [3, 4], "stride": [1, 3]},
    "new_empty_strided": {"size": [3, 4], "stride": [1, 3]},
    "gather": {"dim": 1, "index": _index(3, 2)},
    "scatter": {"dim": 1, "index": _index(3, 3), "src": (3, 4), "value": 2},
    "index_select": {"dim": 0, "index": _index(3)},
    "index_add": {"dim": 0, "index": _index(3), "source": (3, 4)},
    "scatter_add": {"dim": 1, "index": _index(3, 3), "src": (3, 4)},
    "index_put": {"indices": [_index(3)], "values": (3, 4)},
    "_unsafe_index_put": {"indices": [_index(3)], "values": (3, 4)},
    "embedding_dense_backward": {
        **{"grad_output": (2, 2, 4), "indices": _index(2, 2), "num_weights": 3},
        **{"padding_idx": -1, "scale_grad_by_freq": False},
    },
    "index": {"indices": [_index(3)]},
    "_unsafe_index": {"indices": [_index(3)]},
    "select_backward": {"grad_output": (4,), "input_sizes": [3, 4], "dim": 0, "index": 1},
    "select_scatter": {"src": (4,), "dim": 0, "index": 1},
    "slice_backward": {
        **{"grad_output": (3, 2), "input_sizes": [3, 4], "dim": 1, "start": 0, "end": 4, "step": 2}
    },
    "slice_scatter": {"src": (3, 2), "dim": 1, "start": 0, "end": 4, "step": 2},
    "glu_backward": {"grad_output": (3, 2), "self": (3, 4), "dim": 1},
    "native_dropout": {"p": 0.5, "train": True},
    "native_dropout_backward": {"mask": Operand((3, 4), torch.bool, "mask"), "scale": 2.0},
    "nll_loss_forward": {"target": _index(3), "weight": None, "reduction": 1, "ignore_index": -100},
    "nll_loss_backward": {
        **{"grad_output": (), "target": _index(3), "weight": None, "reduction": 1},
        **{"ignore_index": -100, "total_weight": ()},
    },
    "nll_loss2d_forward": {
        **{"self": (2, 3, 2, 2), "target": _index(2, 2, 2), "weight": None, "reduction": 1},
        "ignore_index": -100,
    },
    "nll_loss2d_backward": {
        **{"grad_output": (), "self": (2, 3, 2, 2), "target": _index(2, 2, 2), "weight": None},
        **{"reduction": 1, "ignore_index": -100, "total_weight": ()},
    },
    "permute": {"dims": [1, 0]},
    "repeat": {"repeats": [2, 1]},
    "reshape": {"shape": [4, 3]},
    "view": {"size": [4, 3]},
    "_unsafe_view": {"size": [4, 3]},
    "roll": {"shifts": [1], "dims": [0]},
    "split": {"split_size": 2},
    "split.sizes": {"split_size": [1, 2]},
    "split_with_sizes": {"split_sizes": [1, 2]},
    "unsafe_split_with_sizes": {"split_sizes": [1, 2]},
    "unsafe_split": {"split_size": 2},
    "stack": {"tensors": [(3, 4), (3, 4)]},
    "transpose": {"dim0": 0, "dim1": 1},
    "unflatten": {"dim": 1, "sizes": [2, 2]},
    "unfold": {"dimension": 1, "size": 2, "step": 1},
    "avg_pool2d": {"self": (1, 2, 3, 4), "kernel_size": [2, 2], "padding": [1, 1]},
    "avg_pool2d_backward": {
        **{"grad_output": (1, 2, 2, 3), "self": (1, 2, 3, 4), "kernel_size": [2, 2]},
        **{"stride": [2, 2], "padding": [1, 1], "ceil_mode": False, "count_include_pad": True},
        "divisor_override": None,
    },
    "max_pool2d_with_indices": {"self": (1, 2, 3, 4), "kernel_size": [2, 2], "padding": [1, 1]},
    "max_pool2d_with_indices_backward": {
        **{"grad_output": (1, 2, 1, 2), "self": (1, 2, 3, 4), "kernel_size": [2, 2]},
        **{"stride": [2, 2], "padding": [0, 0], "dilation": [1, 1], "ceil_mode": False},
        "indices": _index(1, 2, 1, 2),
    },
    "upsample_nearest1d": {"self": (1, 2, 4), "output_size": [6]},
    "upsample_nearest2d": {"self": (1, 2, 2, 2), "output_size": [4, 3]},
    "upsample_nearest3d": {"self": (1, 1, 2, 2, 2), "output_size": [4, 2, 3]},
    "trace": {"self": (3, 4)},
    "_fused_rms_norm": {"normalized_shape": [4], "weight": (4,), "eps": 1e-5},
    "_fused_rms_norm_backward": {
        **{"normalized_shape": [4], "rstd": (3, 1), "weight": (4,)},
        "output_mask": [True, True],
    },
    "native_layer_norm": {"normalized_shape": [4], "weight": (4,), "bias": (4,), "eps": 1e-5},
    "native_layer_norm_backward": {
        **{"normalized_shape": [4], "mean": (3, 1), "rstd": (3, 1), "weight": (4,), "bias": (4,)},
        "output_mask": [True, True, True],
    },
    "native_group_norm": {
        **{"input": (2, 4, 3), "weight": (4,), "bias": (4,), "N": 2, "C": 4, "HxW": 3},
        **{"group": 2, "eps": 1e-5},
    },
    "native_group_norm_backward": {
        **{"grad_out": (2, 4, 3), "input": (2, 4, 3), "mean": (2, 2), "rstd": (2, 2)},
        **{"weight": (4,), "N": 2, "C": 4, "HxW": 3, "group": 2},
        "output_mask": [True, True, True],
    },
    "arange": {"end": 5, "start": 1, "step": 1},
    "linspace": {"start": 0, "end": 3, "steps": 5},
    "_prelu_kernel": {"weight": (1,)},
    "where": {"condition": Operand((3, 4), torch.bool, "mask")},
    "logsumexp": {"dim": [1]},
    "flip": {"dims": [1]},
    "_foreach_add.Tensor": {"other": ()},
    "_foreach_mul.Tensor": {"other": ()},
    "_foreach_div.Tensor": {"other": ()},
    "_foreach_lerp": {"tensors1": [(3, 4), (2,)], "weights": [(3, 4), (2,)], "weight": 0.5},
    "clamp": {"min": -1, "max": 2},
    "clip": {"min": -1, "max": 2},
    "clamp.Tensor": {"min": (3, 4), "max": (4,)},
    "clip.Tensor": {"min": (3, 4), "max": (4,)},
    "fill.Tensor": {"value": ()},
    "masked_fill.Tensor": {"value": ()},
}
_BATCH_NORM_BACKWARD = {
    **{"grad_out": (2, 3, 4), "input": (2, 3, 4), "weight": (3,), "running_mean": (3,)},
    **{"running_var": (3,), "save_mean": (3,), "save_invstd": (3,), "train": True, "eps": 1e-5},
    "output_mask": [True, True, True],
}
_BATCH_NORM = {
    **{"input": (2, 3, 4), "weight": (3,), "bias": (3,), "running_mean": (3,)},
    **{"running_var": (3,), "training": True, "momentum": 0.1, "eps": 1e-5},
}
_SHAPES = {"size": [3, 4], "dim": 0, "dims": [0], "output_mask": [True, True, True], "n": 3, "m": 4}
_NUMBERS = {"negative_slope": 0.1, "half_to_float": False, "is_result": False}


@cache
def base_of(op: Any, dtype: torch.dtype) -> Mapping[str, Any]:
    """A value for each argument that has no default."""
    recipe = {**RECIPES.get(op._opname, {}), **RECIPES.get(f"{op._opname}.{op._overloadname}", {})}
    if "batch_norm" in op._opname and "backward" not in op._opname:
        recipe = _BATCH_NORM
    if op._opname == "native_batch_norm_backward":
        recipe = _BATCH_NORM_BACKWARD
    made: dict[str, Any] = {}
    for argument in op._schema.arguments:
        name = argument.name
        if name in recipe and (not argument.has_default_value() or name in ("dims", "dim")):
            made[name] = _tensors(recipe[name], dtype)
        elif name in recipe and recipe[name] is not None:
            made[name] = _tensors(recipe[name], dtype)
        elif not argument.has_default_value():
            made[name] = _by_type(str(argument.real_type), name, dtype)
    return made


def _tensors(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, tuple):
        return Operand(value, dtype)
    if isinstance(value, list):
        return [_tensors(part, dtype) for part in value]
    return value


def _by_type(kind: str, name: str, dtype: torch.dtype) -> Any:
    if name in _SHAPES:
        whole = "List" in kind
        value = _SHAPES[name]
        return [value] if whole and isinstance(value, int) else value
    if name in _NUMBERS:
        return _NUMBERS[name]
    if kind == "Tensor":
        masked = name in ("mask", "condition")
        return Operand((3, 4), torch.bool, "mask") if masked else Operand((3, 4), dtype)
    if kind == "List[Tensor]":
        return (
            [Operand((3, 4), dtype), Operand((2,), dtype)]
            if "tensors" not in name
            else [Operand((3, 4), dtype), Operand((3, 4), dtype)]
        )
    if kind.startswith("Optional"):
        return None
    return {
        "number": 2, "float": 0.5, "int": 1, "bool": False, "List[number]": [2, 0.5],
        "List[int]": [1], "ScalarType": dtype, "str": "none",
    }.get(kind)  # fmt: skip
