"""Defines an operator of jitmagic for each form of launch of a user-written Triton kernel.

Input: a `Launch`: the kernel object, and for each parameter where its value comes from. Output: an
operator `jitmagic::<kernel>_<n>(Tensor(a!) out, Tensor x, SymInt n, SymInt[] grid) -> ()`, whose
schema shows what the kernel writes, so that graphs treat a launch like any custom operator that
writes to its arguments. Running the operator calls `kernel[grid](...)`, by which Triton compiles,
specialises and tunes as in eager; plans repeat such launches natively (runtime/user_kernels.py). As
in eager, autograd does not see what a launch writes.

A kernel reads and writes memory, not tensors: through a pointer to a view it reaches the whole
storage. The functionaliser therefore replaces views by their bases; `views` then has the sizes,
strides and offset of each view.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import count
from typing import TYPE_CHECKING, Any

import torch

from ...late import late_names
from ...lazy_dataclass import dataclass, field, replace
from ...torch_types import OpOverload
from ..operators.operator_library import (
    DEFINED,
    IN_PLACE,
    LIBRARY,
    defines_operators,
    is_registered,
)

if TYPE_CHECKING:
    from .writes import function_of
else:
    late_names(globals(), {"graph.triton.writes": "function_of"})

__all__ = [
    "Const", "Grid", "Items", "Launch", "Number", "Origin", "Parameter", "Tensor",
    "copy_with_strides", "kernel_name", "launch_of", "layers", "operator_of",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tensor:
    """The tensor argument at `slot`, or a view of it: its sizes, strides and offset start at
    `start` of the views, and it has `rank` dimensions.
    """

    slot: int
    rank: int | None = None
    start: int = 0


@dataclass(frozen=True, slots=True)
class Number:
    """The number at `slot`, which may vary."""

    slot: int
    kind: str  # "SymInt" or "float"


@dataclass(frozen=True, slots=True)
class Const:
    """A constant: a constexpr, a bool, None, or an option such as num_warps."""

    value: object


@dataclass(frozen=True, slots=True)
class Items:
    """A tuple or list of such values, or an object made of them: a tensor descriptor."""

    parts: tuple[Origin, ...]
    kind: type = tuple

    def made_of(self, values: Sequence[object]) -> object:
        """Return the object for these values of the parts."""
        return self.kind(values) if self.kind in (tuple, list) else self.kind(*values)


Origin = Tensor | Number | Const | Items


@dataclass(frozen=True, slots=True)
class Parameter:
    """An argument of the launch; `name` is None for a positional one."""

    name: str | None
    origin: Origin


@dataclass(frozen=True, slots=True)
class Grid:
    """The grid of the launches whose metaparameters have these values; it has `rank` numbers."""

    rank: int
    when: tuple[tuple[str, object], ...] = ()


@dataclass(frozen=True, eq=False)
class Launch:
    """A form of launch: all but the tensors and numbers of one call."""

    kernel: Any
    parameters: tuple[Parameter, ...]
    tensors: tuple[str, ...]  # a name for each slot
    written: frozenset[int]  # slots
    numbers: tuple[str, ...]
    grids: tuple[Grid, ...]
    _tuned: set[object] = field(default_factory=set, repr=False)

    @property
    def name(self) -> str:
        """The name of the kernel's Python function."""
        return str(getattr(function_of(self.kernel), "__name__", "kernel"))

    def with_tensors(self, given: Sequence[Tensor]) -> Launch:
        """Return the launch whose tensor n is given[n], at a slot of the new launch."""
        parameters = tuple(
            replace(one, origin=_replaced(one.origin, given)) for one in self.parameters
        )
        names: dict[int, str] = {}
        for name, one in zip(self.tensors, given, strict=True):
            names.setdefault(one.slot, name)
        written = frozenset(given[slot].slot for slot in self.written)
        tensors = tuple(names[n] for n in range(len(names)))
        return replace(self, parameters=parameters, tensors=tensors, written=written, _tuned=set())

    @property
    def key(self) -> tuple[object, ...]:
        """A key that equal launches share."""
        described = tuple((one.name, _key_of(one.origin)) for one in self.parameters)
        grids = tuple((g.rank, tuple((k, _described(v)) for k, v in g.when)) for g in self.grids)
        return id(self.kernel), described, self.tensors, self.written, self.numbers, grids

    # -- running ---------------------------------------------------------------------------------

    @cached_property
    def _tuner(self) -> object | None:
        """The decorator that chooses between several configurations, if there is one."""
        return next((one for one in layers(self.kernel) if _tunes(one)), None)

    @cached_property
    def _passed(self) -> tuple[tuple[Origin, ...], tuple[tuple[str, Origin], ...]]:
        """The positional arguments and the named ones."""
        positional = tuple(one.origin for one in self.parameters if one.name is None)
        return positional, tuple((one.name, one.origin) for one in self.parameters if one.name)

    def run(self, *args: Any) -> None:
        """Launch the kernel on the operator's arguments."""
        self.launch(args)

    def launch(self, args: Sequence[Any]) -> tuple[Any, int, int]:
        """Launch the kernel. Return Triton's compiled kernel, and the first of the grid's numbers
        and their count.
        """
        if self._tuner is not None:
            self._tune_on_copies(args)
        return self._launch(args)

    def _launch(self, args: Sequence[Any]) -> tuple[Any, int, int]:
        grid = _Chosen(self, args[-2])
        positional, named = self.passed(args)
        compiled = self.kernel[grid if len(self.grids) > 1 else grid.at(0)](*positional, **named)
        return compiled, grid.start, grid.rank

    def passed(self, args: Sequence[Any]) -> tuple[list[object], dict[str, object]]:
        """Return the positional and the named arguments of the kernel."""
        positional, named = self._passed
        count = len(self.tensors)
        return (
            [_value(origin, args, count) for origin in positional],
            {name: _value(origin, args, count) for name, origin in named},
        )

    def _tune_on_copies(self, args: Sequence[Any]) -> None:
        """Let Triton choose a configuration on copies of what the kernel writes: it launches the
        kernel many times for that.
        """
        count = len(self.tensors)
        # These are what Triton's own key consists of: values of arguments, and dtypes.
        key = (tuple(one.dtype for one in args[:count]), args[count:-2])
        if key in self._tuned or not self.written:
            return
        self._launch(
            [
                copy_with_strides(one) if slot in self.written else one
                for slot, one in enumerate(args)
            ]
        )
        self._tuned.add(key)


