"""Splits the outputs of a traced graph into results and views that are replayed after it.

In: the traced inputs and outputs. Out: `Outputs`, with the tensors that the graph returns. For each
output that shares memory with an input or another output (output aliasing), it lists the program's
view operations that produce it. They are replayed on the real tensors, in their original grad modes
and with the same version counters, so that autograd sees what it sees in eager. Raises
CompileFailed for views that cannot be replayed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch.fx import Node

from ..compat.autograd import CreationMeta, creation_meta
from ..compat.modes import without_innermost_mode
from ..errors import CompileFailed, OperationFailed
from ..graph.symbolic.sym_node import as_dimension, as_dimensions, sizes_of
from ..graph.target_names import target_name
from ..lazy_dataclass import dataclass
from ..spec import TensorSpec
from .nodes import alias_root
from .recording.origins import origin_of
from .recording.sym import Sym
from .recording.traced import AliasCall, Traced
from .recording.views import UNSAFE_SPLITS
from .result import AliasStep, FromInput, MakeLeaf, Output, Result, VersionBump, ViewOf, ViewReplay

__all__ = ["Outputs", "without_history", "without_shared_memory"]

aten = torch.ops.aten
_Meta = CreationMeta
_creation_meta = creation_meta


@dataclass(frozen=True, slots=True)
class Outputs:
    """`results` are the tensors the graph returns; `kinds` describes each output of the program."""

    results: list[Traced]
    kinds: tuple[Output, ...]
    aliasing: tuple[AliasStep, ...]

    @classmethod
    def of(cls, inputs: Sequence[Traced], values: Sequence[Traced]) -> Outputs:
        bases = _bases(inputs, values)
        owned = (base for base in bases if base.cell.input is None)
        results = list({id(base): base for base in owned}.values())
        # Reading requires_grad regenerates the history of a view whose base was written.
        for result in results:
            if result.requires_grad and result.is_leaf and not _is_leaf(result):
                raise CompileFailed("a result is an unexpected leaf of autograd")
        replay = _Replay(inputs, results)
        pairs = list(zip(values, bases, strict=True))
        replay.reach([value for value, base in pairs if value is not base])
        kinds = [_kind(value, base, results, replay) for value, base in pairs]
        wanted = {id(base) for value, base in pairs if value.requires_grad and not _is_leaf(base)}
        given = [one if id(one) in wanted else without_history(one) for one in results]
        return cls(given, tuple(kinds), replay.steps())


def _is_leaf(tensor: Traced) -> bool:
    """Return whether the program made the tensor a leaf that requires grad, without history so
    far.
    """
    return tensor.custom is not None and tensor.requires_grad and tensor.is_leaf


def without_history(result: Traced) -> Traced:
    """Detach a result without use for its history: its memory is returned only through views
    without history, or the graph has run its backward and freed it (a loss that is logged).
    """
    if not result.requires_grad:
        return result
    detached: Traced = result.detach()  # type: ignore[assignment]
    return detached


def without_shared_memory(values: list[Sym]) -> list[Sym]:
    """Copy results that share memory with inputs, constants or each other."""
    taken: set[Node] = set()
    owned = []
    for sym in values:
        root = alias_root(sym.node)
        shared = root.op in ("placeholder", "get_attr") or root in taken
        own = sym.recorder.copied(sym) if shared else sym
        taken.add(alias_root(own.node))
        owned.append(own)
    return owned


def _bases(inputs: Sequence[Traced], values: Sequence[Traced]) -> list[Traced]:
    """Return, for each value, the input or result that it is or shares memory with."""
    seen: dict[int, Traced] = {}
    shared = {
        id(value.cell)
        for value in values
        if seen.setdefault(id(value.cell), value) is not value or _must_replay(value)
    }
    bases = []
    for value in values:
        cell = value.cell
        owner = cell.base if cell.input is None else inputs[cell.input]
        assert owner is not None
        bases.append(owner if cell.input is not None or id(cell) in shared else value)
    return bases


def _must_replay(value: Traced) -> bool:
    """Return whether the view must be replayed: eager refuses writes to it, it has the conjugate
    bit, or its strides differ from those of its value. Any other view of a temporary can be
    returned as a plain tensor, which saves the replay at each call.
    """
    with without_innermost_mode():  # reading the value here must not record a call
        differs_in_layout = value.path and value.memory_layout() is not None
    if value.is_conj() or differs_in_layout:
        return True
    if not value._is_view():
        return False
    meta = _creation_meta(value)
    if meta == _Meta.MULTI_OUTPUT_NODE:
        return True
    # The view of a tensor without history got its history from the function that made it.
    base = value._base
    has_history = value.requires_grad and (base is None or base.requires_grad)
    return has_history and meta != _Meta.DEFAULT and not _is_leaf(value)


def _kind(value: Traced, base: Traced, results: Sequence[Traced], replay: _Replay) -> Output:
    number = base.cell.input
    if value is not base:
        by_function = value._is_view() and _creation_meta(value) == _Meta.IN_CUSTOM_FUNCTION
        follows_base = value._base is base and base.requires_grad and not by_function
        if value.requires_grad and not follows_base and not _has_own_history(value, base):
            raise _history_conflict(value)
        known = number is None and value._base is base
        return ViewOf(replay.slot(value), _spec(value), _index(results, base) if known else None)
    if number is not None:
        return FromInput(number)
    return Result(_index(results, value), value.requires_grad and not _is_leaf(value))


def _has_own_history(value: Traced, base: Traced) -> bool:
    return _is_leaf(value) or _is_split(value, base)


def _history_conflict(value: Traced) -> CompileFailed:
    why = "outputs share memory but not their autograd history"
    node = origin_of(value.grad_fn)
    return CompileFailed(why) if node is None else OperationFailed(_name(node), why, node)


def _name(node: Node) -> str:
    return target_name(node.target)  # type: ignore[arg-type]


def _is_split(value: Traced, base: Traced) -> bool:
    """Return whether the value is a part that unsafe_split returned, with no other history. It
    shares memory with the base, but autograd does not treat it as a view.
    """
    if value.origin is None or value.origin[0].op not in UNSAFE_SPLITS:
        return False
    call, function = value.origin[0], value.grad_fn
    node = origin_of(function)
    if node is not None and call.version != call.source._version:
        # Eager's gradient ignores writes to the split tensor; replaying the split would include
        # them.
        why = "the tensor it splits is written to, which autograd does not see"
        raise OperationFailed(_name(node), why, node)
    own = function is not None and function.name().startswith("UnsafeSplit")
    return own and (call.source is base or call.source._base is base)


def _detaches(call: AliasCall) -> bool:
    """Return whether the results of the call have no history, whatever its input has."""
    return call.op is None or call.op is aten.detach.default


def _index(results: Sequence[Traced], value: Traced) -> int:
    return next(n for n, result in enumerate(results) if result is value)


def _spec(value: Traced) -> TensorSpec:
    return TensorSpec(
        as_dimensions(value.shape),
        as_dimensions(value.stride()),
        value.dtype,
        value.device,
        value.requires_grad,
        is_leaf=not value.requires_grad,
        storage_offset=as_dimension(value.storage_offset()),
    )


class _Replay:
    """The steps on the real tensors that produce the outputs, in program order."""

    def __init__(self, inputs: Sequence[Traced], results: Sequence[Traced]) -> None:
        self._slots = {id(tensor): n for n, tensor in enumerate((*inputs, *results))}
        # For each slot of a tensor with its own version counter: its value after the steps so far.
        self._counters = {n: (tensor, 0) for n, tensor in enumerate((*inputs, *results))}
        self._replayed: dict[tuple[int, int], int] = {}  # number of the call, index -> slot
        self._free = len(self._slots)
        self._steps: list[AliasStep] = []
        self._leaves: set[int] = set()  # slots
        for result in results:
            self._mark_leaf(result)

    def reach(self, values: Sequence[Traced]) -> None:
        """Add replay steps for the views between the inputs or results and these values."""
        chains = [step for value in values for step in self._chain(value)]
        for _, call in sorted({call.number: call for _, call in chains}.items()):
            self._replay(call)
            for value, _ in chains:
                if value.origin is not None and value.origin[0] is call:
                    self._mark_leaf(value)
        for value in values:
            self._counter(value)

    def slot(self, tensor: Traced) -> int:
        if id(tensor) in self._slots:
            return self._slots[id(tensor)]
        assert tensor.origin is not None
        call, index = tensor.origin
        return self._replayed[call.number, index]

    def steps(self) -> tuple[AliasStep, ...]:
        """Return all steps, ending with version counters at their final values."""
        for slot, (tensor, _) in self._counters.items():
            self._bump(slot, tensor._version)
        return tuple(self._steps)

    def _mark_leaf(self, tensor: Traced) -> None:
        """Add a step that makes the tensor a leaf, before views of it that have history."""
        slot = self.slot(tensor)
        if _is_leaf(tensor) and slot not in self._leaves:
            self._leaves.add(slot)
            self._steps.append(MakeLeaf(slot))

    def _chain(self, value: Traced) -> Iterator[tuple[Traced, AliasCall]]:
        """Yield the view calls from a value back to an input or result, each with its result."""
        while id(value) not in self._slots:
            if value.custom is not None and not _is_leaf(value):
                why = "its result shares memory with an input or another result"
                raise OperationFailed(_name(value.custom), why, value.custom)
            if value.origin is None or value.label:
                raise CompileFailed("outputs share memory in an unsupported way")
            call = value.origin[0]
            # squeeze_ and the like changed the sizes of the source after the view was taken.
            if call.label != call.source.label:
                raise CompileFailed("an output is a view of a tensor whose shape changes in place")
            # Eager's view from before requires_grad_() has no history, a replayed one would have.
            leaf = call.source.custom if _is_leaf(call.source) else None
            if leaf is not None and call.grad and value.is_leaf and not _detaches(call):
                why = "it has views from before it was a leaf"
                raise OperationFailed(_name(leaf), why, leaf)
            yield value, call
            value = call.source

    def _replay(self, call: AliasCall) -> None:
        offset = call.op is aten.as_strided.default and call.args[2:] not in ((), (None,))
        if offset and call.source.cell.input is None:  # the kernel may choose any layout
            raise CompileFailed("an output shares memory through as_strided with an offset")
        self._bump(self._counter(call.source), call.version)
        source = self.slot(call.source)
        args = sizes_of(call.args)
        self._steps.append(ViewReplay(call.op, source, args, call.grad, call.outputs))
        for index in range(call.outputs):
            self._replayed[call.number, index] = self._free
            self._free += 1

    def _counter(self, tensor: Traced) -> int:
        """Return the slot of the tensor whose version counter this one shares."""
        while id(tensor) not in self._slots:
            assert tensor.origin is not None
            op = tensor.origin[0].op
            if op is None or op in UNSAFE_SPLITS:  # `.data` and split parts have their own counters
                break
            tensor = tensor.origin[0].source
        slot = self.slot(tensor)
        self._counters.setdefault(slot, (tensor, 0))
        return slot

    def _bump(self, slot: int, version: int) -> None:
        tensor, reached = self._counters[slot]
        if version > reached:
            self._steps.append(VersionBump(slot, version - reached))
            self._counters[slot] = tensor, version
