"""Models a tensor of the program as a node of the graph with a meta tensor.

Input: operators, attributes and indexing on tensors (methods are in tensor_members.py). Output:
graph nodes through `record`, or constants of the trace. Operators are `call_function` nodes of the
operator module, methods are `call_method` nodes, as backends written for torch.compile expect.

One tensor object is one TensorValue: in-place methods and no-op conversions return the same value.
Sizes are ints, guarded by the TensorMatch of the graph's inputs.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node

from ....compat.modes import dispatch_mode_depth, function_mode_depth
from ....graph.default_dtype import FollowsDefault
from ....graph.devices import MixedDevices
from ....graph.distributed.objects import is_fixed_class, without_fixed
from ....graph.operators.autocast import StaleCast
from ....graph.operators.target_traits import operation_of
from ....graph.propagate import DataDependent, EagerRaises
from ....graph.rules import Rules
from ....graph.target_names import Target, call_name
from ....graph.wrappers.wrapping import NotFollowed, WithTorchFunctions
from ....guards.source import InstanceDict
from ....late import late_names
from ....late_tables import EVERY, LateTable
from ....lazy_dataclass import dataclass, field
from ...breaks import (
    ActiveMode,
    CachedCast,
    GraphBreak,
    NoMetaFunction,
    Reason,
    RefusedTorchCall,
    TensorBranch,
    TensorItem,
    TooManyResults,
    TorchCallFailed,
    UnsupportedArguments,
)
from ...input_memory import check_written_inputs
from ...result import Effect, Recipe
from ..base import Args, Builder, Machine, Value
from ..containers.mappings import DictValue, entries_of_live
from ..containers.sequences import ListValue, SequenceValue, SliceValue, StructuredTuple, TupleValue
from ..contexts.inference import output_recipe, refuse_inference_arguments, refuse_inference_writes
from ..numbers.arithmetic import Scalar
from ..numbers.number import NumberValue, node_scalar
from ..numbers.torch_arguments import (
    call_with_known,
    guard_storage_offsets,
    is_number,
    torch_constant,
    with_known,
)
from ..numbers.varying_counts import varying_rows
from ..numpy_scalars import ARRAY_SCALARS
from ..objects.constants import BINARY, COMPARE, INPLACE, UNARY
from ..objects.enums import without_enum
from ..objects.monkey_patches import TENSOR
from ..objects.operators import is_none
from ..objects.special_methods import BINARY_METHODS, COMPARE_METHODS, UNARY_METHODS, implemented
from ..tensor_base import TensorBase
from .function_subclasses import (
    attribute_through,
    converted,
    has_own_function,
    kind_of_result,
    operator_through,
    takes_library_wrapper,
)
from .gradients import write_gradient
from .leaves import bind_data, required_grad
from .masks import masks_to_indices
from .name_lookups import guard_looked_up_names
from .ragged_sizes import RaggedSize
from .tensor_class import call_user_method, user_attribute

if TYPE_CHECKING:
    from ..numbers.number_index import assign_at_number, index_at_numbers
    from ..numbers.scalar_calls import call_with_scalars
    from .truth import truth_of
else:
    late_names(
        globals(),
        {
            "trace.values.numbers.number_index": "assign_at_number, index_at_numbers",
            "trace.values.numbers.scalar_calls": "call_with_scalars",
            "trace.values.tensors.truth": "truth_of",
        },
    )

__all__ = ["ATTRIBUTES", "TensorValue", "lift", "lower", "record"]

# Attributes of tensors; tensor_members.py lists the rules, which record calls.
ATTRIBUTES: LateTable[str, Rules[Value]] = LateTable("attributes of tensors")
_PLAIN_ARGUMENTS = (
    bool, int, float, complex, str, torch.dtype, torch.device, torch.layout, torch.memory_format,
    type(None), type(Ellipsis),
)  # fmt: skip


class TensorValue(TensorBase):
    """A tensor, whose operators, attributes and methods become nodes of the graph."""

    __slots__ = ()

    def python_type(self, machine: Machine) -> type:
        return self.kind

    def hash_key(self, machine: Machine) -> object:
        machine.guard_distinct_key(self)
        return self  # tensors hash by identity

    # -- attributes ------------------------------------------------------------------------------

    def get_attr(self, machine: Machine, name: str) -> Value:
        if (users := user_attribute(machine, self, name)) is not None:
            return self.own_attribute(machine, name) or users
        if (made := attribute_through(machine, self, name)) is not None:
            return made
        if (found := ATTRIBUTES[EVERY].ask(machine, self, name, about=name)) is not None:
            return found
        message = f"'{self.kind.__name__}' object has no attribute '{name}'"
        raise machine.error(AttributeError, message)

    def own_attribute(self, machine: Machine, name: str) -> Value | None:
        """Return an attribute from the live tensor's `__dict__`, or None."""
        if self.live is None or self.source is None:
            return None
        table = entries_of_live(machine, self.live.__dict__, InstanceDict(self.source))
        return table.store.get(name)

    def set_attr(self, machine: Machine, name: str, value: Value) -> None:
        if has_own_function(self.kind):
            self.refuse(machine, f"setting attribute {name!r}")
        if name == "requires_grad" and self.meta.is_leaf:
            self.require_grad(machine, value)
        elif name == "data":
            bind_data(machine, self, value.realize(machine))
        elif name == "grad":
            write_gradient(machine, self, value.realize(machine))
        else:
            self.refuse(machine, f"setting attribute {name!r}")

    def del_attr(self, machine: Machine, name: str) -> None:
        if name != "grad":
            self.refuse(machine, f"deleting attribute {name!r}")
        write_gradient(machine, self, machine.constant(None))

    def require_grad(self, machine: Machine, wanted: Value) -> TensorValue:
        flag = wanted.realize(machine).as_constant(machine)
        self.node = required_grad(machine, self, flag)
        machine.notes.owners.setdefault(self.node, self)
        return self

    # -- containers ------------------------------------------------------------------------------

    def get_item(self, machine: Machine, key: Value) -> Value:
        if (users := call_user_method(machine, self, "getitem", [key])) is not None:
            return users
        return record(machine, operator.getitem, index_at_numbers(machine, self, key, lift))

    def set_item(self, machine: Machine, key: Value, value: Value) -> None:
        if call_user_method(machine, self, "setitem", [key, value]) is None:
            call = assign_at_number(machine, self, key, value)
            if call is None:
                record(machine, operator.setitem, [self, key, value])
            else:
                record(machine, *call)

    def contains(self, machine: Machine, item: Value) -> Value:
        if (users := call_user_method(machine, self, "contains", [item])) is not None:
            return machine.constant(users.truth(machine))
        raise GraphBreak(TensorItem.of(what="`in` a tensor"))

    def length(self, machine: Machine) -> int:
        if (users := call_user_method(machine, self, "len", [])) is not None:
            return int(users.as_constant(machine))
        if self.meta.dim() == 0:
            raise machine.error(TypeError, "len() of a 0-d tensor")
        return self.meta.shape[0]  # may be a SymInt, which specialises where an int is needed

    def iterate(self, machine: Machine) -> Value:
        if (users := call_user_method(machine, self, "iter", [])) is not None:
            return users
        if self.meta.dim() == 0:
            raise machine.error(TypeError, "iteration over a 0-d tensor")
        rows = varying_rows(machine, self, machine.constant(self.meta.shape[0]))
        return rows or record(machine, "unbind", [self, machine.constant(0)]).iterate(machine)

    # -- operators -------------------------------------------------------------------------------

    def binary(
        self, machine: Machine, op: str, other: Value, *, reflected: bool = False
    ) -> Value | None:
        name = f"{'r' if reflected else ''}{BINARY_METHODS[op]}"
        if (users := call_user_method(machine, self, name, [other])) is not None:
            return implemented(users)
        if not _is_operand(machine, other):
            return None
        return record(machine, BINARY[op], [other, self] if reflected else [self, other])

    def inplace(self, machine: Machine, op: str, other: Value) -> Value | None:
        name = f"i{BINARY_METHODS[op]}"
        if (users := call_user_method(machine, self, name, [other])) is not None:
            return implemented(users)
        if op == "@" or not _is_operand(machine, other):
            return None
        return record(machine, INPLACE[op], [self, other])

    def compare(
        self, machine: Machine, op: str, other: Value, *, reflected: bool = False
    ) -> Value | None:
        if (users := call_user_method(machine, self, COMPARE_METHODS[op], [other])) is not None:
            return implemented(users)
        if not _is_operand(machine, other):
            return None
        return record(machine, COMPARE[op], [self, other])

    def unary(self, machine: Machine, op: str) -> Value:
        users = call_user_method(machine, self, UNARY_METHODS[op], [])
        return record(machine, UNARY[op], [self]) if users is None else users

    def truth(self, machine: Machine) -> bool:
        if (users := call_user_method(machine, self, "bool", [])) is not None:
            return users.truth(machine)
        if (known := truth_of(machine, self.node)) is not None:
            return known
        raise GraphBreak(TensorBranch.of(what=self.describe()))

    # -- calls -----------------------------------------------------------------------------------

    def call(self, machine: Machine, args: Args, kwargs: Mapping[str, Value]) -> Value:
        raise machine.error(TypeError, f"'{self.kind.__name__}' object is not callable")

    def call_method(
        self, machine: Machine, name: str, args: Args, kwargs: Mapping[str, Value]
    ) -> Value:
        method = self.get_attr(machine, name).realize(machine)
        return method.call(machine, args, kwargs)

    def format_operand(self, machine: Machine) -> Value:
        """Return what is formatted: Tensor.__format__ formats a 0-dim tensor as its number."""
        is_number = self.meta.dim() == 0 and self.python_type(machine) is torch.Tensor
        return self.call_method(machine, "item", [], {}) if is_number else self

    # -- exits -----------------------------------------------------------------------------------

    def recipe(self, builder: Builder) -> Recipe:
        return output_recipe(builder, self)

    def fill(self, builder: Builder) -> Iterable[Effect]:
        if self.grad is not None and not is_none(self.grad):
            yield builder.set_attr(self, "grad", self.grad)

    def describe(self) -> str:
        meta = self.meta
        return f"{str(meta.dtype).removeprefix('torch.')}{list(meta.shape)} tensor"


