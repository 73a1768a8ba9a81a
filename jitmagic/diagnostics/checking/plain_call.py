"""plain_call: compares the captured call with the user's function run as plain Python.

Input: a function, its arguments before the call, and the results of the captured call. Output: the
differences, which are errors of the capture, such as a value that the tracer wrongly specialised to
a constant. Comparing graphs cannot show those, because eager runs the same graphs.

The plain function runs on copies of its arguments, and only if it has no side effects outside them;
otherwise `Refusal` gives the reason.
"""

from __future__ import annotations

import contextlib
import copy
import io
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ...api import original_of
from ...compat.pytree import keystr, tree_flatten_with_path, tree_leaves
from ...guards.source import Argument, CellContents, Source
from ...lazy_dataclass import dataclass, field, fields
from ...trace.result import (
    Break,
    Constant,
    Effect,
    FromSource,
    Perform,
    Recipe,
    Trace,
)
from .agreement import Line, agree, compare
from .cases import AFTERWARDS, Results, as_tensor, copy_of, same_random_numbers

__all__ = ["Arguments", "Refusal", "compare_with_plain"]


class Refusal(Exception):
    """The plain function cannot be run a second time, for the reason in the message."""


def _random_states() -> tuple[Tensor, list[Tensor]]:
    of_gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return torch.get_rng_state(), of_gpus


@dataclass(frozen=True)
class Arguments:
    """A function or module, its arguments, and torch's random states (CPU, each GPU in use)."""

    fn: object
    args: Sequence[object]
    kwargs: Mapping[str, object]
    random: tuple[Tensor, list[Tensor]] = field(default_factory=_random_states)

    def copied(self) -> Arguments:
        """Return deep copies of all of it; raise Refusal if something cannot be copied."""
        whole = (self.fn, tuple(self.args), dict(self.kwargs))
        tensors = (leaf for leaf in tree_leaves(whole[1:]) if isinstance(leaf, Tensor))
        memo: dict[int, object] = {id(tensor): copy_of(tensor) for tensor in tensors}
        try:
            return Arguments(*copy.deepcopy(whole, memo), self.random)
        except Exception as error:  # an open file, a lock, a tensor with a history in an object
            raise Refusal(f"its arguments cannot be copied ({error})") from error

    def call(self) -> object:
        """Call the plain function with its printed output suppressed."""
        with contextlib.redirect_stdout(io.StringIO()), same_random_numbers():
            of_cpu, of_gpus = self.random
            torch.set_rng_state(of_cpu)
            if of_gpus:
                torch.cuda.set_rng_state_all(of_gpus)
            return original_of(self.fn)(*self.args, **self.kwargs)

    def results(self, result: object) -> Results:
        """Return the tensors and numbers of a result, and those of the arguments after the call."""
        found: Results = {}
        parts = ("result", "", result), ("argument", AFTERWARDS, (*self.args, self.kwargs))
        for what, state, tree in parts:
            leaves, _ = tree_flatten_with_path(tree)
            for path, leaf in leaves:
                tensor = as_tensor(leaf)
                if isinstance(tensor, Tensor):
                    found[f"{what}{keystr(path)}{state}"] = tensor.detach().clone()
        return found


def compare_with_plain(before: Arguments, captured: Results, traces: Sequence[Trace]) -> list[Line]:
    """Return a line for each tensor on which the captured call differs from the plain function.

    before: copies of the arguments from before the call, which this call may modify
    captured: `Arguments.results` of the captured call
    Raises Refusal if the plain function must not run again or is not reproducible.
    """
    _refuse_effects(traces)
    expected = _results_of(before.copied())
    wrong = [line for line in compare(captured, expected, {}, 0) if not line.agrees]
    if wrong and not agree(_results_of(before), expected, dict):
        raise Refusal("as plain Python it is not reproducible")
    return wrong


def _results_of(arguments: Arguments) -> Results:
    try:
        return arguments.results(arguments.call())
    except Exception as error:  # the user's code may raise anything
        raise Refusal(f"as plain Python it raises {type(error).__name__}: {error}") from error


def _refuse_effects(traces: Sequence[Trace]) -> None:
    """Raise Refusal if a second run would have side effects outside the arguments."""
    for trace in traces:
        if isinstance(trace.exit, Break):
            raise Refusal("it has a graph break, where any Python may run")
        if not all(map(_is_within_arguments, trace.effects)):
            raise Refusal("it changes something outside its arguments")
        written = [trace.inputs[number].source for number in trace.mutated]
        if not all(map(_leads_to_argument, written)):
            raise Refusal("it writes to a tensor outside its arguments")


def _is_within_arguments(effect: Effect) -> bool:
    """Return whether the effect is on an argument, or on an object that the call created."""
    target = _target(effect)
    if isinstance(target, FromSource):
        return _leads_to_argument(target.source)
    return target is not None and not isinstance(target, Constant)  # a Constant is a live object


_SETTERS = (setattr, delattr, object.__setattr__, object.__delattr__)


def _target(effect: Effect) -> Recipe | None:
    """Return the object that the effect changes; None if that is unknown."""
    match effect:
        case Perform(callee=Constant(value=callee), args=args):
            return args[0] if callee in _SETTERS else None
        case Perform():
            return None
    target: Recipe = getattr(effect, fields(effect)[0].name)  # type: ignore[arg-type]
    return target


def _leads_to_argument(source: Source) -> bool:
    """Return whether the path begins at a parameter; closure cells do not count."""
    in_cell = any(isinstance(each, CellContents) for each in source.path())
    return isinstance(source.root, Argument) and not in_cell
