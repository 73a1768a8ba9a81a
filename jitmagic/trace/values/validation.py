"""The checks of torch.distributions: branches on data of which one way only raises.

Comes in: the truth of a tensor, asked in torch's code that validates arguments. Goes out: that it
is true, and a node that raises where it is not. The frame is then run by eager from its start,
which raises what eager raises; where that cannot be (trace/undo.py) the branch stays a graph break.
"""

from __future__ import annotations

from typing import Any

from torch.distributions.constraints import positive_definite, symmetric
from torch.distributions.distribution import Distribution
from torch.fx import Node

from ...graph.propagate import target_name

__all__ = ["demanded"]

_VALIDATING = (
    Distribution.__init__.__code__,
    Distribution._validate_sample.__code__,
    type(positive_definite).check.__code__,  # of what is not symmetric it only says that,
    type(symmetric).check.__code__,  # and so of what is not square
)
_OVER_ALL = ("_is_all_true", "all")


def demanded(machine: Any, node: Node) -> bool:
    """Whether the code being followed raises unless `node` is true; the graph does then, too.

    Not where the program handles that: it would be run by eager each time.
    """
    if machine.catches():
        return False
    if machine.frame.program.code not in _VALIDATING or target_name(node.target) not in _OVER_ALL:  # type: ignore[arg-type]
        return False
    machine.graph.demand(node, machine.lines())
    return True
