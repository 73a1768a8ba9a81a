"""Says what to store of an object that a node calls or carries, and how to make it of that again.

Input: an object of a class in `CLASSES`. Output: its parts, which are data or become data, and the
object. A new target of nodes that is neither a function, an operator nor a frozen dataclass gets a
row here. Objects of `shared` rows are known by their identity: a region whose nodes carry it, a
Context. Compiled bodies and checks of guards are left out: the owner of the graph makes them anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple, NoReturn

from ...compat.pytree import tree_flatten, tree_unflatten
from ...errors import CannotKeep
from ...symbols.context import Context
from ...symbols.predicates import Predicates
from ..targets.attention_kernels import WithKernels
from ..targets.control_flow import Body, ControlFlow
from ..targets.flex_attention import FlexAttention
from ..targets.recomputed import Recomputed, Rerun
from ..targets.regions import FunctionCall, HookCall, ProgramBackward
from ..targets.transforms import Pattern, Pull, PythonCall, Transformed
from ..triton.launches import Launch
from ..wrappers.wrapping import WithTorchFunctions

__all__ = ["CLASSES", "Row"]


class Row(NamedTuple):
    """`parts` returns a tuple of what to store; `make` takes these."""

    parts: Callable[[Any], tuple[Any, ...]]
    make: Callable[..., object]
    is_shared: bool = False


def _function_call(
    cls: type[FunctionCall],
) -> Row:
    def parts(call: FunctionCall) -> tuple[Any, ...]:
        name = call.__name__.removesuffix("_apply")
        settings = call.dirty, call.constant, call.materialize, call.once
        return name, *settings, call.backward, call.original

    def make(
        name: str,
        dirty: Sequence[int],
        constant: Sequence[int],
        materialize: bool,
        once: bool,
        backward: Any,
        original: Any,
    ) -> FunctionCall:
        made = cls(name, dirty=dirty, constant=constant, materialize=materialize, once=once)
        made.backward, made.original = backward, original
        return made

    return Row(parts, make)


def _program_backward(original: ProgramBackward) -> tuple[Any, ...]:
    if original.guards:
        raise CannotKeep("the backward of an autograd function relies on Python's state")
    return ()


def _rerun(rerun: Rerun) -> tuple[Any, ...]:
    if rerun.guards:
        raise CannotKeep("a checkpointed function relies on Python's state")
    last = rerun.keeps_draws, rerun.has_policy, rerun.is_reentrant
    return rerun.entering, rerun.names, *last


def _recomputed(region: Recomputed) -> tuple[Any, ...]:
    if region.make_policy is not None:
        raise CannotKeep("a policy of the program chooses what a checkpointed region saves")
    return (region.rerun,)


def _never(*unused: object) -> NoReturn:
    """Stand in for a function that runs if a guard fails, where there are no guards."""
    raise AssertionError("a function without guards was asked to run again")


def _structure(pattern: Pattern) -> tuple[Any, ...]:
    return (tree_unflatten(pattern.leaves, pattern.spec),)


def _pattern(structure: object) -> Pattern:
    leaves, spec = tree_flatten(structure)
    return Pattern(tuple(leaves), spec)


def _with_result(made: Any, result: Pattern | None) -> Any:
    made.made = result
    return made


_TRANSFORMED = attrgetter(
    *("transform", "settings", "takes_function", "region", "feeds", "arguments", "answer", "made")
)
_LAUNCH = attrgetter("kernel", "parameters", "tensors", "written", "numbers", "grids")

CLASSES: dict[type, Row] = {
    Context: Row(lambda context: (context.facts,), Context.of, is_shared=True),
    Predicates: Row(
        lambda one: (one.context, tuple(one.ranges.items()), tuple(one.relations)),
        Predicates.of,
        is_shared=True,
    ),
    Recomputed: Row(_recomputed, Recomputed, is_shared=True),
    Rerun: Row(
        _rerun,
        lambda entering, names, *last: Rerun(_never, entering, names, (), *last),
        is_shared=True,
    ),
    FunctionCall: _function_call(FunctionCall),
    HookCall: _function_call(HookCall),
    ProgramBackward: Row(_program_backward, lambda: ProgramBackward(_never, ())),
    ControlFlow: Row(
        attrgetter("kind", "bodies", "given", "carried", "differentiable", "ints"), ControlFlow
    ),
    Body: Row(attrgetter("graph", "feeds", "returns", "reaches"), Body),
    FlexAttention: Row(lambda target: (target.form,), FlexAttention),
    WithKernels: Row(attrgetter("function", "blocks"), WithKernels),
    WithTorchFunctions: Row(lambda target: (target.function,), WithTorchFunctions),
    Transformed: Row(
        _TRANSFORMED, lambda *parts: _with_result(Transformed(*parts[:-1]), parts[-1])
    ),
    Pull: Row(
        attrgetter("settings", "arguments", "made"),
        lambda settings, arguments, made: _with_result(Pull(settings, arguments), made),
    ),
    PythonCall: Row(
        attrgetter("function", "arguments", "made"),
        lambda function, arguments, made: _with_result(PythonCall(function, arguments), made),
    ),
    Pattern: Row(_structure, _pattern),
    Launch: Row(_LAUNCH, Launch),
    partial: Row(
        lambda one: (one.func, one.args, one.keywords),
        lambda function, args, keywords: partial(function, *args, **keywords),
    ),
}
