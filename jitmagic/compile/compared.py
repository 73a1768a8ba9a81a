"""Decides which variants are compared with eager on their first calls, and on which device.

Input: a traced frame. Output: Comparable, or None if eager must not alternate with compiled code,
or if the times of calls would mean nothing.
"""

from __future__ import annotations

import math

import torch

from ..devices import row_of
from ..frame.handle import Handle
from ..frame.ledger import Comparable
from ..graph.node_meta import devices_in
from ..graph.targets.control_flow import control_flow_in
from ..spec import TensorSpec
from ..symbols.size import hint_of
from ..trace.result import Break, Trace

__all__ = ["comparable"]

# Eager's memory as a multiple of all results: saved tensors for a backward, and gradients.
_EAGER_KEEPS = 2


def comparable(handle: Handle, traced: Trace) -> Comparable | None:
    """Return how the variant is compared, or None. A resume function is timed as a part of its
    frame. CUDA graphs are tied to addresses, which eager calls would change, and were asked for.
    """
    options = handle.options
    wanted = options.keep == "faster" and options.backend == "native" and not options.fullgraph
    if handle.is_root and not handle.family.compiler.is_listed:
        return None  # it runs once, and timing it would suspend the timing of all its callees
    if not wanted or handle.resume_line is not None or torch.are_deterministic_algorithms_enabled():
        return None
    if any(control_flow_in(traced.graph)):
        return None  # in eager, torch.cond and the like call torch.compile
    accelerators = {device for device in devices_in(traced.graph) if device.type != "cpu"}
    if not accelerators:
        # The rest of the frame, after the break, may use an accelerator, on any of its devices.
        rest_is_unknown = isinstance(traced.exit, Break) and torch.accelerator.is_available()
        return None if rest_is_unknown else Comparable()
    if options.cuda_graphs or len(accelerators) > 1:
        return None
    (device,) = accelerators
    return (
        Comparable(device, _EAGER_KEEPS * _result_bytes(traced))
        if row_of(device).runs_cuda
        else None
    )


def _result_bytes(traced: Trace) -> int:
    """Return the bytes of all results of the graph's operations, views included, in this call."""
    return sum(_bytes(node.meta.get("spec")) for node in traced.graph.graph.nodes)


def _bytes(spec: object) -> int:
    if isinstance(spec, tuple | list):
        return sum(map(_bytes, spec))
    if not isinstance(spec, TensorSpec):
        return 0
    return math.prod(map(hint_of, spec.shape)) * spec.dtype.itemsize
