"""Defines functional forms of operators that write to arbitrary arguments.

It serves custom operators, and torch's own without a functional form in
autograd/recording/mutate.py. In: an overload whose schema names what it writes. Out: a
`Functional`, an operator of jitmagic that copies the written arguments, calls the overload on the
copies and returns the overload's new tensors followed by the copies. The functionalizer assigns
them to the program's tensors.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from itertools import count

import torch

from ...errors import CompileFailed
from ...graph.nested import map_tensors
from ...graph.node_meta import tensors_in
from ...graph.operators.operator_library import (
    DEFINED,
    IN_PLACE,
    LIBRARY,
    defines_operators,
    is_registered,
)
from ...graph.operators.registered import written_names
from ...graph.operators.shapes import infer
from ...graph.operators.without_meta import only_writes
from ...graph.triton.launches import copy_with_strides
from ...lazy_dataclass import dataclass
from ...torch_types import OpOverload
from .aten_call import AtenCall

__all__ = ["Functional", "functional_form"]

# Tags about writes, which do not apply to a functional form; torch 2.11 has no such tags.
_OF_WRITES = tuple(getattr(torch.Tag, name, None) for name in ("out", "inplace"))
_ALIAS = re.compile(r"(?<=[\w\]?])\(\w+!?(?: -> \w*)?\)")


@dataclass(frozen=True, slots=True)
class Functional:
    """An operator that returns (*new results, *values written). `slots` holds position and name of
    each written argument. `returns` holds, for each result of the original, its slot or None for a
    new tensor.
    """

    op: OpOverload
    slots: tuple[tuple[int, str], ...]
    returns: tuple[int | None, ...]

    def written(self, call: AtenCall) -> list[object]:
        """Return the written arguments, each a tensor, a list or None, in the order of `slots`."""
        args, kwargs = call.args, call.kwargs
        return [args[at] if at < len(args) else kwargs.get(name) for at, name in self.slots]


def functional_form(func: OpOverload) -> Functional:
    """Define the functional form of `func`. Raises CompileFailed for schemas that say too
    little.
    """
    return _functional_form(func, written_names(func))


@defines_operators
def _operator_of(func: OpOverload) -> OpOverload:
    return functional_form(func).op


@lru_cache(maxsize=256)
def _functional_form(func: OpOverload, undeclared: tuple[str, ...]) -> Functional:
    schema = func._schema
    marks = [
        (n, a) for n, a in enumerate(schema.arguments) if _is_written(a) or a.name in undeclared
    ]
    slots = tuple((n, a.name) for n, a in marks)
    sets = [a.alias_info.before_set for _, a in marks if a.alias_info is not None]
    returns = tuple(_slot_of(func, returned, sets) for returned in schema.returns)
    text = str(schema)
    arguments = _ALIAS.sub("", text[text.index("(") + 1 : text.rindex(") ->")])
    names = (f"{schema.name.replace('::', '_')}_{number}" for number in count())
    name = next(name for name in names if not is_registered(name))
    tags = tuple(tag for tag in func.tags if tag not in _OF_WRITES)
    LIBRARY.define(f"{name}({arguments}) -> Tensor[]", tags=tags)
    LIBRARY.impl(name, _kernel(func, slots, returns), "CompositeExplicitAutograd")
    made: OpOverload = getattr(torch.ops.jitmagic, name).default
    if not undeclared:  # else the schema does not show what a call in place writes
        IN_PLACE[made] = func
    DEFINED[made] = _operator_of, (func,)
    return Functional(made, slots, returns)


def _is_written(argument: torch.Argument) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def _slot_of(func: OpOverload, returned: torch.Argument, sets: list[set[str]]) -> int | None:
    if str(returned.type) != "Tensor":
        raise CompileFailed(f"{func} writes to its arguments and returns a {returned.type}")
    info = returned.alias_info
    if info is None:
        return None
    if info.before_set not in sets:
        raise CompileFailed(f"{func} returns a view of an argument")
    return sets.index(info.before_set)


def _kernel(
    func: OpOverload, slots: tuple[tuple[int, str], ...], returns: tuple[int | None, ...]
) -> Callable[..., list[torch.Tensor]]:
    def run(*args: object, **kwargs: object) -> list[torch.Tensor]:
        positional, named = list(args), dict(kwargs)
        written: list[torch.Tensor] = []
        for at, name in slots:
            if at < len(positional):
                positional[at] = copy = map_tensors(positional[at], copy_with_strides)
            elif name in named:
                named[name] = copy = map_tensors(named[name], copy_with_strides)
            else:
                continue
            written += tensors_in(copy)
        is_meta = any(tensor.is_meta for tensor in written)
        # torch's own meta function may import sympy (0.3 s).
        made = infer(func, positional, named) if is_meta else None
        if made is None and not (is_meta and only_writes(func)):
            made = func(*positional, **named)
        results = made if isinstance(made, tuple) else (made,)
        new = [t for t, slot in zip(results, returns, strict=False) if slot is None]
        return [*new, *written]

    return run
