"""torch.func: transforms of functions, and calls of a module with other tensors than its own.

Calls of the transforms, and live functions that they have made, become values of transformed
functions (trace/values/autograd/transformed.py); jvp, vjp and linearize are called at once.

While a functional_call is traced, the tracer's Value of the module has the given tensors as its
parameters. The live module is never written to, so nothing has to be restored when the frame ends.
Cases in which eager does more than swap (unknown names, several values for one tied tensor) break.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from ....compat.modules import functional_call
from ....graph.targets.transforms import linearize
from ....guards.guard import DifferentObjects, IdentityIs, SameObject, TypeIs
from ....guards.source import FunctionPart, Item, Source
from ...breaks import GraphBreak, UnsupportedArguments
from ...values.autograd.transformed import TransformedValue, call_transformed
from ...values.base import Args, Kwargs, Lazy, Machine, Value
from ...values.containers.mappings import DictValue
from ...values.containers.sequences import TupleValue
from ...values.modules.nn_module import NNModuleValue
from ...values.objects.constants import ConstantValue
from ...values.objects.functions import CellValue
from ...values.tensors.tensor import TensorValue
from ...wrap import intercepts
from ..registry import handles

__all__: list[str] = []


# -- transforms ------------------------------------------------------------------------------------


_func: Any = torch.func
# Transforms that return a function, and the code that all functions of one share.
_MAKERS = (
    _func.grad, _func.grad_and_value, _func.vmap, _func.jacrev, _func.jacfwd, _func.hessian,
)  # fmt: skip
# hessian(f) is jacfwd(jacrev(f)), so the function that it returns has the code of jacfwd. In
# reversed order jacfwd is the last to claim it.
_MADE_BY = {make(lambda x: x).__code__: make for make in reversed(_MAKERS)}


def _makes_function(transform: Any) -> None:
    parameters = list(inspect.signature(transform).parameters)

    @handles(transform)
    def make(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        settings = {**dict(zip(parameters, args, strict=False)), **kwargs}
        return TransformedValue(transform, settings.pop("func"), settings)


for _transform in _MAKERS:
    _makes_function(_transform)


@handles(_func.vjp)
def _vjp(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    function, *primals = args
    return call_transformed(machine, _func.vjp, function, kwargs, primals, {}, takes_function=False)


@handles(_func.jvp)
def _jvp(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    function, *both = args
    return call_transformed(machine, _func.jvp, function, kwargs, both, {}, takes_function=False)


@handles(_func.linearize)
def _linearize(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    function, *primals = args
    return call_transformed(
        machine, linearize, function, {}, primals, kwargs, takes_function=False, repeats=True
    )


@intercepts(types.FunctionType)
def _made_before(machine: Machine, obj: types.FunctionType, source: Source) -> Value | None:
    """Model a function that a transform made before the call, from the contents of its closure."""
    transform = _MADE_BY.get(obj.__code__)
    if transform is None:
        return None
    machine.guard(TypeIs(source, types.FunctionType))
    machine.guard(IdentityIs(FunctionPart(source, "__code__"), obj.__code__))
    held: dict[str, Value] = {}
    parameters = inspect.signature(transform).parameters
    cells = FunctionPart(source, "__closure__")
    for n, name in enumerate(obj.__code__.co_freevars):
        cell = CellValue.at((obj.__closure__ or ())[n], Item(cells, n))
        if name in parameters and (value := cell.load(machine)) is not None:
            held[name] = value
    made = TransformedValue(transform, held.pop("func"), held)
    made.source = source
    return made


# -- functional_call -------------------------------------------------------------------------------


_TABLES = ("_parameters", "_buffers")
_PARAMETERS = ("module", "parameters_and_buffers", "args", "kwargs")


@handles(functional_call)
def _functional_call(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    arguments: dict[str, Value] = {**dict(zip(_PARAMETERS, args, strict=False)), **kwargs}
    module, tensors = arguments["module"], arguments["parameters_and_buffers"]
    if not isinstance(module, NNModuleValue) or not isinstance(tensors, DictValue):
        raise _unfollowed(f"{module.describe()} and {tensors.describe()}")
    if "strict" in arguments and arguments["strict"].as_constant(machine):
        raise _unfollowed("strict=True")
    ties = "tie_weights" not in arguments or arguments["tie_weights"].as_constant(machine)
    named = {name: value.realize(machine) for name, value in tensors.as_names(machine).items()}
    given = _untied(machine, module, named) if ties else named
    _check_slots(machine, module, given)
    # The caller's dictionary gets what the module has stored under these names, also if the call
    # raises (stateless._reparametrize_module).
    held = _swap(machine, module, given)
    try:
        return module.call(machine, *_arguments(machine, arguments))
    finally:
        replaced = _swap(machine, module, held)
        for name, value in named.items():
            if replaced[name] is not value:  # torch restores what the module stored
                tensors.set_item(machine, machine.constant(name), replaced[name])


def _arguments(machine: Machine, arguments: Mapping[str, Value]) -> tuple[Args, Kwargs]:
    """Return the arguments of the module; a single one may come without a tuple around it."""
    args = arguments.get("args", machine.constant(None))
    kwargs = arguments.get("kwargs", machine.constant(None))
    items = [] if _is_none(args) else [args]
    if isinstance(args, TupleValue):
        items = list(args.items)
    if not isinstance(kwargs, DictValue) and not _is_none(kwargs):
        raise _unfollowed(f"keywords in a {kwargs.describe()}")
    return items, kwargs.as_names(machine) if isinstance(kwargs, DictValue) else {}


def _is_none(value: Value) -> bool:
    if isinstance(value, Lazy):
        # Asked of the object: a read would make it an input or a guard of the graph.
        return value.obj is None
    return isinstance(value, ConstantValue) and value.value is None


# -- tied tensors ----------------------------------------------------------------------------------


def _untied(machine: Machine, module: NNModuleValue, tensors: dict[str, Value]) -> dict[str, Value]:
    """Return the tensors with each value repeated for all names of a tied tensor."""
    untied = dict(tensors)
    for names in _tied(machine, module):
        known = [tensors[name] for name in names if name in tensors]
        if len({id(value) for value in known}) > 1 or 1 < len(known) < len(names):
            raise _unfollowed("several values for a tied tensor")
        untied.update((name, known[0]) for name in names if known)
    return untied


def _tied(machine: Machine, module: NNModuleValue) -> list[list[str]]:
    """Return the names of each tensor that the module has under several names.

    The tensors themselves are not read: a module that only provides its code may have meta tensors.
    """
    names: dict[int, list[str]] = {}
    paths: dict[int, list[Source]] = {}
    for name, tensor in _tensors(machine, module, ""):
        of = _identity(tensor)
        names.setdefault(id(of), []).append(name)
        if tensor.source is not None:
            paths.setdefault(id(of), []).append(tensor.source)
    # Which names share a tensor decides what torch swaps, so both are guarded: that tied names stay
    # tied, and that the others stay apart.
    for first, *others in paths.values():
        machine.guard(*(SameObject(first, other) for other in others if other != first))
    if len(paths) > 1:
        machine.guard(DifferentObjects(tuple(same[0] for same in paths.values())))
    return [group for group in names.values() if len(group) > 1]


def _tensors(machine: Machine, module: Value, prefix: str) -> Iterator[tuple[str, Value]]:
    if not isinstance(module, NNModuleValue):
        raise _unfollowed(f"a submodule that is {module.describe()}")
    for table in _TABLES:
        for name, value in _table(machine, module, table).as_names(machine).items():
            if _is_none(value):
                value.realize(machine).as_constant(machine)  # another time it may be a tensor
            else:
                yield prefix + name, value
    for name, value in _table(machine, module, "_modules").as_names(machine).items():
        if not _is_none(value):
            yield from _tensors(machine, value.realize(machine), f"{prefix}{name}.")


def _identity(value: Value) -> object:
    """Return the live object that a value represents, read or not; else the value itself."""
    if isinstance(value, Lazy):
        return value.obj
    live = value.live if isinstance(value, TensorValue) else None
    return value if live is None else live


def _table(machine: Machine, module: NNModuleValue, name: str) -> DictValue:
    table = module.get_attr(machine, name).realize(machine)
    if not isinstance(table, DictValue):
        raise _unfollowed(f"a module with {table.describe()} in {name}")
    return table


# -- swapping --------------------------------------------------------------------------------------


def _swap(
    machine: Machine, module: NNModuleValue, tensors: Mapping[str, Value]
) -> dict[str, Value]:
    """Store tensors in the tables of a module, one by one; return the former ones."""
    return {path: _swap_one(machine, module, path, value) for path, value in tensors.items()}


def _swap_one(machine: Machine, root: NNModuleValue, path: str, value: Value) -> Value:
    module, name = _owner(machine, root, path)
    if not _is_tensor(value):
        raise _unfollowed(f"{value.describe()} for {path!r}")
    key = machine.constant(name)
    tables = [_table(machine, module, table) for table in _TABLES]
    holders = [(table, held) for table in tables if (held := table.find(machine, key)) is not None]
    before = module.get_attr(machine, name) if holders else None
    if before is None or _identity(before) is not _identity(holders[0][1]):
        raise _unfollowed(f"the name {path!r}, which is not a parameter or buffer")
    (table, held), *_ = holders
    table.put(machine, key, value)
    return held


def _owner(machine: Machine, root: NNModuleValue, path: str) -> tuple[NNModuleValue, str]:
    *names, name = path.split(".")
    module: Value = root
    for part in names:
        module = module.get_attr(machine, part).realize(machine)
    if not isinstance(module, NNModuleValue):
        raise _unfollowed(f"{module.describe()} at {path!r}")
    return module, name


def _check_slots(machine: Machine, root: NNModuleValue, paths: Iterable[str]) -> None:
    """Raise GraphBreak for a module that is reached under several names.

    torch restores the swapped-in tensor there as if it had been the module's own.
    """
    owners = [_owner(machine, root, path) for path in paths]
    slots = {(id(_table(machine, module, _TABLES[0]).store), name) for module, name in owners}
    if len(slots) < len(owners):
        raise _unfollowed("a module under several names")


def _is_tensor(value: Value) -> bool:
    if isinstance(value, Lazy):
        return isinstance(value.obj, Tensor)
    return isinstance(value, TensorValue)


def _unfollowed(what: str) -> GraphBreak:
    return GraphBreak(UnsupportedArguments.of(name="torch.func.functional_call", what=what))