class _Chosen:
    """Is the grid of a launch that Triton asks for with the metaparameters that it chose."""

    def __init__(self, launch: Launch, numbers: Sequence[int]) -> None:
        self.launch, self.numbers = launch, numbers
        self.start = self.rank = 0

    def at(self, index: int) -> tuple[int, ...]:
        """Return one of the grids."""
        ranks = [grid.rank for grid in self.launch.grids]
        self.start, self.rank = sum(ranks[:index]), ranks[index]
        return tuple(self.numbers[self.start : self.start + self.rank])

    def __call__(self, meta: Mapping[str, object]) -> tuple[int, ...]:
        for index, grid in enumerate(self.launch.grids):
            if all(meta.get(name) == value for name, value in grid.when):
                return self.at(index)
        name = self.launch.name
        raise RuntimeError(f"{name}: no grid was computed for the configuration {meta}")


def _replaced(origin: Origin, given: Sequence[Tensor]) -> Origin:
    match origin:
        case Tensor(slot=slot):
            return given[slot]
        case Items(parts=parts, kind=kind):
            return Items(tuple(_replaced(part, given) for part in parts), kind)
    return origin


def _key_of(origin: Origin) -> object:
    match origin:
        case Const(value=value):
            return _described(value)
        case Items(parts=parts, kind=kind):
            return kind, *map(_key_of, parts)
    return origin


def _numbers_in(origin: Origin) -> Iterator[Number]:
    if isinstance(origin, Number):
        yield origin
    for part in origin.parts if isinstance(origin, Items) else ():
        yield from _numbers_in(part)


def _described(value: object) -> object:
    if value is None or type(value) in (int, bool, str, torch.dtype):
        return type(value), value
    return (float, repr(value)) if type(value) is float else id(value)  # the launch holds it


