"""Models a tensor of the program as a node of the graph with a meta tensor.

Input: operators, methods, attributes and indexing on tensors. Output: graph nodes through `record`,
or constants of the trace (shapes, dtypes, flags). Operators are `call_function` nodes of the
operator module, methods are `call_method` nodes, as backends written for torch.compile expect.

One tensor object is one TensorValue: in-place methods and no-op conversions return the same value.
Sizes are ints, guarded by the TensorMatch of the graph's inputs.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import Node

from ....graph.default_dtype import FollowsDefault
from ....graph.devices import MixedDevices
from ....graph.node_meta import device_of
from ....graph.operators.autocast import StaleCast
from ....graph.propagate import DataDependent, EagerRaises, Target, call_name, target_name
from ....graph.symbolic.known import known_number
from ....graph.symbolic.ranges import known_truth
from ....guards.source import InstanceDict, Source
from ...breaks import (
    ActiveMode,
    CachedCast,
    GraphBreak,
    RefusedTorchCall,
    TensorBranch,
    TensorItem,
    TorchCallFailed,
    UnsupportedArguments,
    UnsupportedAttribute,
)
from ...builtins.pytorch.torch_rules import DATA_METHODS, RAISING_ON_DATA, REFUSED_METHODS
from ...builtins.registry import handler_of
from ...input_memory import check_written_inputs
from ...many_results import refuse_many
from ...result import Effect, Recipe
from ..autograd.gradients import read_gradient, write_gradient
from ..base import Args, Builder, Kwargs, Machine, Value
from ..containers.mappings import DictValue, entries_of_live
from ..containers.sequences import ListValue, SequenceValue, SliceValue, StructuredTuple, TupleValue
from ..contexts.inference import output_recipe, refuse_inference_arguments, refuse_inference_writes
from ..numbers.arithmetic import Scalar
from ..numbers.assertions import asserted_truth
from ..numbers.number import NumberValue, node_scalar
from ..numbers.number_index import assign_at_number, index_at_numbers
from ..numbers.scalar_calls import call_with_scalars
from ..numbers.tensor_numbers import NUMBERS, decided_by_input, number_of, read_counter
from ..numbers.torch_arguments import (
    call_with_known,
    guard_storage_offsets,
    is_number,
    torch_constant,
    with_known,
)
from ..numbers.varying_counts import varying_rows
from ..numpy.emulation import ARRAY_SCALARS
from ..objects.enums import without_enum
from ..objects.monkey_patches import TENSOR
from ..objects.operators import is_none
from ..objects.special_methods import BINARY_METHODS, COMPARE_METHODS, UNARY_METHODS, implemented
from .autograd_leaves import required_grad
from .bound_data import bind_data
from .masks import masks_to_indices
from .name_lookups import guard_looked_up_names
from .tensor_class import call_user_method, user_attribute
from .tensor_operators import BINARY, COMPARE, INPLACE, UNARY
from .tensor_queries import answer_query

__all__ = ["TensorMethodValue", "TensorValue", "lift", "lower", "record"]

_FROM_META = frozenset(
    (
        "shape dtype ndim requires_grad is_leaf layout itemsize nbytes "
        "is_sparse is_quantized is_nested"
    ).split()
)
_FLAGS = ("requires_grad", "is_leaf", "grad_fn")
_NEVER_HERE = frozenset(
    "is_meta is_sparse_csr is_mkldnn is_mps is_xla is_xpu is_vulkan is_ort".split()
)
# Attributes that compute a tensor, so they are recorded as calls of (function, arguments).
_AS_CALLS: dict[str, tuple[Target, tuple[Any, ...]]] = {
    "mT": ("transpose", (-2, -1)),
    "mH": ("adjoint", ()),
    "real": (torch.real, ()),
    "imag": (torch.imag, ()),
    "data": (getattr, ("data",)),  # own version counter; detach() would share it
}
_PLAIN_ARGUMENTS = (
    bool, int, float, complex, str, torch.dtype, torch.device, torch.layout, torch.memory_format,
    type(None), type(Ellipsis),
)  # fmt: skip


class TensorValue(Value):
    """One tensor object of class `kind`; `live` is the object if it existed before the call."""

    __slots__ = ("grad", "kind", "live", "node")
    holds_data = True

    def __init__(
        self,
        node: Node,
        kind: type = torch.Tensor,
        live: torch.Tensor | None = None,
        source: Source | None = None,
    ) -> None:
        super().__init__(source)
        self.node = node
        self.kind = kind
        self.live = live
        self.grad: Value | None = None  # what the traced code stored in `.grad`

    @property
    def meta(self) -> torch.Tensor:
        """Return the meta tensor of the current node."""
        meta: torch.Tensor = self.node.meta["val"]
        return meta

    def python_type(self, machine: Machine) -> type:
        return self.kind

    def hash_key(self, machine: Machine) -> object:
        machine.guard_distinct_key(self)
        return self  # tensors hash by identity

    # -- attributes ------------------------------------------------------------------------------

    def get_attr(self, machine: Machine, name: str) -> Value:
        if (users := user_attribute(machine, self, name)) is not None:
            return self._own_attribute(machine, name) or users
        if name in _FLAGS and machine.graph.flags_vary(self.node):
            self.refuse(machine, f"`.{name}` in a backward")
        if name in _FROM_META:
            return machine.constant(getattr(self.meta, name))
        if name == "device":
            return machine.constant(device_of(self.node))
        if name in ("is_cuda", "is_cpu"):
            return machine.constant(device_of(self.node).type == name[3:])
        if name in _NEVER_HERE:
            return machine.constant(False)
        if name in ("T", "H"):
            return self._transposed(machine, name)
        if name in _AS_CALLS:
            target, args = _AS_CALLS[name]
            return record(machine, target, [self, *map(machine.constant, args)])
        if name == "grad":
            return read_gradient(machine, self)
        if name == "grad_fn" and self.meta.is_leaf:
            return machine.constant(None)
        return self._other_attribute(machine, name)

    def _other_attribute(self, machine: Machine, name: str) -> Value:
        if name in REFUSED_METHODS and not callable(getattr(torch.Tensor, name, None)):
            raise GraphBreak(RefusedTorchCall.of(name=f"Tensor.{name}", why=REFUSED_METHODS[name]))
        found = getattr(torch.Tensor, name, None)
        if callable(found):
            return TensorMethodValue(self, name)
        if found is not None or hasattr(torch.Tensor, name) or self.kind.__dict__.get(name):
            raise GraphBreak(UnsupportedAttribute.of(name=name, type="Tensor"))
        own = self._own_attribute(machine, name)
        if own is not None:
            return own
        raise machine.error(
            AttributeError, f"'{self.kind.__name__}' object has no attribute '{name}'"
        )

    def _own_attribute(self, machine: Machine, name: str) -> Value | None:
        """Return an attribute from the live tensor's `__dict__`, or None."""
        if self.live is None or self.source is None:
            return None
        table = entries_of_live(machine, self.live.__dict__, InstanceDict(self.source))
        return table.store.get(name)

    def _transposed(self, machine: Machine, name: str) -> Value:
        dims = self.meta.dim()
        if name == "H" and dims == 2:
            return record(machine, "adjoint", [self])
        if name == "H":
            self.refuse(machine, "`.H` of a tensor that is not a matrix")
        if dims != 2:
            return record(machine, getattr, [self, machine.constant(name)])  # torch warns
        return record(machine, "permute", [self, *map(machine.constant, reversed(range(dims)))])

    def set_attr(self, machine: Machine, name: str, value: Value) -> None:
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
        if (known := known_truth(machine.graph, self.node)) is not None:
            return known
        if (number := known_number(machine.graph, self.node)) is not None:
            return bool(number)
        if (decided := decided_by_input(machine, self.node)) is not None:
            return decided
        if (wanted := asserted_truth(machine, self.node)) is not None:
            return wanted
        raise GraphBreak(TensorBranch.of(what=self.describe()))

    # -- calls -----------------------------------------------------------------------------------

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        raise machine.error(TypeError, f"'{self.kind.__name__}' object is not callable")

    def call_method(self, machine: Machine, name: str, args: Args, kwargs: Kwargs) -> Value:
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