def _is_operand(machine: Machine, other: Value) -> bool:
    other = other.operand(machine)
    if isinstance(other, TensorValue | NumberValue):
        return True
    numbers = (bool, int, float, complex, *ARRAY_SCALARS)
    return other.is_constant(machine) and issubclass(other.python_type(machine), numbers)


# -- recording -----------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Call:
    """A call that is being recorded; `given` and `named` are the lowered arguments."""

    machine: Machine
    target: Target
    name: str
    args: Args
    kwargs: Mapping[str, Value]
    given: list[Any] = field(init=False)
    named: dict[str, Any] = field(init=False)
    unwritable: dict[Node, int] = field(init=False)  # versions of inference tensors
    result: Any = field(init=False)
    makes_leaf: bool = False


def record(
    machine: Machine, target: Target, args: Args, kwargs: Mapping[str, Value] | None = None
) -> Value:
    """Add a call of a torch function, operator or tensor method to the graph; return its result.

    Raises GraphBreak if the call cannot be in a graph, or if eager would raise.
    """
    if not isinstance(target, str) and getattr(target, "__module__", "") == "_operator":
        users = operator_through(machine, target, args)
        if users is not None:
            return users
    call = _Call(machine, target, call_name(target), args, kwargs or {})
    _BEFORE.ask(call)
    try:
        call.result = _RESULTS.ask(call)
    except tuple(_FAILURES) as error:
        raise GraphBreak(_FAILURES[type(error)](call.name, error)) from None
    _AFTER.ask(call)
    lifted = lift(machine, None if call.result is _NOTHING else call.result)
    made = converted(machine, call.name, args, kwargs or {}, lifted)
    if call.makes_leaf:
        assert isinstance(made, TensorValue)
        return made.require_grad(machine, machine.constant(True))
    return made


