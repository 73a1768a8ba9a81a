"""Writes a recorded batch as a Python function, which then is compiled like any tagged function.

Input: a batch as `_lazy` describes it. Output: a function of the batch's inputs and of its varying
numbers that makes the recorded ATen calls, in the order of the program, and returns the outputs:

    def recorded(v0, n1):
        v1 = mul_Tensor(v0, n1)  # train.py:12  y = x * lr
        add__Tensor(v1, 1.0)     # train.py:13  y += 1
        return v1,

Its source is in `linecache` under a name of its own as long as the function lives, so reports and
tracebacks show it, with the lines that recorded the calls.
"""

from __future__ import annotations

import itertools
import linecache
import math
import weakref
from collections.abc import Mapping, Sequence
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import torch

from ..errors import UserLine
from ..torch_types import OpOverload

__all__ = ["Batch", "Call", "Program", "operator_named"]

_NAME = "recorded"
_SHOWN_AS = "a graph of jitmagic.lazy()"  # in warnings
_LITERALS = (bool, int, str, type(None))
_serials = itertools.count(1)


class Call(NamedTuple):
    """A recorded call. Its results are the values from `first` on.

    args, kwargs: a tuple `(value,)` stands for a tensor, `(position, number)` for a varying number;
        no argument of an ATen call is a tuple otherwise
    counts: for each result its length if it is a list, or -1; None for a write to its first
        argument, which has no new value
    line: (file, line number, function) of the user's code
    """

    name: str
    overload: str
    args: tuple[object, ...]
    kwargs: Mapping[str, object]
    first: int
    counts: tuple[int, ...] | None
    line: tuple[str, int, str] | None


def operator_named(name: str, overload: str) -> OpOverload:
    """Return the operator with this qualified name, such as "aten::add"."""
    namespace, _, name = name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), name)
    found: OpOverload = getattr(packet, overload or "default")
    return found


class Batch(NamedTuple):
    """A recorded batch: its calls, and the values that are its inputs and its outputs."""

    calls: Sequence[Call]
    inputs: Sequence[int]
    outputs: Sequence[int]

    @classmethod
    def of(cls, described: tuple[Any, Any, Any]) -> Batch:
        """Read the description that `_lazy` makes."""
        calls, inputs, outputs = described
        return cls([Call(*call) for call in calls], inputs, outputs)


class Program:
    """The text of a batch's function, and the names that it uses."""

    def __init__(self, batch: Batch) -> None:
        self.names: dict[str, object] = {}  # operators, and constants without a literal
        self.numbers: dict[int, float] = {}  # varying ones, by position
        body = [f"    {self._statement(call)}{_comment(call)}\n" for call in batch.calls]
        parameters = [*map(_value, batch.inputs), *map(_number, self.numbers)]
        outputs = "".join(f"{_value(number)}, " for number in batch.outputs)
        head = f"def {_NAME}({', '.join(parameters)}):\n"
        self.source = "".join([head, *body, f"    return {outputs}\n"])

    @property
    def declared(self) -> dict[str, object]:
        """Return the option `dynamic` that makes varying floats inputs of the first graph.

        Varying ints are left to the ledger of the tagged function: most are sizes, and a graph for
        the sizes of two batches is slower than a graph for each.
        """
        floats = (at for at, number in self.numbers.items() if isinstance(number, float))
        return {_number(at): ... for at in floats}

    def function(self) -> FunctionType:
        """Return the function; its source is known to `linecache` while it lives."""
        file = f"<jitmagic.lazy() graph {next(_serials)}>"
        module = compile(self.source, file, "exec")
        code = next(one for one in module.co_consts if isinstance(one, CodeType))
        code = code.replace(co_name=_SHOWN_AS, co_qualname=_SHOWN_AS)
        made = FunctionType(code, self.names)
        # Without a time of modification, linecache.checkcache() keeps the entry.
        lines = self.source.splitlines(keepends=True)
        linecache.cache[file] = (len(self.source), None, lines, file)
        weakref.finalize(made, linecache.cache.pop, file, None).atexit = False
        return made

    def _statement(self, call: Call) -> str:
        name = f"{call.name.partition('::')[2]}{call.overload and '_'}{call.overload}"
        self.names[name] = operator_named(call.name, call.overload)
        args = [self._text(value) for value in call.args]
        args += [f"{key}={self._text(value)}" for key, value in call.kwargs.items()]
        made = f"{name}({', '.join(args)})"
        if call.counts is None:
            return made
        fresh = map(_value, itertools.count(call.first))
        results = [
            next(fresh) if count < 0 else f"[{', '.join(itertools.islice(fresh, count))}]"
            for count in call.counts
        ]
        return f"{', '.join(results)} = {made}"

    def _text(self, value: object) -> str:
        if isinstance(value, list):
            return f"[{', '.join(map(self._text, value))}]"
        if isinstance(value, tuple):
            first, *number = value
            if not number:
                return _value(first)
            self.numbers[first] = number[0]
            return _number(first)
        if isinstance(value, _LITERALS) or (isinstance(value, float) and math.isfinite(value)):
            return repr(value)
        name = f"c{len(self.names)}"
        self.names[name] = value
        return name


def _value(number: int) -> str:
    return f"v{number}"


def _number(position: int) -> str:
    return f"n{position}"


def _comment(call: Call) -> str:
    line = call.line and UserLine(*call.line)
    return f"  # {line.file}:{line.lineno}  {line.text}" if line else ""
