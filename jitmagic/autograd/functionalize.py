"""Functionalisation: tensors that record what is done to them, with mutation and views taken out.

`Traced` is a tensor without data that reports the real device; `Functionalizer` is the dispatch
mode that sees every ATen call below C++ autograd and records it. Memory is modelled by `Cell`s: a
cell holds the current functional value of one storage, a Traced is a path of view steps into a
cell. Reading a view replays its path on the current value; writing to one makes a new value of the
whole cell. So the graph is functional whatever the program does, and at the end a cell of an input
that was written to tells which inputs were mutated. Raises CompileFailed for what cannot be
modelled; the frame then runs as eager.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import torch

from ..errors import CompileFailed
from ..graph.dispatch_mode import DispatchMode, dataless
from ..spec import TensorSpec
from .decompose import TABLE
from .line_marks import marked_lines
from .mutate import MUTATORS, functional_twin, twin_without_out
from .recorder import Recorder, Sym
from .views import ViewStep, split_steps

__all__ = ["Cell", "Functionalizer", "Traced"]

aten = torch.ops.aten


class Cell:
    """One storage: its current value, how often it was written, and the tensor that owns it."""

    __slots__ = ("base", "counter", "frozen", "input", "value", "version")

    def __init__(self, value: Sym, input: int | None = None, frozen: str = "") -> None:
        self.value = value
        self.version = 0
        self.counter = 0  # autograd's version counter: writes that an operation's schema hides lack
        self.input = input
        self.frozen = frozen  # why it must not be written to
        self.base: Traced | None = None


class Traced(torch.Tensor):
    """A tensor being traced. C++ autograd treats it as any tensor of that device."""

    cell: Cell
    path: tuple[ViewStep, ...]
    _sym: Sym
    _version_read: int

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def make(
        sym: Sym,
        cell: Cell,
        path: tuple[ViewStep, ...],
        requires_grad: bool,
        place: torch.Tensor | None = None,
    ) -> Traced:
        """`place`: how the tensor lies in its storage, where its value is laid out otherwise."""
        meta = sym.meta if place is None else place
        offset = int(meta.storage_offset()) if path else 0
        made = dataless(Traced, meta, sym.device, offset, requires_grad)
        made.cell, made.path, made._sym, made._version_read = cell, path, sym, cell.version
        return made

    @property
    def sym(self) -> Sym:
        """The current value, read through the views."""
        if self._version_read != self.cell.version:
            self._sym = self._replay()[-1]
            self._version_read = self.cell.version
        return self._sym

    def place(self) -> torch.Tensor | None:
        """How this tensor lies in its storage, if its value does not tell: what was written to an
        input with gaps between its elements is a dense value, its memory has the gaps still.
        """
        if self.stride() == self.sym.meta.stride() or not self.numel():
            return None
        shape, stride, offset = tuple(self.shape), self.stride(), int(self.storage_offset())
        last = offset + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
        memory = torch.empty(last + 1, dtype=self.dtype, device="meta")
        return memory.as_strided(shape, stride, offset)

    def _replay(self) -> list[Sym]:
        values = [self.cell.value]
        for step in self.path:
            values.append(step.apply(values[-1]))
        return values

    def write(self, new: Sym, counted: bool = True) -> None:
        """Make `new` the value, in every tensor of this storage."""
        cell = self.cell
        if cell.frozen:
            raise CompileFailed(cell.frozen)
        bases = self._replay()
        value = self._conform(new)
        cell.version += 1
        cell.counter += counted
        self._sym, self._version_read = value, cell.version
        for step, base in zip(reversed(self.path), reversed(bases[:-1]), strict=True):
            value = step.write_back(base, value)
            if value.meta.stride() != base.meta.stride():
                value = value.recorder.restride(value, base.meta.stride())
        cell.value = value

    def _conform(self, new: Sym) -> Sym:
        """Cast, broadcast and lay out as this tensor is: what writing into its memory does."""
        new = new.to(self.dtype)
        shape = tuple(self.shape)
        if new.shape != shape:
            new = new.expand(*shape).one(aten.clone.default, memory_format=torch.contiguous_format)
        return new.recorder.restride(new, self._sym.meta.stride())

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        raise CompileFailed(f"{func} met a traced tensor outside of the trace")


class Functionalizer(DispatchMode):
    """Sees every ATen call of the trace, below autograd, and records it through `recorder`."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder
        self.in_backward = False
        # The tensors are held: an id is a name only while its object lives.
        self._constants: dict[int, tuple[torch.Tensor, Traced]] = {}
        self._numbers: dict[int, tuple[complex, Traced]] = {}

    def input(self, index: int, name: str, spec: TensorSpec) -> Traced:
        """A traced graph input: a leaf of the autograd graph of the trace."""
        sym = self.recorder.placeholder(name, spec)
        return self._own(sym, Cell(sym, input=index), spec.requires_grad)

    def fresh(self, sym: Sym) -> Traced:
        """A tensor with memory of its own holding that value."""
        return self._own(sym, Cell(sym), False)

    def constant(self, tensor: torch.Tensor) -> Traced:
        """A real tensor that the program closes over."""
        known = self._constants.get(id(tensor))
        if known is not None:
            return known[1]
        if tensor.requires_grad:
            raise CompileFailed("a constant of the graph requires grad")
        sym = self.recorder.constant(tensor)
        cell = Cell(sym, frozen="the program writes to a tensor that is no graph input")
        made = self._own(sym, cell, False)
        self._constants[id(tensor)] = tensor, made
        return made

    def number(self, value: complex) -> Traced:
        """A number that a formula of autograd's holds as a tensor; operations read the number."""
        made = self.constant(torch.tensor(value, dtype=torch.complex128))
        self._numbers[id(made)] = value, made
        return made

    def _own(self, sym: Sym, cell: Cell, requires_grad: bool) -> Traced:
        made = Traced.make(sym, cell, (), requires_grad)
        cell.base = made
        return made

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if kwargs and kwargs.get("generator") is not None:
            raise CompileFailed("a random generator of the program's own")
        if self.in_backward:
            self.recorder.lines = marked_lines(torch._C._current_autograd_node())
        return _handler(func)(self, func, args, kwargs or {})

    # -- what the handlers share ---------------------------------------------------------------

    def traced(self, tensor: torch.Tensor) -> Traced:
        return tensor if isinstance(tensor, Traced) else self.constant(tensor)

    def read(self, value: Any) -> Any:
        """Arguments with tensors replaced by their current values."""
        if isinstance(value, Traced):
            return self._numbers[id(value)][0] if id(value) in self._numbers else value.sym
        if isinstance(value, torch.Tensor):
            return self.constant(value).sym
        if isinstance(value, (list, tuple)):
            return [self.read(item) for item in value]
        return value

    def emit(self, op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Record op on the current values of its arguments; Syms come back."""
        return self.recorder.emit(
            op,
            *[self.read(arg) for arg in args],
            **{name: self.read(value) for name, value in kwargs.items() if name != "generator"},
        )

    def wrap(self, made: Any) -> Any:
        """Fresh tensors for results."""
        if isinstance(made, Sym):
            return self.fresh(made)
        if isinstance(made, (list, tuple)):
            return [self.wrap(part) for part in made]
        return made


Handler = Callable[[Functionalizer, Any, tuple[Any, ...], Mapping[str, Any]], Any]


def _plain(
    mode: Functionalizer, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    return mode.wrap(mode.emit(func, args, kwargs))


def _same(mode: Functionalizer, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """detach, alias: another tensor for the same memory."""
    source = mode.traced(args[0])
    return Traced.make(source.sym, source.cell, source.path, False, source.place())


def _view(mode: Functionalizer, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    source = mode.traced(args[0])
    rest = _positional(func, args, kwargs)
    steps = split_steps(func, tuple(source.shape), rest)
    if steps is not None:
        return [_through(source, step) for step in steps]
    return _through(source, ViewStep(func, rest))


def _through(source: Traced, step: ViewStep) -> Traced:
    place = source.place()
    if place is not None:
        place = step.op(place, *step.args)
    sym = step.apply(source.sym)
    return Traced.make(sym, source.cell, (*source.path, step), False, place)


def _positional(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """The arguments behind the tensor, keywords put in their places."""
    rest = list(args[1:])
    for argument in func._schema.arguments[len(args) :]:
        if argument.name in kwargs:
            rest.append(kwargs[argument.name])
        elif len(rest) + 1 < len(args) + len(kwargs):
            rest.append(argument.default_value)
    return tuple(rest)


def _reshape_alias(
    mode: Functionalizer, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    return _through(mode.traced(args[0]), ViewStep(aten.view.default, (args[1],)))


def _unsafe_view(
    mode: Functionalizer, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """A view of a temporary nobody else holds: a tensor with memory of its own."""
    made = mode.read(args[0]).call(aten.view.default, args[1])
    if made.meta.storage_offset():
        made = made.call(aten.clone.default)
    return mode.fresh(made)


def _as_strided(
    mode: Functionalizer, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    source = mode.traced(args[0])
    if source.cell.input is not None or source.cell.frozen:
        # Offsets count from the start of the storage, which a spec does not pin.
        raise CompileFailed("as_strided of a graph input")
    return _view(mode, func, args, kwargs)


def _as_strided_in_place(
    mode: Functionalizer, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Pooling relabels the strides of extents 1 this way; anything more is refused."""
    target, size, stride = args[:3]
    kept = tuple(size) == tuple(target.shape) and (len(args) < 4 or args[3] in (None, 0))
    moved = any(
        extent > 1 and old != new
        for extent, old, new in zip(target.shape, target.stride(), stride, strict=True)
    )
    return target if kept and not moved else _refuse(mode, func, args, kwargs)


def _relabel(
    mode: Functionalizer, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """squeeze_, t_ and their like: this tensor becomes a view of what it was."""
    target = mode.traced(args[0])
    if target.cell.input is not None or target.cell.frozen:
        raise CompileFailed(f"{func} changes the shape of a tensor that is not the graph's own")
    step = ViewStep(_RELABELLED[func], _positional(func, args, kwargs))
    target._sym = step.apply(target.sym)
    target.path = (*target.path, step)
    target._version_read = target.cell.version
    with torch._C._DisableTorchDispatch():
        func(*args, **kwargs)  # the sizes that C++ sees
    return target


def _lift(mode: Functionalizer, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """A tensor literal of the program: new memory on each call."""
    return mode.fresh(mode.read(args[0]).call(aten.clone.default))


def _mutate(
    mode: Functionalizer, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """An operation that writes to its first argument and returns it."""
    target = mode.traced(args[0])
    maker = MUTATORS.get(func)
    if maker is not None:
        new = maker(
            mode.recorder,
            *[mode.read(arg) for arg in args],
            **{name: mode.read(v) for name, v in kwargs.items() if name != "generator"},
        )
    else:
        new = mode.emit(functional_twin(func), args, kwargs)
    target.write(new)
    return target


def _mutate_list(
    mode: Functionalizer, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """_foreach_add_ and its like: one functional operation per element of the lists."""
    _refuse_sharing(mode, func, args)
    made = mode.emit(functional_twin(func), args, kwargs)
    for target, new in zip(args[0], made, strict=True):
        mode.traced(target).write(new)
    return None


def _refuse_sharing(mode: Functionalizer, func: Any, args: tuple[Any, ...]) -> None:
    """The elements of the lists are done one after the other: what one reads, no other writes."""
    written = {id(mode.traced(target).cell): n for n, target in enumerate(args[0])}
    if len(written) < len(args[0]):
        raise CompileFailed(f"{func} writes to the same memory more than once")
    for given in args[1:]:
        many = enumerate(given) if isinstance(given, (list, tuple)) else ((-1, given),)
        for place, value in many:
            if isinstance(value, Traced) and written.get(id(value.cell), place) != place:
                raise CompileFailed(f"{func} reads what it has written")


def _mutate_out(
    mode: Functionalizer, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """torch.maximum(a, b, out=c): c gets the result, cast to its dtype."""
    target = mode.traced(kwargs["out"])
    given = {name: value for name, value in kwargs.items() if name != "out"}
    new = mode.emit(twin_without_out(func), args, given)
    if new.shape != tuple(target.shape):
        raise CompileFailed(f"{func} resizes its result")
    target.write(new)
    return target


def _composite(
    mode: Functionalizer, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """C++ composites reached below autograd (from another operation's kernel): take them apart."""
    with torch._C._AutoDispatchBelowAutograd(), torch._C._DisableAutocast(), mode:
        return func.decompose(*args, **kwargs)


def _conjugate(
    mode: Functionalizer, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """A lazy view in eager. Nothing but a formula of autograd's reads those of a backward."""
    if not mode.in_backward:
        return _refuse(mode, func, args, kwargs)
    if isinstance(args[0], complex):  # of `x * 1j`: its dtype must not count in promotions
        return mode.number(args[0].conjugate())
    return mode.wrap(mode.emit(aten._conj_physical.default, args, kwargs))


def _refuse(
    mode: Functionalizer, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    raise CompileFailed(f"{func} changes what a tensor is, or asks for its data")


def _norm_with_stats(
    mode: Functionalizer, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Batch norm: writes its running statistics (arguments 3 and 4) though the schema hides it."""
    made = mode.emit(func, args, kwargs)
    *results, mean, var = made
    for target, new in ((args[3], mean), (args[4], var)):
        if new is not None and target is not None:
            mode.traced(target).write(new, counted=False)
    return mode.wrap(results)


_RELABELLED: Mapping[Any, Any] = {
    aten.squeeze_.default: aten.squeeze.default,
    aten.squeeze_.dim: aten.squeeze.dim,
    aten.squeeze_.dims: aten.squeeze.dims,
    aten.unsqueeze_.default: aten.unsqueeze.default,
    aten.transpose_.default: aten.transpose.int,
    aten.t_.default: aten.t.default,
}

_SPECIAL: Mapping[Any, Handler] = {
    **dict.fromkeys(_RELABELLED, _relabel),
    aten.detach.default: _same,
    aten.alias.default: _same,
    aten._reshape_alias.default: _reshape_alias,
    aten._unsafe_view.default: _unsafe_view,
    aten.as_strided.default: _as_strided,
    aten._conj.default: _conjugate,
    aten.as_strided_.default: _as_strided_in_place,
    aten.lift_fresh.default: _lift,
    aten.lift_fresh_copy.default: _lift,
    aten.native_batch_norm.default: _norm_with_stats,
    aten._native_batch_norm_legit.default: _norm_with_stats,
    aten.cudnn_batch_norm.default: _norm_with_stats,
    **dict.fromkeys(
        (
            aten._local_scalar_dense.default,
            aten._neg_view.default,
            aten.set_.source_Tensor,
            aten.resize_.default,
        ),
        _refuse,
    ),
}


@lru_cache(maxsize=4096)
def _handler(func: Any) -> Handler:
    special = _SPECIAL.get(func)
    if special is not None:
        return special
    schema = func._schema
    if torch.Tag.inplace_view in func.tags:
        return _refuse
    if schema.is_mutable:
        return _handler_of_mutation(schema)
    info = schema.returns[0].alias_info if schema.returns else None
    if info is not None:
        return _view
    if func in TABLE:
        return _plain
    if torch._C._dispatch_has_kernel_for_dispatch_key(
        func.name(), torch._C.DispatchKey.CompositeImplicitAutograd
    ):
        return _composite
    return _plain


def _handler_of_mutation(schema: Any) -> Handler:
    written = [a for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    if len(written) == 1 and written[0].name == "out" and written[0].kwarg_only:
        return _refuse if isinstance(written[0].type, torch.ListType) else _mutate_out
    if len(written) != 1 or written[0].name != schema.arguments[0].name:
        return _refuse
    return _mutate_list if isinstance(written[0].type, torch.ListType) else _mutate