def _refuse_modes(call: _Call) -> None:
    # A user's TorchFunctionMode or TorchDispatchMode sees eager's calls, not those of a graph.
    if function_mode_depth() or dispatch_mode_depth():
        raise GraphBreak(ActiveMode.of())


def _refuse_caught(call: _Call) -> None:
    if operation_of(call.target).raises == "often" and call.machine.catches():
        why = "the program handles the errors that it raises on data"
        raise GraphBreak(RefusedTorchCall.of(name=call.name, why=why))


def _guard_names(call: _Call) -> None:
    target = call.target
    function = TENSOR.get(target) if isinstance(target, str) else target
    guard_looked_up_names(call.machine, function)


def _lower_arguments(call: _Call) -> None:
    machine, name = call.machine, call.name
    key = "operator getitem" if call.target is operator.setitem else name  # lowered as an index
    call.given = [
        _lower_outer(machine, arg, key if n == 1 else name) for n, arg in enumerate(call.args)
    ]
    call.named = {key: _lower_outer(machine, arg, name) for key, arg in call.kwargs.items()}
    # A factory with requires_grad=True makes a leaf, a node of its own (leaves.py).
    if not isinstance(call.target, str):
        call.makes_leaf = call.named.pop("requires_grad", False) is True
        call.target, call.given, call.named = without_fixed(call.target, call.given, call.named)
    if takes_library_wrapper((call.given, call.named)):
        call.target = WithTorchFunctions(call.target)


