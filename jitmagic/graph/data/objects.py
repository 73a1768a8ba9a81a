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
from ...lazy_dataclass import dataclass
from ...symbols.context import Context
from ...symbols.predicates import Predicates
from ..targets.attention_kernels import WithKernels
from ..targets.control_flow import Body, ControlFlow
from ..targets.flex_attention import FlexAttention
from ..targets.object_makers import Function, Make
from ..targets.recomputed import Recomputed, Rerun
from ..targets.regions import FunctionCall, HookCall, ProgramBackward
from ..targets.transforms import Pattern, Pull, PythonCall, Transformed
from ..triton.launches import Launch
from ..wrappers.wrapping import WithTorchFunctions

__all__ = ["CLASSES", "Live", "Row", "is_made_of_parts", "maker_of"]


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


@dataclass(frozen=True, slots=True)
class Live:
    """Marks a live part of an object: guards, code, a namespace."""

    value: Any


def _with_guards(make: Make, guards: tuple[object, ...]) -> tuple[Make, object]:
    """Return what to store of a recipe that is used if one of the guards fails."""
    return (make, Live(guards)) if guards else (_never, ())


def _program_backward(original: ProgramBackward) -> tuple[Any, ...]:
    return _with_guards(original.make, original.guards)


def _rerun(rerun: Rerun) -> tuple[Any, ...]:
    make, guards = _with_guards(rerun.make, rerun.guards)
    settings = rerun.keeps_draws, rerun.has_policy, rerun.is_reentrant
    return make, rerun.entering, rerun.names, guards, *settings


def _recomputed(region: Recomputed) -> tuple[Any, ...]:
    if region.make_policy is not None:
        raise CannotKeep("a policy of the program chooses what a checkpointed region saves")
    return (region.rerun,)


def _never(*unused: object) -> NoReturn:
    """Stand in for a recipe that is used if a guard fails, where there are no guards."""
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
_FUNCTION = attrgetter("name", "defaults", "keyword_defaults", "cells")
_LAUNCH = attrgetter("kernel", "parameters", "tensors", "written", "numbers", "grids")

CLASSES: dict[type, Row] = {
    Context: Row(lambda context: (context.facts,), Context.of, is_shared=True),
    Predicates: Row(
        lambda one: (one.context, tuple(one.ranges.items()), tuple(one.relations)),
        Predicates.of,
        is_shared=True,
    ),
    Recomputed: Row(_recomputed, Recomputed, is_shared=True),
    Rerun: Row(_rerun, Rerun, is_shared=True),
    FunctionCall: _function_call(FunctionCall),
    HookCall: _function_call(HookCall),
    Function: Row(
        lambda one: (Live(one.code), Live(one.globals), *_FUNCTION(one)),
        Function,
    ),
    ProgramBackward: Row(_program_backward, ProgramBackward),
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


_PACKAGE = f"{__name__.partition('.')[0]}."
_GRAPHS = f"{_PACKAGE}graph."


def is_made_of_parts(cls: type) -> bool:
    """Return whether calling the class with any parts has no effects: one of torch's named tuples,
    or a frozen dataclass of the package that is compared by identity, or that only graphs have.
    """
    if cls.__module__ == "torch.return_types":
        return True
    settings = getattr(cls, "__dataclass_params__", None)
    if settings is None or not settings.frozen or not cls.__module__.startswith(_PACKAGE):
        return False
    return not settings.eq or cls.__module__.startswith(_GRAPHS)


def maker_of(cls: type) -> Callable[..., object]:
    """Return the function that makes an object of its parts. Raises CannotKeep for a class that
    stored graphs never have.
    """
    if (row := CLASSES.get(cls)) is not None:
        return row.make
    if not is_made_of_parts(cls):
        raise CannotKeep(f"a stored graph has no {cls.__name__}")
    return cls
