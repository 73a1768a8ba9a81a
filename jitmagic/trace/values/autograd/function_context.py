"""Models `ctx`, by which the forward of an autograd function passes values to its backward.

Input: attribute writes and method calls of the forward (or setup_context). Output: the saved
tensors and marks (mark_dirty, ...) for the node that the call becomes, and the attributes, which
the backward can only read. torch creates the real object when the graph runs, so `ctx` cannot
escape from the function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch.autograd.function import BackwardCFunction

from ...breaks import GraphBreak, UnsupportedArguments
from ...result import Recipe
from ..base import Args, Builder, CannotRebuild, Kwargs, Machine, Value
from ..containers.sequences import TupleValue
from ..objects.class_facts import NOTHING, attribute_of_class
from ..tensors.tensor import TensorValue

__all__ = ["FunctionContext"]

_MARKS = (
    "save_for_backward", "save_for_forward", "mark_dirty", "mark_non_differentiable",
    "set_materialize_grads",
)  # fmt: skip


class FunctionContext(Value):
    """The context of one call: `kind` is the real object's class, `args` those of `apply`."""

    __slots__ = (
        "args",
        "attributes",
        "created_at_step",
        "kind",
        "marked",
        "materialize",
        "rebind",
        "saved",
    )

    def __init__(self, machine: Machine, kind: type, args: Args) -> None:
        super().__init__()
        self.kind, self.args, self.created_at_step = kind, tuple(args), machine.step
        self.attributes: dict[str, Value] = {}
        self.marked: dict[str, list[Value]] = {name: [] for name in _MARKS}
        self.materialize = True
        self.saved: TupleValue | None = None  # saved_tensors, while the backward is traced
        self.rebind: Callable[[Value], Value] = lambda value: value  # to the backward's value

    def python_type(self, machine: Machine) -> type:
        return self.kind

    def truth(self, machine: Machine) -> bool:
        return True

    def get_attr(self, machine: Machine, name: str) -> Value:
        if name in self.attributes:
            value = self.attributes[name]
            # An object may change between forward and backward, so the backward reads it anew;
            # tensors and plain numbers are those of the forward.
            return value if self.saved is None else self.rebind(value)
        if name in _MARKS and self.saved is None:
            return _Mark(self, name)
        if name == "needs_input_grad":
            return self._needs(machine)
        if name == "saved_tensors" and self.saved is not None:
            return self.saved
        if attribute_of_class(BackwardCFunction, name) is not NOTHING:
            self.refuse(machine, f"attribute {name!r}")
        message = f"'{self.kind.__name__}' object has no attribute '{name}'"
        raise machine.error(AttributeError, message)

    def _needs(self, machine: Machine) -> Value:
        tensors = [arg if isinstance(arg, TensorValue) else None for arg in self.args]
        # In the graph of another backward, flags are known only when it runs (create_graph=True).
        if self.saved is None and any(t and machine.graph.flags_vary(t.node) for t in tensors):
            self.refuse(machine, "`needs_input_grad` in a backward")
        return machine.constant(tuple(t is not None and t.meta.requires_grad for t in tensors))

    def set_attr(self, machine: Machine, name: str, value: Value) -> None:
        # `ctx.to_save = tensors` is what save_for_backward itself does: such names are state of
        # torch's node and not attributes of the program.
        known = attribute_of_class(BackwardCFunction, name) is not NOTHING
        if self.saved is not None or known:
            self.refuse(machine, f"setting attribute {name!r}")
        self.attributes[name] = value

    def mark(self, machine: Machine, name: str, args: Args) -> None:
        """Record a call of one of the methods of _MARKS; a later call replaces an earlier one."""
        if name == "set_materialize_grads":
            self.materialize = args[0].realize(machine).truth(machine)
            return
        given = [arg.realize(machine) for arg in args]
        for arg in given:
            nothing = arg.is_constant(machine) and arg.as_constant(machine) is None
            if not isinstance(arg, TensorValue) and not (nothing and name.startswith("save")):
                what = f"an argument of type {arg.describe()}"
                raise GraphBreak(UnsupportedArguments.of(name=f"ctx.{name}", what=what))
        self.marked[name] = given

    def recipe(self, builder: Builder) -> Recipe:
        raise CannotRebuild("the context of an autograd function", self.created_at_step)

    def parts(self) -> Iterable[Value]:
        return self.attributes.values()

    def describe(self) -> str:
        return f"context of {self.kind.__name__}"


class _Mark(Value):
    """A method of the context."""

    __slots__ = ("context", "name")

    def __init__(self, context: FunctionContext, name: str) -> None:
        super().__init__()
        self.context, self.name = context, name

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        if kwargs:
            self.refuse(machine, "keywords")
        self.context.mark(machine, self.name, args)
        return machine.constant(None)
