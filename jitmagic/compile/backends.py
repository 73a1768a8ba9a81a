"""Backends that get the torch-level graph: "eager", which runs it, and those of the user.

Input: the graph of a trace, and the frame of the call for a backend's `example_inputs`. Output: a
callable of the graph's inputs, which returns a tuple.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import torch
from torch.fx import GraphModule

from ..budget import uncounted
from ..bytecode import FrameSnapshot
from ..construction import made_by
from ..errors import ASSERTION, CompileFailed
from ..graph.autocast_mode import restoring_modes
from ..graph.lazy_module import with_code
from ..guards.read import read_source
from ..late import late_names
from ..records import USERS_BACKEND, Recording
from ..runtime.examples import examples
from ..torch_types import AnyFunction, Executable
from ..trace.result import GraphInput

if TYPE_CHECKING:
    from ..graph.symbolic.python_numbers import in_python
else:
    late_names(globals(), {"graph.symbolic.python_numbers": "in_python"})

__all__ = ["call_backend", "example_inputs", "interpreted_by_torch"]

_FX_CODE = "<eval_with_key>"  # the file name that torch.fx gives the code of a GraphModule


def interpreted_by_torch(gm: GraphModule) -> Executable:
    """Return the executable of backend="eager"."""
    forward = restoring_modes(gm, with_code(in_python(gm)).forward)

    def run(*inputs: torch.Tensor) -> tuple[object, ...]:
        made: tuple[object, ...] = forward(*inputs)
        return made

    return made_by(run, "interpreted", gm)


def call_backend(
    backend: AnyFunction,
    gm: GraphModule,
    make_inputs: Callable[[], Sequence[torch.Tensor]],
    record: Recording,
) -> Executable:
    """Call the user's own backend with the graph and return its executable."""
    with record.stage(USERS_BACKEND), uncounted():
        run = backend(with_code(gm), make_inputs())
        if not callable(run):
            raise CompileFailed(f"the backend returned {run!r}, which is not callable")
    return restoring_modes(gm, _as_tuple(run))


def _as_tuple(run: AnyFunction) -> Executable:
    """Convert the results of a backend to a tuple, and mark errors raised by its code."""

    def call(*inputs: object) -> tuple[object, ...]:
        try:
            outputs = run(*inputs)
        except Exception as error:  # the user's backend may raise anything; it passes through
            if not _is_of_graph(error):
                error.__jitmagic_from_backend__ = True  # type: ignore[attr-defined]
            raise
        return outputs if type(outputs) is tuple else tuple(outputs)

    return call


def _is_of_graph(error: Exception) -> bool:
    """Return whether an operation of the graph raised; the call is then repeated in eager."""
    frames = traceback.walk_tb(error.__traceback__)
    is_in_graph = any(frame.f_code.co_filename.startswith(_FX_CODE) for frame, _ in frames)
    return is_in_graph or ASSERTION in str(error)


def example_inputs(inputs: Iterable[GraphInput], snapshot: FrameSnapshot) -> list[torch.Tensor]:
    """Return the inputs of the graph in this call."""
    return [_example(entry, snapshot) for entry in inputs]


def _example(entry: GraphInput, snapshot: FrameSnapshot) -> torch.Tensor:
    if entry.is_drawn:
        return examples((entry.spec,))[0]
    value: torch.Tensor = read_source(entry.source, snapshot)
    if entry.spec.requires_grad and not value.requires_grad:  # the frame makes it a leaf
        return value.detach().requires_grad_()
    return torch.tensor(value, dtype=entry.spec.dtype) if entry.is_scalar else value
