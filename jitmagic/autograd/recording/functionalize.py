"""Functionalises: records operations on traced tensors with mutation and views removed.

`Functionalizer` is the dispatch mode that sees every ATen call below C++ autograd and records it on
`Traced` tensors. A write makes a new value of its storage's Cell (traced.py); a view is a path into
a cell. The graph is therefore functional whatever the program does, and at the end the input cells
show which inputs were mutated. Raises CompileFailed for what cannot be modelled; the frame then
runs as eager.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import torch
from torch.autograd.graph import Node as GradNode
from torch.fx import Node

from ...compat.autograd import current_node
from ...compat.modes import AutocastOff, BelowAutograd, DispatchModesOff
from ...compat.operators import has_kernel
from ...errors import CompileFailed, ExtensionFailed, warn
from ...extend.operator_rows import DECOMPOSITIONS, RegisteredDecomposition, row_of
from ...graph.dispatch_mode import DispatchMode
from ...graph.node_meta import tensors_in
from ...graph.operators.foreign import is_foreign, overloads_of
from ...graph.operators.kernel_refusals import check_dtypes
from ...graph.operators.recurrent import RECURRENT
from ...graph.operators.registered import written_names
from ...graph.symbolic.number_ranges import READS_NUMBER
from ...graph.targets.attention_operators import FLEX_OPERATORS
from ...graph.targets.recomputed import Policy, Recomputed
from ...graph.triton.launches import launch_of
from ...spec import TensorSpec
from ...torch_types import Kwargs, OpOverload, Values
from ..decompose import TABLE
from .aten_call import AtenCall
from .collectives import is_collective, record_collective
from .custom import TangentsByNode, tangents_by_node
from .foreign_writes import functional_form
from .launches import record_launch
from .mutate import MUTATORS, functional_overload, overload_without, without_generator
from .origins import origin_of
from .recorder import Recorder, Sym
from .traced import AliasCall, Cell, Traced
from .view_calls import VIEW_CALLS, is_like_another, refuse, view
from .views import CONJUGATE

__all__ = ["Functionalizer"]

aten = torch.ops.aten


class Functionalizer(DispatchMode):
    """Sees every ATen call of the trace, below autograd, and records it through `recorder`."""

    below_wrappers = True

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder
        self.in_backward = False
        self.decomposed: list[OpOverload] = []  # whose registered decompositions run
        self.origin: Node | None = None  # in a backward: the forward operation whose formula runs
        self.custom: TangentsByNode = {}  # autograd nodes of user-defined functions
        self.hooked: dict[GradNode, list[Any]] = {}  # handles of the program's hooks
        self.results: Sequence[Traced] = ()  # in a backward: results that have a tangent
        self._history: TangentsByNode | None = None  # all autograd nodes, computed at first use
        # The tensors are kept alive because they are keyed by id, which a new object could reuse.
        self._policies: dict[Recomputed, Policy] = {}  # of this run of each checkpointed region
        self._constants: dict[int, tuple[torch.Tensor, Traced]] = {}
        self._numbers: dict[int, tuple[complex, Traced]] = {}

    def input(self, index: int, name: str, spec: TensorSpec) -> Traced:
        """Return a traced graph input: a leaf of the autograd graph of the trace."""
        sym = self.recorder.placeholder(name, spec)
        return self._own(sym, Cell(sym, input=index), spec.requires_grad)

    def fresh(self, sym: Sym) -> Traced:
        """Return a tensor with memory of its own that holds the value."""
        return self._own(sym, Cell(sym), False)

    def recomputed(self, tensor: Traced, region: object) -> Traced:
        """Return the tensor as the second run of a checkpointed region computes it."""
        sym = tensor.sym
        with DispatchModesOff():  # metas are no tensors of the trace
            second = self.recorder.recomputed(sym, region)
        # The value below a lazily conjugated tensor is not the one that the formula reads.
        return tensor if second is sym or tensor.is_conj() else self.fresh(second)

    def constant(self, tensor: torch.Tensor) -> Traced:
        """Return the traced tensor for a real tensor that the program closes over."""
        if (known := self._constants.get(id(tensor))) is not None:
            return known[1]
        if tensor.requires_grad:
            raise CompileFailed("a constant of the graph requires grad")
        sym = self.recorder.constant(tensor)
        cell = Cell(sym, frozen="the program writes to a tensor that is no graph input")
        traced = self._own(sym, cell, False)
        self._constants[id(tensor)] = tensor, traced
        return traced

    def number(self, value: complex) -> Traced:
        """Return a tensor for a number of an autograd formula; operations read the number
        instead.
        """
        traced = self.constant(torch.tensor(value, dtype=torch.complex128))
        self._numbers[id(traced)] = value, traced
        return traced

    def _own(self, sym: Sym, cell: Cell, requires_grad: bool) -> Traced:
        traced = Traced.make(sym, cell, (), requires_grad)
        cell.base = traced
        return traced

    def run_operator(self, op: OpOverload, args: Values, kwargs: Kwargs) -> object:
        call = AtenCall(op, args, kwargs)
        if "generator" in call.kwargs:
            if call.kwargs["generator"] is not None:
                raise CompileFailed("a user-created random generator")
            # Recorded calls draw from the default generator: `generator=None` has its own overload.
            call = replace(call, op=without_generator(op))
        # Errors and lines are attributed to the operation whose formula runs.
        if self.in_backward:
            node = current_node()
            self.origin = origin_of(node)
            self.recorder.lines = () if self.origin is None else self.origin.meta.get("lines", ())
            self.recorder.tangents = self._tangents_of(node, op)
            _check_numbers(call)
            call = _as_plain_tensor_formula(node, call)
        return self._recorded(None if self.in_backward else self.recorder.region, call)

    def _recorded(self, region: Recomputed | None, call: AtenCall) -> object:
        """Record a call; a policy of its region, if any, decides if the results are saved."""
        if region is None or region.make_policy is None:
            return self._handler_of(call.op)(self, call)
        if region not in self._policies:
            self._policies[region] = region.make_policy()
        before = self.recorder.last
        made = self._handler_of(call.op)(self, call)
        with DispatchModesOff():  # what the policy computes is not part of the program
            is_saved = self._policies[region].saves(call.op, call.args, call.kwargs, made)
        if is_saved:
            self.recorder.save_after(before)
        return made

    def _handler_of(self, op: OpOverload) -> Handler:
        """Return the handler of an operator, that of a user's registration if there is one."""
        if op in self.decomposed:  # its decomposition calls the operator itself
            return _handler(op)
        if (row := row_of(DECOMPOSITIONS.rows, op)) is not None:
            return partial(_decompose, row)
        return _mutate_named if written_names(op) else _handler(op)

    def _tangents_of(self, node: GradNode, func: OpOverload) -> tuple[int, ...]:
        """Return the tangents that the call depends on, where data flow does not show it. The
        gradient of round(), for example, is zeros_like, which reads no tangent.
        """
        if func is not aten.zeros_like.default or not self.results:
            return self.custom.get(node, ())
        if self._history is None:
            self._history = tangents_by_node(self.results, lambda node: True)
        return self._history.get(node, ())

    # -- what the handlers share ---------------------------------------------------------------

    def traced(self, tensor: torch.Tensor) -> Traced:
        return tensor if isinstance(tensor, Traced) else self.constant(tensor)

    def read(self, value: object) -> Any:
        """Replace tensors in arguments by their current values."""
        if isinstance(value, Traced):
            return self._numbers[id(value)][0] if id(value) in self._numbers else value.sym
        if isinstance(value, torch.Tensor):
            return self.constant(value).sym
        if isinstance(value, (list, tuple)):
            return [self.read(item) for item in value]
        return value

    def value(self, tensor: torch.Tensor) -> Sym:
        return self.traced(tensor).sym

    def current(self, call: AtenCall) -> AtenCall:
        """Return the call on the current values of its arguments, without a generator."""
        keywords = {
            name: self.read(value) for name, value in call.kwargs.items() if name != "generator"
        }
        return AtenCall(call.op, tuple(map(self.read, call.args)), keywords)

    def emit(self, call: AtenCall) -> Any:
        """Record the call on the current values of its arguments and return Syms."""
        call = self.current(call)
        return self.recorder.emit(call.op, *call.args, **call.kwargs)

    def wrap(self, value: object) -> Any:
        """Return fresh tensors for results."""
        if isinstance(value, Sym):
            return self.fresh(value)
        if isinstance(value, (list, tuple)):
            return [self.wrap(part) for part in value]
        return value


