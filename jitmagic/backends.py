"""Backends that get the torch-level graph: "eager", which runs it, and those of the user.

Comes in: the graph of a trace, and the frame of the call for the `example_inputs` of a backend.
Goes out: a callable of the graph's inputs, which returns a tuple.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import torch
from torch.fx import GraphModule

from .bytecode import FrameSnapshot
from .errors import CompileFailed
from .graph.autocast import modes_kept
from .graph.lazy_module import written
from .graph.python_numbers import in_python
from .guards.read import read_source
from .records import USERS_BACKEND, Recording
from .runtime.examples import examples
from .runtime.native import Executable
from .trace.result import GraphInput

__all__ = ["call_backend", "example_inputs", "interpreted_by_torch"]


def interpreted_by_torch(gm: GraphModule) -> Executable:
    """Of backend="eager"."""
    return modes_kept(gm, written(in_python(gm)).forward)


def call_backend(
    backend: Callable[..., Any],
    gm: GraphModule,
    make_inputs: Callable[[], Sequence[torch.Tensor]],
    record: Recording,
) -> Executable:
    """What the user's own backend makes of the graph."""
    with record.stage(USERS_BACKEND):
        run = backend(written(gm), make_inputs())
        if not callable(run):
            raise CompileFailed(f"the backend returned {run!r}, which is not callable")
    return modes_kept(gm, _as_tuple(run))


def _as_tuple(run: Callable[..., Any]) -> Executable:
    """Backends may return a list or a tuple."""

    def call(*inputs: Any) -> tuple[Any, ...]:
        outputs = run(*inputs)
        return outputs if type(outputs) is tuple else tuple(outputs)

    return call


def example_inputs(inputs: Iterable[GraphInput], snapshot: FrameSnapshot) -> list[torch.Tensor]:
    """What the graph is given in this call."""
    return [_example(entry, snapshot) for entry in inputs]


def _example(entry: GraphInput, snapshot: FrameSnapshot) -> torch.Tensor:
    if entry.is_drawn:
        return examples((entry.spec,))[0]
    value: Any = read_source(entry.source, snapshot)
    if entry.spec.requires_grad and not value.requires_grad:  # the frame makes it a leaf
        value = value.detach().requires_grad_()
    elif entry.is_scalar:
        value = torch.tensor(value, dtype=entry.spec.dtype)
    return cast("torch.Tensor", value)