def _guard_offsets(call: _Call) -> None:
    guard_storage_offsets(call.machine, call.target, call.given, call.named)


def _refuse_inference(call: _Call) -> None:
    notes = call.machine.notes
    call.unwritable = refuse_inference_arguments(notes, call.name, call.given, call.named)


def _replace_masks(call: _Call) -> None:
    call.target, call.given = masks_to_indices(call.machine, call.target, call.given, call.named)


_NOTHING = object()  # the result of a recorded call that returns None, unlike a rule without one


def _with_scalars(call: _Call) -> Any:
    if not any(isinstance(arg, Scalar) for arg in (*call.given, *call.named.values())):
        return None
    made = call_with_scalars(call.machine, call.target, call.given, call.named)
    return _NOTHING if made is None else made


def _check_inputs(call: _Call) -> None:
    if call.machine.graph.mutated_inputs:
        check_written_inputs(call.machine, call.machine.notes)


def _refuse_many(call: _Call) -> None:
    """Break at a call that returns too many tensors, such as `unbind` of a long tensor.

    Plain Python runs the rest of the frame too: a graph after the break would guard each tensor.
    """
    count = len(call.result) if isinstance(call.result, tuple | list) else 0
    if count * _INSTRUCTIONS_PER_RESULT > call.machine.options.unroll_limit:
        raise GraphBreak(TooManyResults.of(name=call.name, count=count))


# A node and its uses take 1 to 2 ms to compile, an instruction 50 µs to trace.
_INSTRUCTIONS_PER_RESULT = 20

_BEFORE: Rules[None] = Rules(
    _refuse_modes,  # first: nothing may be read or guarded under a mode of the user's
    _refuse_caught,
    _guard_names,
    _lower_arguments,
    _guard_offsets,  # these two read the lowered arguments
    _refuse_inference,
)
_RESULTS: Rules[Any] = Rules(
    _replace_masks,  # changes the call that the other two record
    _with_scalars,
    lambda call: call_with_known(call.machine, call.target, call.given, call.named),
)
_AFTER: Rules[None] = Rules(
    _check_inputs,
    _refuse_many,
    lambda call: refuse_inference_writes(call.name, call.unwritable),
)