def _value(origin: Origin, args: Sequence[Any], tensors: int) -> object:
    """Return a value from the arguments of the operator: tensors, numbers, the grid, views."""
    if isinstance(origin, Tensor):
        return args[origin.slot] if origin.rank is None else _view(origin, origin.rank, args)
    if isinstance(origin, Const):
        return origin.value
    if isinstance(origin, Number):
        return args[tensors + origin.slot]
    return origin.made_of([_value(part, args, tensors) for part in origin.parts])


def _view(origin: Tensor, rank: int, args: Sequence[Any]) -> torch.Tensor:
    base: torch.Tensor = args[origin.slot]
    views: Sequence[int] = args[-1]
    middle, end = origin.start + rank, origin.start + 2 * rank
    offset = base.storage_offset() + views[end]
    return base.as_strided(views[origin.start : middle], views[middle:end], offset)


def copy_with_strides(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy with the same strides, gaps and overlaps included."""
    if tensor.layout is not torch.strided:
        return tensor.clone()
    shape, stride = tensor.shape, tensor.stride()
    if tensor.is_meta or not tensor.numel():
        return torch.empty_strided(shape, stride, dtype=tensor.dtype, device=tensor.device)
    extent = 1 + sum((n - 1) * step for n, step in zip(shape, stride, strict=True))
    memory = tensor.as_strided((extent,), (1,), tensor.storage_offset()).clone()
    return memory.as_strided(shape, stride, 0)


def layers(kernel: Any) -> Iterator[Any]:
    """Yield the decorated kernel and those inside it, the innermost last."""
    while kernel is not None and not isinstance(kernel, type(function_of)):
        yield kernel
        kernel = getattr(kernel, "fn", None)


def _tunes(layer: Any) -> bool:
    return len(getattr(layer, "configs", ())) > 1


# -- operators -------------------------------------------------------------------------------------

_OPERATORS: dict[tuple[object, ...], OpOverload] = {}
_LAUNCHES: dict[OpOverload, Launch] = {}


def launch_of(target: object) -> Launch | None:
    """Return the launch that an operator stands for."""
    return _LAUNCHES.get(target) if isinstance(target, OpOverload) else None


def kernel_name(target: object) -> str | None:
    """Return the name of the kernel that an operator, or its functional form, launches."""
    known = IN_PLACE.get(target, target) if isinstance(target, OpOverload) else target
    launch = launch_of(known)
    return None if launch is None else launch.name


@defines_operators
def operator_of(launch: Launch) -> OpOverload:
    """Return the operator of a launch; equal launches share one."""
    key = launch.key
    if key not in _OPERATORS:
        _OPERATORS[key] = made = _define(launch)
        _LAUNCHES[made], DEFINED[made] = launch, (operator_of, (launch,))
    return _OPERATORS[key]


def _define(launch: Launch) -> OpOverload:
    name = next(
        name for n in count() if not is_registered(name := f"triton_{launch.name.strip('_')}_{n}")
    )
    marks = iter("abcdefghijklmnopqrstuvwxyz" if len(launch.written) <= 26 else ())
    tensors = [
        f"Tensor({next(marks)}!) {one}" if slot in launch.written else f"Tensor {one}"
        for slot, one in enumerate(launch.tensors)
    ]
    given = [one for parameter in launch.parameters for one in _numbers_in(parameter.origin)]
    kinds = {number.slot: number.kind for number in given}
    numbers = [f"{kinds[slot]} {one}" for slot, one in enumerate(launch.numbers)]
    arguments = ", ".join((*tensors, *numbers, "SymInt[] launch_grid", "SymInt[] launch_views"))
    LIBRARY.define(f"{name}({arguments}) -> ()")
    LIBRARY.impl(name, launch.run, "CompositeExplicitAutograd")
    LIBRARY.impl(name, _nothing, "Meta")
    # Without these torch would warn in backward that the operator has no autograd formula.
    for key in ("AutogradCPU", "AutogradCUDA", "AutogradMeta"):
        LIBRARY.impl(name, torch.library.fallthrough_kernel, key)
    made: OpOverload = getattr(torch.ops.jitmagic, name).default
    return made


def _nothing(*args: object) -> None:
    """Do nothing: tensors without data have nothing to write to."""
