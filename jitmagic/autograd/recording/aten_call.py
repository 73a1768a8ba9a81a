"""Defines AtenCall, a call of an ATen overload as a dispatch mode receives it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...graph.symbolic.sym_node import sizes_of
from ...lazy_dataclass import dataclass, field
from ...torch_types import OpOverload

__all__ = ["AtenCall"]


@dataclass(frozen=True, slots=True)
class AtenCall:
    """A call. The arguments have the types that the overload's schema declares."""

    op: OpOverload
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def operands(self) -> tuple[Any, ...]:
        """Return all arguments, those passed by keyword last."""
        return (*self.args, *self.kwargs.values())

    @property
    def after_tensor(self) -> tuple[Any, ...]:
        """Return the arguments after the first, keywords in their positions."""
        rest = list(self.args[1:])
        for argument in self.op._schema.arguments[len(self.args) :]:
            if argument.name in self.kwargs:
                rest.append(self.kwargs[argument.name])
            elif len(rest) + 1 < len(self.args) + len(self.kwargs):
                # Only up to the last keyword given: later defaults stay unwritten, as in a call by
                # position.
                rest.append(argument.default_value)
        return sizes_of(tuple(rest))  # type: ignore[no-any-return]

    def run(self) -> Any:
        """Make the call."""
        return self.op(*self.args, **self.kwargs)