def _raises(name: str, error: EagerRaises) -> Reason:
    return TorchCallFailed.of(name=name, error=f"{type(error.error).__name__}: {error}")


def _without_data(name: str, error: DataDependent) -> Reason:
    is_missing = any(sign in str(error) for sign in _NO_META)
    return (NoMetaFunction if is_missing else TensorItem).of(what=f"{name}()")


_NO_META = ("no fake impl or Meta kernel", "Meta' backend")  # in errors of torch's dispatcher
_DEFAULT = "its result follows the default dtype, which the frame has changed"
_FAILURES: dict[type[Exception], Callable[[str, Any], Reason]] = {
    DataDependent: _without_data,
    FollowsDefault: lambda name, error: RefusedTorchCall.of(name=str(error), why=_DEFAULT),
    StaleCast: lambda name, error: CachedCast.of(name=name, what=error),
    MixedDevices: lambda name, error: TorchCallFailed.of(name=name, error=f"({error})"),
    EagerRaises: _raises,
    NotFollowed: lambda name, error: RefusedTorchCall.of(name=name, why=error),
}


def _lower_outer(machine: Machine, value: Value, name: str) -> Any:
    """Lower a top-level argument; call_with_scalars chooses the form of a Scalar."""
    value = value.realize(machine)
    if is_number(value.python_type(machine), name):
        value = value.operand(machine)
    scalar = node_scalar(value)
    return lower(machine, value, name) if scalar is None else scalar


def lower(machine: Machine, value: Value, name: str) -> Any:
    """Return the node argument for a value: a Node, a constant, or a structure of both."""
    value = value.realize(machine)
    if name == "operator getitem":
        value = value.as_index(machine)
    if isinstance(value, TensorValue):
        return value.node
    is_size = isinstance(value, NumberValue) and is_number(value.kind, name)
    if is_size and (size := value.as_size(machine)) is not None:  # type: ignore[attr-defined]
        return size
    if isinstance(value, RaggedSize):
        return value.as_node(machine)
    if isinstance(value, SliceValue):
        return slice(*(_bound(machine, part, name) for part in value.items))
    if isinstance(value, SequenceValue):
        items = [lower(machine, item, name) for item in value.items]
        return items if isinstance(value, ListValue) else tuple(items)
    if isinstance(value, DictValue):
        return {key: lower(machine, item, name) for key, item in value.as_names(machine).items()}
    if value.is_constant(machine):
        constant = without_enum(value.as_constant(machine))
        taken = torch_constant(constant, name)
        if taken is not constant or type(taken) in _PLAIN_ARGUMENTS or is_fixed_class(type(taken)):
            return taken
    what = f"an argument of type {value.describe()}"
    raise GraphBreak(UnsupportedArguments.of(name=name, what=what))


def _bound(machine: Machine, part: Value, name: str) -> Any:
    """Return a bound of a slice, as a number if the trace knows it."""
    made = lower(machine, part, name)
    return with_known(machine.graph, made) if isinstance(made, Node) else made


def lift(machine: Machine, result: object) -> Value:
    """Return the Value of a recorded call's result, in which Nodes stand for tensors."""
    if isinstance(result, Node):
        known = machine.notes.owners.get(result)
        if not isinstance(known, TensorValue):
            kind = kind_of_result(result.meta["val"])
            known = machine.notes.owners[result] = TensorValue(result, kind)
        return known
    if isinstance(result, torch.Size) or not isinstance(result, tuple | list):
        return machine.constant(result)
    items = [lift(machine, item) for item in result]
    if type(result) is list:
        return ListValue(items)
    return TupleValue(items) if type(result) is tuple else StructuredTuple(type(result), items)