_HALF_MAX = torch.finfo(torch.float16).max


def _check_numbers(call: AtenCall) -> None:
    """Raise CompileFailed if the backward passes a number that a kernel refuses. Formulas fill and
    multiply with numbers that the forward used in float32 alone.
    """
    operands = call.operands
    if not any(isinstance(v, (int, float)) and abs(v) > _HALF_MAX for v in operands):
        return
    device = next((v.device for v in operands if isinstance(v, torch.Tensor)), None)
    if device is not None:
        check_dtypes(call.op, call.op._opname, call.args, dict(call.kwargs), device)


# Backward nodes of whole-tensor maxima and the like, where several elements may tie.
_SPREADING = ("MaxBackward1", "MinBackward1", "MedianBackward0", "NanmedianBackward0")


def _as_plain_tensor_formula(node: GradNode | None, call: AtenCall) -> AtenCall:
    """Return the call that the formula makes for plain tensors. On the CPU eager fills the gradient
    in where the maximum is. For tensor subclasses the formula multiplies by a mask, which turns an
    infinite gradient into NaN at the zeros.
    """
    if call.op is not aten.mul.Tensor or node is None or node.name() not in _SPREADING:
        return call
    mask, spread = call.args
    if mask.dtype is not torch.bool or mask.device.type != "cpu":
        return call
    return AtenCall(aten.where.self, (mask, spread, torch.zeros((), dtype=spread.dtype)))


