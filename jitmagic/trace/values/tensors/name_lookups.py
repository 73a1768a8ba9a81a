"""Guards the names that a Python function of torch looks up when it is a single graph node.

Input: such a function (`F.normalize`, `Tensor.norm`). Output: guards on the names that its code,
and the torch functions it calls, look up in torch's namespaces and in torch.Tensor. If the program
has replaced one of them, the call is a graph break, since a node cannot follow the replacement's
code. The names come from the bytecode, so they include some that a call does not reach. The guard
of a namespace compares the version of its dictionary, so more names cost no time.
"""

from __future__ import annotations

import types
from collections.abc import Iterator

import torch

from ....bytecode import Intrinsic, decode
from ....guards.guard import NameFact, NamespaceFacts
from ....lazy_dataclass import dataclass, field
from ....symbols.context import SWAPPED
from ...breaks import GraphBreak, RefusedTorchCall
from ..base import Machine
from ..objects.class_facts import NOTHING, attribute_of_class, guard_attribute
from ..objects.monkey_patches import TENSOR, is_library_made

__all__ = ["guard_looked_up_names"]

_FOLLOWED = frozenset({"torch.nn.functional", "torch.functional", "torch._tensor", "torch"})
_OPERATORS = {
    "+": "add", "-": "sub", "*": "mul", "/": "truediv", "//": "floordiv", "%": "mod", "**": "pow",
    "@": "matmul", "<<": "lshift", ">>": "rshift", "&": "and", "|": "or", "^": "xor", "<": "lt",
    "<=": "le", ">": "gt", ">=": "ge", "==": "eq", "!=": "ne",
}  # fmt: skip
_OTHER_OPERATORS = {
    "UNARY_NEGATIVE": "__neg__", "UNARY_POSITIVE": "__pos__", "UNARY_INVERT": "__invert__",
    "UNARY_NOT": "__bool__", "TO_BOOL": "__bool__", "BINARY_SUBSCR": "__getitem__",
    "STORE_SUBSCR": "__setitem__", "DELETE_SUBSCR": "__delitem__", "BINARY_SLICE": "__getitem__",
    "STORE_SLICE": "__setitem__", "CONTAINS_OP": "__contains__", "GET_ITER": "__iter__",
    "UNPACK_SEQUENCE": "__iter__", "UNPACK_EX": "__iter__", "LIST_EXTEND": "__iter__",
    "CALL_FUNCTION_EX": "__iter__", "FORMAT_VALUE": "__format__", "FORMAT_SIMPLE": "__format__",
}  # fmt: skip


@dataclass(slots=True)
class _Names:
    """The names that a function and its callees look up.

    `found` maps the id of a namespace to (the namespace, the value of each name).
    """

    found: dict[int, tuple[dict[str, object], dict[str, object]]] = field(default_factory=dict)
    methods: set[str] = field(default_factory=set)  # of torch.Tensor
    codes: set[types.CodeType] = field(default_factory=set)
    functions: set[types.FunctionType] = field(default_factory=set)  # ends recursion of wrappers


_originals: dict[types.FunctionType, _Names] = {}  # functions of torch live as long as the process


def guard_looked_up_names(machine: Machine, function: object) -> None:
    """Guard the names that a Python function of torch looks up; C functions look up none."""
    if not isinstance(function, types.FunctionType):
        return
    # The walk over the code runs once per process and function; the check of `_replaced` in each
    # trace.
    names = _originals.get(function)
    if names is None:
        names = _Names()
        _collect(function, names)
    if (name := _replaced(names)) is not None:
        why = f"{name}, which it uses, has been replaced"
        raise GraphBreak(RefusedTorchCall.of(name=f"torch's {function.__name__}", why=why))
    _originals[function] = names
    for table, held in names.found.values():
        facts = tuple(NameFact(name, value) for name, value in held.items())
        machine.guard(NamespaceFacts(table, facts))
    for name in names.methods:
        guard_attribute(machine, torch.Tensor, name, TENSOR[name])


def _replaced(names: _Names) -> str | None:
    """Return a name that no longer refers to torch's original object, or None."""
    for table, held in names.found.values():
        for name, value in held.items():
            if table.get(name, NOTHING) is not value or not is_library_made(value):
                return name
    methods = (m for m in names.methods if attribute_of_class(torch.Tensor, m) is not TENSOR[m])
    return next(methods, None)


def _collect(function: types.FunctionType, names: _Names) -> None:
    """Collect the names of a function and of the functions of torch that it reaches."""
    if function in names.functions:
        return
    names.functions.add(function)
    for code in _codes(function.__code__):
        if code in names.codes:
            continue
        names.codes.add(code)
        names.methods |= {name for name in _attributes(code) if name in TENSOR}
        for value in _looked_up(function.__globals__, code, names):
            _follow(value, names)
    for cell in function.__closure__ or ():
        _follow(cell.cell_contents, names)


def _follow(value: object, names: _Names) -> None:
    if isinstance(value, types.FunctionType) and value.__globals__.get("__name__") in _FOLLOWED:
        _collect(value, names)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _looked_up(
    namespace: dict[str, object], code: types.CodeType, names: _Names
) -> Iterator[object]:
    """Yield the objects that the code's names may refer to, in the globals and modules in them."""
    tables = [namespace]
    # The list grows during the walk: `torch.nn.functional` names torch, through which code reaches
    # torch._C.
    for table in tables:
        for name in code.co_names:
            if name not in table:
                continue
            value = table[name]
            if isinstance(value, types.ModuleType):
                if value.__name__.startswith("torch") and vars(value) not in tables:
                    tables.append(vars(value))
            elif callable(value):
                names.found.setdefault(id(table), (table, {}))[1][name] = value
                yield value


def _attributes(code: types.CodeType) -> Iterator[str]:
    """Yield the attributes and operators that the code may use on a tensor."""
    for name in code.co_names:
        yield from (name, f"__{name}__")  # len(x) looks up `__len__`
    for instruction in decode(code).instructions:
        op, arg = instruction.op, str(instruction.arg)
        # The bytecode does not say which operand is the tensor.
        if op == "COMPARE_OP":
            yield from (f"__{_OPERATORS[one]}__" for one in (arg, SWAPPED[arg]))
        elif op == "BINARY_OP":
            name = _OPERATORS[arg if arg in _OPERATORS else arg.removesuffix("=")]
            yield from (f"__{name}__", f"__r{name}__")
            if arg not in _OPERATORS:  # `+=`
                yield f"__i{name}__"
        elif op == "CALL_INTRINSIC_1" and instruction.arg == Intrinsic.UNARY_POSITIVE:
            yield "__pos__"
        elif op in _OTHER_OPERATORS:
            yield _OTHER_OPERATORS[op]
        elif "JUMP" in op and op.endswith(("IF_TRUE", "IF_FALSE", "_OR_POP")):
            yield "__bool__"
