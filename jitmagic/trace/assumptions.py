"""Assumptions: the facts and choices that one trace of a frame starts from.

They are decided before the trace where earlier calls show them; `compile/tracing.py` makes the
first ones. A retrace replaces some of them (compile/retracing.py), and so does the next attempt
after one that could not be finished (attempts.py).
Loop heads are indices of instructions of the traced code.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from types import CodeType

from ..guards.guard import Guard
from ..guards.source import Source
from ..lazy_dataclass import dataclass, field
from .result import Specialized
from .varying.varying_sizes import VaryingSizes

__all__ = ["Assumptions"]


@dataclass(frozen=True, slots=True)
class Assumptions:
    """The assumptions of one trace."""

    numbers: frozenset[Source] | None = None
    """These floats and ints become symbols; None: none, nor step counters in the user's tensors."""
    item_numbers: frozenset[Source] = frozenset()
    """These ints in the item of the loop that the frame is an iteration of become symbols too."""
    sizes: VaryingSizes | None = None
    """These sizes and strides of tensor inputs may be symbols; None: all are constants."""
    keeps_symbols: bool = False
    """Symbols stay even if they add a graph break, because many static variants exist."""
    constants: Mapping[Hashable, Specialized] = field(default_factory=dict)
    """The symbols with these origins have to be constants."""
    speculates_in: Callable[[str], bool] | None = None
    """Data-dependent branches in these files are assumed to go as in this call; None: in none."""
    is_compiling: bool = True
    """`torch.compiler.is_compiling()` is True for libraries."""
    is_exporting: bool = False
    """`torch.compiler.is_exporting()` is True for libraries and users."""
    written_later: frozenset[Source] = frozenset()
    """Code after the end of the trace writes to these leaves."""

    may_leave: bool = False
    """Loops may end the graph: Python runs them, or calls one compiled iteration."""
    rolls: bool = False
    """A `for` loop whose trip count varies ends the graph."""
    rolls_tests: bool = False
    """A `while` loop whose test reads a symbol in two iterations ends the graph."""
    peels: bool = False
    """The first iteration of a rolled loop joins the graph if later ones get other inputs."""
    rolled: frozenset[int] = frozenset()
    """These loops are rolled: they end the graph at each iteration."""
    unrolled: frozenset[int] = frozenset()
    """These loops cannot be rolled, because their iterations depend on their number."""
    plain: frozenset[int] = frozenset()
    """Python runs these loops as a whole."""
    calling: Mapping[int, tuple[Guard, ...]] = field(default_factory=dict)
    """Loops of `plain` whose callees are compiled, with the guards under which that was decided."""
    plain_callees: tuple[CodeType, ...] = ()
    """These functions run for long and record nothing."""
    recording: frozenset[int] = frozenset()
    """An iteration of these loops is known to record operations."""
    filled: frozenset[Source] = frozenset()
    """A loop whose trip count varies has filled these lists."""
    iteration_of: frozenset[int] = frozenset()
    """The frame is an iteration of the loop with this head, at all its copies in the code."""
    bodies: Mapping[int, frozenset[int]] | None = None
    """The loops of the root frame by their heads; None: to be found in its code."""
    live: Mapping[int, frozenset[str]] = field(default_factory=dict)
    """The variables that are read after each of these heads."""