Handler = Callable[[Functionalizer, AtenCall], object]


def _plain(mode: Functionalizer, call: AtenCall) -> object:
    return mode.wrap(mode.emit(call))


def _lift(mode: Functionalizer, call: AtenCall) -> object:
    """Record a tensor literal, which is new memory on each call."""
    return mode.fresh(mode.value(call.args[0]).one(aten.clone.default))


def _mutate(mode: Functionalizer, call: AtenCall) -> object:
    """Record an operation that writes to its first argument and returns it."""
    target = mode.traced(call.args[0])
    args = (target, *(_on_device_of(mode, target, arg) for arg in call.args[1:]))
    call = replace(call, args=args)
    if (maker := MUTATORS.get(call.op)) is not None:  # copy_, fill_: the old value is not read
        read = mode.current(call)
        new = maker(mode.recorder, *read.args, **read.kwargs)
    else:
        new = mode.emit(replace(call, op=functional_overload(call.op)))
    target.write(new)
    return target


def _on_device_of(mode: Functionalizer, target: Traced, value: object) -> object:
    """Return a 0-dim CPU operand as a tensor on the device of the target. torch wraps the number of
    `x[i] = 5` in a CPU tensor; a copy between devices cannot be recorded in a CUDA graph.
    """
    if not isinstance(value, torch.Tensor) or isinstance(value, Traced):
        return value
    if value.dim() or value.device == target.device:
        return value
    return mode.recorder.full((), value.item(), value.dtype, target.device)


def _mutate_list(mode: Functionalizer, call: AtenCall) -> object:
    """Record _foreach_add_ and the like as one functional operation per list element."""
    _refuse_sharing(mode, call)
    values = mode.emit(replace(call, op=functional_overload(call.op)))
    for target, new in zip(call.args[0], values, strict=True):
        mode.traced(target).write(new)
    return None


def _refuse_sharing(mode: Functionalizer, call: AtenCall) -> None:
    """Refuse lists where one element's write is read by another: they are processed in turn."""
    targets, *operands = call.args
    written = {id(mode.traced(target).cell): n for n, target in enumerate(targets)}
    if len(written) < len(targets):
        raise CompileFailed(f"{call.op} writes to the same memory more than once")
    for operand in operands:
        many = enumerate(operand) if isinstance(operand, (list, tuple)) else ((-1, operand),)
        for index, value in many:
            if isinstance(value, Traced) and written.get(id(value.cell), index) != index:
                raise CompileFailed(f"{call.op} reads what it has written")


def _mutate_out(mode: Functionalizer, call: AtenCall) -> object:
    """Record torch.maximum(a, b, out=c): c gets the result, cast to its dtype."""
    target = mode.traced(call.kwargs["out"])
    options = {name: value for name, value in call.kwargs.items() if name != "out"}
    new = mode.emit(AtenCall(overload_without(call.op, "out"), call.args, options))
    if new.shape != tuple(target.shape):
        raise CompileFailed(f"{call.op} resizes its result")
    target.write(new)
    return target


