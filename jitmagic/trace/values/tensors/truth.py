"""Answers `bool(tensor)` for a node of the graph."""

from __future__ import annotations

from torch.fx import Node

from ....graph.rules import Rules
from ....graph.symbolic.known import known_number
from ....graph.symbolic.ranges import known_truth
from ..base import Machine
from ..numbers.assertions import asserted_truth
from ..numbers.tensor_numbers import decided_by_input

__all__ = ["truth_of"]


def _truth_of_number(machine: Machine, node: Node) -> bool | None:
    number = known_number(machine.graph, node)
    return None if number is None else bool(number)


# From the cheapest to those that guard or assert something.
_TRUTHS: Rules[bool] = Rules(
    lambda machine, node: known_truth(machine.graph, node),
    _truth_of_number,
    decided_by_input,  # guards the answer at each call
    asserted_truth,  # last: the graph asserts the answer, and eager reruns the call if it is wrong
)


def truth_of(machine: Machine, node: Node) -> bool | None:
    """Return whether the tensor of a node is true, or None if the trace cannot know it."""
    return _TRUTHS.ask(machine, node)