class TensorMethodValue(Value):
    """A method bound to a tensor."""

    __slots__ = ("name", "owner")

    def __init__(self, owner: TensorValue, name: str) -> None:
        super().__init__()
        self.owner = owner
        self.name = name

    def python_type(self, machine: Machine) -> type:
        return type(getattr(torch.empty(0), self.name))

    def truth(self, machine: Machine) -> bool:
        return True

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        owner, name = self.owner, self.name
        if name == "requires_grad_":
            wanted = [*args, *kwargs.values(), machine.constant(True)][0]
            return owner.require_grad(machine, wanted)
        if (handler := handler_of(getattr(torch.Tensor, name, None))) is not None:
            guard_looked_up_names(machine, TENSOR.get(name))
            return handler(machine, [owner, *args], kwargs)
        if name == "item" and not args:
            number = read_counter(machine, owner.node, owner.live, owner.source)
            if number is not None:
                return number
        if name in NUMBERS and not args and not kwargs:
            number = number_of(machine, owner.node, name)
            if number is not None:
                return number
        _refuse_method(machine, owner, name)
        if name in ("size", "stride", "get_device", "type", "is_contiguous"):
            known = answer_query(machine, owner, name, args, kwargs)
            if known is not None:
                return known
        if name == "__setitem__" and len(args) == 2 and not kwargs:
            owner.set_item(machine, *args)
            return machine.constant(None)
        if name in ("__setitem__", "__getitem__"):
            return record(machine, getattr(operator, name.strip("_")), [owner, *args], kwargs)
        return record(machine, name, [owner, *args], kwargs)

    def recipe(self, builder: Builder) -> Recipe:
        return builder.invoke(getattr, (builder(self.owner), builder.constant(self.name)))

    def parts(self) -> Sequence[Value]:
        return (self.owner,)

    def describe(self) -> str:
        return f"Tensor.{self.name}"


