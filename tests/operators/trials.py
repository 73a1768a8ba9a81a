"""What is tried: calls of an operator with the samples that torch's own tests use.

Comes in: an OpInfo. Goes out: `Trial`s, in the ways of WAYS: the call, its in-place form, the call
with `out=`, and calls that eager refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.testing._internal import common_utils
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo import core as opinfo_core
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils._pytree import tree_map

__all__ = ["OPERATORS", "WAYS", "Trial", "copied", "name_of", "trials"]

# For each list of samples torch looks for its own test on the stack, and reads every file there:
# half of what these trials took. Two modules have the name.
common_utils.extract_test_fn = opinfo_core.extract_test_fn = lambda: None

# Memory that nobody has written yet is all that these show.
_UNWRITTEN = frozenset(
    "empty empty_like empty_permuted empty_strided new_empty new_empty_strided resize_ "
    "resize_as_".split()
)
OPERATORS = tuple(op for op in op_db if op.name not in _UNWRITTEN)


@dataclass(frozen=True)
class Trial:
    """`call(*arguments)`; with `grads` the gradients of its results are taken too. `joint`: it is
    several calls, and returns a list of their results.
    """

    call: Callable[..., Any]
    arguments: tuple[Any, ...]
    grads: bool = False
    label: str = ""
    joint: bool = False


def name_of(op: OpInfo) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def trials(
    op: OpInfo, way: str, dtype: torch.dtype, count: int, device: str = "cpu"
) -> Iterator[Trial]:
    """At most `count` trials, spread over the samples that there are."""
    kind = torch.device(device).type
    if way != "errors" and dtype not in op.supported_dtypes(kind):
        return
    torch.manual_seed(0)
    for n, trial in enumerate(_spread(list(WAYS[way](op, dtype, device)), count)):
        yield replace(trial, label=f"{name_of(op)} {way} {dtype} sample {n}")


def _spread(made: list[Any], count: int) -> list[Any]:
    if len(made) <= count:
        return made
    return [made[n * len(made) // count] for n in range(count)]


def _calls(op: OpInfo, dtype: torch.dtype, device: str) -> Iterator[Trial]:
    kind = torch.device(device).type
    grads = op.supports_autograd and dtype in op.supported_backward_dtypes(kind)
    for sample in op.sample_inputs(device, dtype, requires_grad=grads):
        yield Trial(_with_keywords(op.op), (sample.input, sample.args, sample.kwargs), grads)


def _in_place(op: OpInfo, dtype: torch.dtype, device: str) -> Iterator[Trial]:
    method = op.inplace_variant
    if method is None:
        return
    on_a_copy = lambda x, *args, **kwargs: method(x.clone(), *args, **kwargs)  # noqa: E731
    for sample in op.sample_inputs(device, dtype):
        if not sample.broadcasts_input:
            given = sample.input, sample.args, sample.kwargs
            yield Trial(_with_keywords(on_a_copy), given)


def _into(op: OpInfo, dtype: torch.dtype, device: str) -> Iterator[Trial]:
    """out= of the right shape and dtype, of another dtype, and of another shape, in turn."""
    if not op.supports_out:
        return
    for n, sample in enumerate(op.sample_inputs(device, dtype)):
        made = op.op(sample.input, *sample.args, **sample.kwargs)
        if not isinstance(made, Tensor):
            return
        other = torch.float64 if made.dtype is not torch.float64 else torch.float32
        targets = (
            torch.zeros_like(made),
            torch.zeros_like(made, dtype=other),
            made.new_zeros((2, *made.shape)),
        )
        for target in (targets[0], targets[1 + n % 2]):
            keywords = {**sample.kwargs, "out": target}
            yield Trial(_with_keywords(op.op), (sample.input, sample.args, keywords))


def _refused(op: OpInfo, dtype: torch.dtype, device: str) -> Iterator[Trial]:
    if op.error_inputs_func is not None:
        for refused in op.error_inputs(device):
            sample = refused.sample_input
            yield Trial(_with_keywords(op.op), (sample.input, sample.args, sample.kwargs))


def _with_keywords(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, args, kwargs: function(x, *args, **kwargs)


WAYS = {"call": _calls, "in place": _in_place, "out": _into, "errors": _refused}


def copied(arguments: Any) -> Any:
    """Fresh tensors with the same strides, so that a call finds what the one before found."""
    return tree_map(lambda v: _copy(v) if isinstance(v, Tensor) else v, arguments)


def _copy(t: Tensor) -> Tensor:
    data = t.detach()
    if t.layout is not torch.strided or 0 in data.stride() or not data.numel():
        made = data.clone()
    else:
        made = torch.empty_strided(data.shape, data.stride(), dtype=t.dtype, device=t.device)
        made.copy_(data)
    return made.requires_grad_(t.requires_grad)
