"""Arguments at their edges: calls of every operator that is lowered or decomposed.

Comes in: the registries of lowerings and decompositions, hence their schemas. Goes out: `Case`s. Of
each operator one argument at a time is moved to the edges of its type while the others keep a base
value (the schema's default, or recipes.py), in every dtype, in up to three spellings: the public
function, its in-place method, the overload itself. Calls that eager refuses are cases too.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch

from jitmagic.autograd.decompose import TABLE
from jitmagic.loops.registry import LOWERINGS

from .recipes import Operand, base_of, built

__all__ = ["DTYPES", "Case", "cases", "operators", "unmade"]

DTYPES = (
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool, torch.complex64),
)
_NUMBERS = (
    *(0, -0.0, 1, -1, 1e-8, 0.5, -0.5, math.inf, -math.inf, math.nan),
    *(2**31, 2**31 - 1, 2**62, True, False, 2, 3, -2, 300, 1e30),
)
_INTEGERS = (0, 1, -1, 2, -2, 3, -3, 5, 2**31 - 1, 2**31, 2**62, True)
_LISTS = ([], [0], [-1], [1, 0], [0, 0], [0, 1], [-1, 0], [2], [3], [1, 2, 0], [3, 4], [2**31])
_NUMBER_LISTS = ([], [0], [0.5], [0, -0.0], [math.inf, 2], [-1, 1e-8], [True, 2**31])
_FLAGS = ([True, False, True], [False, False, False], [True], [False, True, True])
_RESULT_DTYPES = (None, torch.float16, torch.float64, torch.int64, torch.uint8, torch.bool)
_FORMATS = (None, torch.preserve_format, torch.contiguous_format, torch.channels_last)
_TEXTS = ("none", "tanh", "floor", "trunc", "odd")
_EDGES: Mapping[str, tuple[Any, ...]] = {
    "number": _NUMBERS,
    "float": _NUMBERS,
    "int": _INTEGERS,
    "bool": (True, False),
    "List[int]": _LISTS,
    "List[number]": _NUMBER_LISTS,
    "List[bool]": _FLAGS,
    "ScalarType": _RESULT_DTYPES,
    "MemoryFormat": _FORMATS,
    "str": _TEXTS,
}
_LEFT_OUT = frozenset({"layout", "device", "pin_memory", "non_blocking", "implicit"})
_PAIRS = 6  # of two numbers at their edges at once, of each operator and dtype


@dataclass(frozen=True)
class Case:
    """`call` is source text with {0}, {1}, ... for the operands."""

    op: str
    call: str
    operands: tuple[Operand, ...]
    dtype: torch.dtype

    def text(self, names: list[str]) -> str:
        return self.call.format(*names)

    def __str__(self) -> str:
        shown = ", ".join(f"{{{n}}}: {part}" for n, part in enumerate(self.operands))
        return f"{self.op} {self.dtype}: {self.call}  [{shown}]"


@cache
def operators() -> tuple[Any, ...]:
    """Every overload with a lowering or a decomposition, by name."""
    names = {*LOWERINGS.load_all(), *map(str, TABLE.load_all())}
    found = {name: _resolved(name) for name in sorted(names)}
    return tuple(op for op in found.values() if op is not None)


def _resolved(name: str) -> Any:
    _, packet, overload = name.split(".")
    return getattr(getattr(torch.ops.aten, packet, None), overload, None)


class Argument(NamedTuple):
    """One of a schema, which makes all of them anew each time it is asked."""

    name: str
    kind: str
    is_number: bool
    keyword_only: bool
    has_default: bool
    default: Any


@cache
def _arguments(op: Any) -> tuple[Argument, ...]:
    return tuple(
        Argument(
            a.name,
            str(a.real_type),
            str(a.type) in ("number", "float"),
            a.kwarg_only,
            a.has_default_value(),
            a.default_value,
        )
        for a in op._schema.arguments
    )


@cache
def cases(only: str = "") -> tuple[Case, ...]:
    """All of them, of the operators whose names begin so; always in the same order."""
    chosen = [op for op in operators() if op._opname.startswith(only)]
    return tuple(case for op in chosen for case in dict.fromkeys(_of_operator(op)))


def unmade() -> list[str]:
    """Operators for which no base call is known that eager takes in any dtype."""
    return [str(op) for op in operators() if not _spellings(op)]


def _of_operator(op: Any) -> Iterator[Case]:
    for spelling in _spellings(op):
        for dtype in DTYPES:
            for change in _changes(op, dtype):
                case = _case(op, spelling, dtype, change)
                if case is not None:
                    yield case


def _changes(op: Any, dtype: torch.dtype) -> Iterator[dict[str, Any]]:
    """What differs from the base call: nothing, one argument, or two numbers."""
    yield {}
    arguments = [a for a in _arguments(op) if a.name not in _LEFT_OUT]
    for argument in arguments:
        kind = argument.kind
        plain = kind.removeprefix("Optional[").removesuffix("]") if "Optional" in kind else kind
        edges = _EDGES.get(plain, ())
        for edge in edges if "Optional" not in kind else (None, *edges):
            yield {argument.name: edge}
    numbers = [a.name for a in arguments if a.is_number]
    if len(numbers) > 1:
        draw = random.Random(f"{op} {dtype}")
        for _ in range(_PAIRS):
            yield {name: draw.choice(_NUMBERS) for name in draw.sample(numbers, 2)}


# -- spelling -------------------------------------------------------------------------------------


@cache
def _spellings(op: Any) -> tuple[str, ...]:
    """`{call}` and `{rest}` are filled in by `_case`; the first that eager takes, and two more."""
    name = op._opname
    public: list[str] = []
    if type(getattr(torch, name, None)).__name__ == "builtin_function_or_method":
        public.append(f"torch.{name}(")
    if hasattr(torch._C._nn, name):
        public.append(f"torch._C._nn.{name}(")
    if type(getattr(torch.Tensor, name, None)).__name__ == "method_descriptor":
        public.append(f"{{self}}.{name}(")
    found = [spelling for spelling in public if _works(op, spelling)][:1]
    if type(getattr(torch.Tensor, f"{name}_", None)).__name__ == "method_descriptor":
        found += [s for s in (f"{{self}}.clone().{name}_(",) if _works(op, s)]
    direct = f"torch.ops.aten.{name}.{op._overloadname}("
    return (*found, direct) if _works(op, direct) else tuple(found)


def _works(op: Any, spelling: str) -> bool:
    for dtype in DTYPES:
        case = _case(op, spelling, dtype, {})
        if case is not None and _accepted(case):
            return True
    return False


def _accepted(case: Case) -> bool:
    names = [f"t{n}" for n in range(len(case.operands))]
    space = {"torch": torch, "inf": math.inf, "nan": math.nan, "DEVICE": "cpu"}
    space |= {name: built(part) for name, part in zip(names, case.operands, strict=True)}
    try:
        eval(case.text(names), space)
    except (RuntimeError, TypeError, IndexError, ValueError, NotImplementedError):
        return False
    return True


def _case(op: Any, spelling: str, dtype: torch.dtype, change: Mapping[str, Any]) -> Case | None:
    """The call with these arguments, in the spelling; None where that cannot say it."""
    base = base_of(op, dtype)
    operands: list[Operand] = []
    positional: list[str | None] = []
    named: list[str] = []
    method = spelling.startswith("{self}")
    for argument in _arguments(op):
        given = argument.name in change or argument.name in base
        value = change.get(argument.name, base.get(argument.name))
        if not given and not argument.has_default:
            return None
        if argument.keyword_only:
            named += [f"{argument.name}={_shown(value, operands)}"] if given else []
        else:
            positional.append(_shown(value, operands) if given else None)
    if not operands and any(a.name == "device" for a in _arguments(op)):
        named.append("device=DEVICE")
    while positional and positional[-1] is None:
        positional.pop()
    defaults = [a.default for a in _arguments(op)]
    texts = [_shown(defaults[n], operands) if t is None else t for n, t in enumerate(positional)]
    head = spelling
    if method:
        if not texts or not texts[0].startswith("{"):
            return None
        head = spelling.replace("{self}", texts.pop(0))
    return Case(str(op), f"{head}{', '.join((*texts, *named))})", tuple(operands), dtype)


def _shown(value: Any, operands: list[Operand]) -> str:
    """Source text; tensors become numbered operands."""
    if isinstance(value, Operand):
        operands.append(value)
        return f"{{{len(operands) - 1}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_shown(part, operands) for part in value)}]"
    return repr(value)