def _is_operand(machine: Machine, other: Value) -> bool:
    other = other.operand(machine)
    if isinstance(other, TensorValue | NumberValue):
        return True
    kind = other.python_type(machine)
    return other.is_constant(machine) and issubclass(
        kind, (bool, int, float, complex, *ARRAY_SCALARS)
    )


def _refuse_method(machine: Machine, owner: TensorValue, name: str) -> None:
    if name in DATA_METHODS:
        raise GraphBreak(TensorItem.of(what=f".{name}()"))
    if name in REFUSED_METHODS:
        raise GraphBreak(RefusedTorchCall.of(name=f"Tensor.{name}", why=REFUSED_METHODS[name]))


# -- recording -----------------------------------------------------------------------------------


def record(
    machine: Machine, target: Target, args: Args, kwargs: Mapping[str, Value] | None = None
) -> Value:
    """Add a call of a torch function, operator or tensor method to the graph; return its result.

    Raises GraphBreak if the call cannot be in a graph, or if eager would raise.
    """
    graph = machine.graph
    name = call_name(target)
    # A user's TorchFunctionMode or TorchDispatchMode sees eager's calls, not those of a graph.
    if torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack():
        raise GraphBreak(ActiveMode.of())
    if target_name(target) in RAISING_ON_DATA and machine.catches():
        why = "the program handles the errors that it raises on data"
        raise GraphBreak(RefusedTorchCall.of(name=name, why=why))
    guard_looked_up_names(machine, TENSOR.get(target) if isinstance(target, str) else target)
    key = "operator getitem" if target is operator.setitem else name  # lowered as an index
    given = [_lower_outer(machine, arg, key if n == 1 else name) for n, arg in enumerate(args)]
    named = {key: _lower_outer(machine, arg, name) for key, arg in (kwargs or {}).items()}
    # A factory with requires_grad=True makes a leaf, a node of its own (autograd_leaves.py).
    leaf = not isinstance(target, str) and named.pop("requires_grad", False) is True
    guard_storage_offsets(machine, target, given, named)
    kept = refuse_inference_arguments(machine.notes, name, given, named)
    try:
        target, given = masks_to_indices(machine, target, given, named)
        if any(isinstance(arg, Scalar) for arg in (*given, *named.values())):
            result = call_with_scalars(machine, target, given, named)
        else:
            result = call_with_known(machine, target, given, named)
    except DataDependent:
        raise GraphBreak(TensorItem.of(what=f"{name}()")) from None
    except FollowsDefault as error:
        why = "its result follows the default dtype, which the frame has changed"
        raise GraphBreak(RefusedTorchCall.of(name=str(error), why=why)) from None
    except StaleCast as error:
        raise GraphBreak(CachedCast.of(name=name, what=error)) from None
    except MixedDevices as error:
        raise GraphBreak(TorchCallFailed.of(name=name, error=f"({error})")) from None
    except EagerRaises as error:
        kind = type(error.error).__name__
        raise GraphBreak(TorchCallFailed.of(name=name, error=f"{kind}: {error}")) from None
    if graph.mutated_inputs:
        check_written_inputs(machine, machine.notes)
    refuse_many(machine, name, result)
    refuse_inference_writes(name, kept)
    made = lift(machine, result)
    return made.require_grad(machine, machine.constant(True)) if leaf else made  # type: ignore[attr-defined]


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
        if taken is not constant or type(taken) in _PLAIN_ARGUMENTS:
            return taken
    what = f"an argument of type {value.describe()}"
    raise GraphBreak(UnsupportedArguments.of(name=name, what=what))


def _bound(machine: Machine, part: Value, name: str) -> Any:
    """Return a bound of a slice, as a number if the trace knows it."""
    made = lower(machine, part, name)
    return with_known(machine.graph, made) if isinstance(made, Node) else made


def lift(machine: Machine, result: Any) -> Value:
    """Return the Value of a recorded call's result, in which Nodes stand for tensors."""
    if isinstance(result, Node):
        known = machine.notes.owners.get(result)
        if not isinstance(known, TensorValue):
            known = machine.notes.owners[result] = TensorValue(result)
        return known
    if isinstance(result, torch.Size) or not isinstance(result, tuple | list):
        return machine.constant(result)
    items = [lift(machine, item) for item in result]
    if type(result) is list:
        return ListValue(items)
    return TupleValue(items) if type(result) is tuple else StructuredTuple(type(result), items)