def _mutate_named(mode: Functionalizer, call: AtenCall) -> object:
    """Record an operator that writes to the arguments its schema names, at any position."""
    form = functional_form(call.op)
    slots = form.written(call)
    targets = [mode.traced(tensor) for tensor in tensors_in(slots)]
    read = [mode.traced(t) for t in tensors_in((call.args, dict(call.kwargs)))]
    for target in targets:
        if sum(tensor.cell is target.cell for tensor in read) > 1:
            raise CompileFailed(f"{call.op} writes to an argument that shares memory with another")
    values = mode.emit(replace(call, op=form.op))
    new = iter(mode.wrap(values[: len(values) - len(targets)]))
    # Without such a kernel eager does not increment autograd's version counter.
    counted = is_foreign(call.op) or _has_kernel(call.op, "ADInplaceOrView")
    for target, value in zip(targets, values[len(values) - len(targets) :], strict=True):
        if value.shape != tuple(target.shape):
            raise CompileFailed(f"{call.op} resizes what it writes to")
        target.write(value, counted)
    results = [next(new) if slot is None else slots[slot] for slot in form.returns]
    return results[0] if len(results) == 1 else (tuple(results) or None)


def _launch(mode: Functionalizer, call: AtenCall) -> object:
    record_launch(call, mode.traced, mode.read, mode.recorder)
    return None


def _composite(mode: Functionalizer, call: AtenCall) -> object:
    """Decompose a C++ composite that another operation's kernel calls below autograd."""
    with BelowAutograd(), AutocastOff(), mode:
        return call.op.decompose(*call.args, **call.kwargs)


def _decompose(row: RegisteredDecomposition, mode: Functionalizer, call: AtenCall) -> object:
    """Record the operations of a registered decomposition, or the operator if that fails."""
    read, cells = mode.current(call), [mode.traced(t).cell for t in tensors_in(call.operands)]
    versions = [cell.version for cell in cells]
    mode.decomposed.append(call.op)
    try:
        with BelowAutograd(), AutocastOff(), mode:
            made = row.run(*call.args, **call.kwargs)
        # In memory of their own, with the strides of the operator.
        return mode.wrap(mode.recorder.fitted(read.op, read.args, read.kwargs, mode.read(made)))
    except NotImplementedError:
        return _handler(call.op)(mode, call)
    except Exception as error:  # the user's code may raise anything
        failed = ExtensionFailed("decomposition", row.name, row.run, error)
        where = mode.recorder.lines[-1] if mode.recorder.lines else None
        warn(f"{failed}\n  the call runs by the operator's own kernel", where=where)
        return _handler(call.op)(mode, call)
    finally:
        mode.decomposed.pop()
        if versions != [cell.version for cell in cells]:
            why = "writes to an argument"
            raise ExtensionFailed("decomposition", row.name, row.run, why)


def _primitive(mode: Functionalizer, call: AtenCall) -> object:
    """Replace a view of torch.ops.prims by the ATen views it stands for."""
    with BelowAutograd(), AutocastOff(), mode:
        return call.op.impl_aten(*call.args, **call.kwargs)  # type: ignore[attr-defined]


def _conjugate(mode: Functionalizer, call: AtenCall) -> object:
    """Record a view in the forward (eager is lazy) and a value in the backward, where only autograd
    formulas read it.
    """
    if not mode.in_backward:
        source = mode.traced(call.args[0])
        origin = AliasCall(call.op, source), 0
        path = (*source.path, CONJUGATE)
        layout = source.memory_layout()
        layout = source.sym.meta if layout is None else layout
        value = CONJUGATE.apply(source.sym)
        return Traced.make(value, source.cell, path, False, layout, origin, source.counter)
    # A complex number, of `x * 1j`: as a tensor its dtype would count in promotions.
    if isinstance(call.args[0], complex):
        return mode.number(call.args[0].conjugate())
    return mode.wrap(mode.emit(replace(call, op=aten._conj_physical.default)))


def _norm_with_stats(mode: Functionalizer, call: AtenCall) -> object:
    """Record batch norm, which writes arguments 3 and 4 although its schema hides it."""
    *results, mean, var = mode.emit(call)
    for target, new in ((call.args[3], mean), (call.args[4], var)):
        if new is not None and target is not None:
            # Eager does not increment the version counter either: the schema declares no write.
            mode.traced(target).write(new, counted=False)
    return mode.wrap(results)


