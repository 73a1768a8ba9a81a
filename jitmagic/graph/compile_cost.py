"""Estimates how long the stages after the trace take for an operation.

Input: a recorded call. Output: seconds, of a machine that does nothing else. The figures are for a
first run, in which no kernel is in the cache: half of each is g++.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .target_names import Target

__all__ = ["expected_seconds"]

# A model of 31 operations took 0.7 s with its backward, one of 48 took 3 s; the same forwards
# without gradients took 0.3 and 0.4 s.
_DIFFERENTIATED, _PLAIN = 0.03, 0.006
_RECURRENT = (torch.gru, torch.lstm, torch.rnn_tanh, torch.rnn_relu)
_OPERATIONS_A_STEP = 2  # of a recurrent layer: the same few kernels serve all its time steps


def expected_seconds(
    target: Target, args: Sequence[Any], tensors: Sequence[torch.Tensor], grad_enabled: bool
) -> float:
    """Return the seconds that lowering, scheduling and building the kernels of a call take."""
    differentiated = grad_enabled and any(tensor.requires_grad for tensor in tensors)
    return (_DIFFERENTIATED if differentiated else _PLAIN) * _operations(target, args, tensors)


def _operations(target: Target, args: Sequence[Any], tensors: Sequence[torch.Tensor]) -> int:
    """Return how many operations the call decomposes into, roughly."""
    if target not in _RECURRENT or not tensors or tensors[0].dim() < 2:
        return 1
    steps = tensors[0].shape[1 if args[-1] is True else 0]
    return _OPERATIONS_A_STEP * steps if type(steps) is int else 1