def _same_size(mode: Functionalizer, call: AtenCall) -> object:
    """Compare the sizes of a tensor and its tangent for forward-mode differentiation."""
    return call.args[0].shape == call.args[1].shape


def _same_storage(mode: Functionalizer, call: AtenCall) -> object:
    """Compare the storage sizes of a tensor and its tangent for forward-mode differentiation."""
    first, second = (mode.traced(arg).cell.value.meta for arg in call.args)
    sizes = (meta.untyped_storage().nbytes() // meta.itemsize for meta in (first, second))
    return next(sizes) == next(sizes)


def _equal(mode: Functionalizer, call: AtenCall) -> object:
    """Answer torch 2.11's quantile, which asks if a mask is all true that checked.py has asserted.
    (Later versions do not ask tensors without data.)
    """
    ones = mode.traced(call.args[1]).sym.node
    if ones.target is not aten.full.default or ones.args[1] != 1:
        raise CompileFailed("torch.equal on tensors of the graph")
    return True


def _sizes(mode: Functionalizer, call: AtenCall) -> list[int]:
    """Answer C++ that reads sizes as ints: sizes that vary have to be constants of the graph."""
    return [int(size) for size in call.args[0].shape]


_SPECIAL: Mapping[OpOverload, Handler] = {
    aten.size.default: _sizes,
    aten.equal.default: _equal,
    **VIEW_CALLS,
    aten.is_same_size.default: _same_size,
    aten._has_same_storage_numel.default: _same_storage,
    aten._conj.default: _conjugate,
    # Views too, which torch takes apart above autograd alone; a wrapper calls them below it.
    **dict.fromkeys((aten.chunk.default, *overloads_of(aten.to)), _composite),
    aten.lift_fresh.default: _lift,
    aten.lift_fresh_copy.default: _lift,
    **dict.fromkeys((*RECURRENT.values(), *FLEX_OPERATORS), _plain),
    aten.native_batch_norm.default: _norm_with_stats,
    aten._native_batch_norm_legit.default: _norm_with_stats,
    aten.cudnn_batch_norm.default: _norm_with_stats,
    **dict.fromkeys(
        (READS_NUMBER, aten._neg_view.default, aten.set_.source_Tensor, aten.resize_.default),
        refuse,
    ),
}


@lru_cache(maxsize=4096)
def _handler(func: OpOverload) -> Handler:
    if (special := _SPECIAL.get(func)) is not None:
        return special
    if is_foreign(func):
        return _foreign_handler(func)
    schema = func._schema
    if torch.Tag.inplace_view in func.tags:  # except for the in-place views of view_calls.py
        return refuse
    if schema.is_mutable:
        return _handler_of_mutation(schema)
    info = schema.returns[0].alias_info if schema.returns else None
    # A wrapper calls composites as they are. By its schema the result of one may be a copy too:
    # `contiguous` of a transposed square was taken for the square itself, in `d @ d.t()`.
    is_whole = func.namespace == "prims" or not _is_composite(func)
    if info is not None and is_whole and not is_like_another(func):
        return _primitive if func.namespace == "prims" else view
    if func in TABLE:  # jitmagic decomposes it, composite or not
        return _plain
    return _composite if _is_composite(func) else _plain


def _is_composite(func: OpOverload) -> bool:
    return _has_kernel(func, "CompositeImplicitAutograd")


def _has_kernel(func: OpOverload, key: str) -> bool:
    return bool(has_kernel(func.name(), key))


def _foreign_handler(func: OpOverload) -> Handler:
    if launch_of(func) is not None:
        return _launch
    if is_collective(func):
        return record_collective
    if _is_composite(func):
        return _composite
    if func._schema.is_mutable:
        return _mutate_named
    shares = any(returned.alias_info is not None for returned in func._schema.returns)
    return refuse if shares else _plain


def _handler_of_mutation(schema: torch.FunctionSchema) -> Handler:
    written = [a for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    if len(written) == 1 and written[0].name == "out" and written[0].kwarg_only:
        return refuse if isinstance(written[0].type, torch.ListType) else _mutate_out
    if len(written) != 1 or written[0].name != schema.arguments[0].name:
        return _mutate_named
    return _mutate_list if isinstance(written[0].type, torch.ListType) else _mutate
