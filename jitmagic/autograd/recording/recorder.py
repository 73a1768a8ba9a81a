"""Recorder: builds the ATen graph while running the same operations on meta tensors.

In: ATen overloads with `Sym` handles for tensors. Out: a torch.fx.Graph whose tensor nodes carry
`meta["spec"]` (real device, the strides of the meta kernel) and `meta["lines"]`. Invariant: every
recorded node is functional: it reads its arguments and makes a new value. Equal calls of
deterministic operations are recorded once; the earlier node is returned again.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import torch
from torch.fx import Graph, Node

from ...budget import check
from ...devices import row_of
from ...errors import CompileFailed, UserLine
from ...graph.devices import kernels_on
from ...graph.fresh_meta import Metas, fresh_meta, sharing
from ...graph.lazy_module import add_node, copy_node
from ...graph.nested import frozen, map_leaves
from ...graph.operators.device_layouts import laid_out_on
from ...graph.operators.foreign import has_side_effects
from ...graph.operators.meta_functions import infer_without_rule
from ...graph.operators.shapes import infer
from ...graph.operators.tensor_iterator import has_insignificant_strides
from ...graph.symbolic.sym_node import as_dimension, as_dimensions
from ...graph.targets.recomputed import Recomputed
from ...operators.operation import takes_device
from ...spec import TensorSpec, has_loose_strides
from ...symbols.size import Size, expr_of
from ...torch_types import Kwargs, OpOverload, Values
from ..nodes import alias_root, is_view_op, runs_once
from .sym import Sym, to_meta

__all__ = [
    "Decomposition",
    "Recorder",
    "Result",
    "Sym",
    "memory_order",
    "spec_from_meta",
]

aten = torch.ops.aten
_EMPTY = ("empty", "new_empty")
META = torch.device("meta")
CPU = torch.device("cpu")

# Operations whose arguments may be on different devices.
CROSS_DEVICE = frozenset({aten._to_copy.default, aten.copy.default})


# The results of an operation; None from a decomposition: it declines, and the operation is recorded
# as it is.
Result = Sym | Sequence[Sym | None] | None
# (recorder, *args, **kwargs of the overload), tensors as Sym
Decomposition = Callable[..., Result]


def spec_from_meta(meta: torch.Tensor, device: torch.device) -> TensorSpec:
    """Return the spec of a graph value: the meta tensor's, on the real device."""
    return TensorSpec(
        as_dimensions(meta.shape),
        as_dimensions(meta.stride()),
        meta.dtype,
        device,
        storage_offset=as_dimension(meta.storage_offset()),
    )


def _is_repeated(node: Node, region: object) -> bool:
    """Return whether a second run of the region computes the node; draws do not run twice."""
    root = alias_root(node)
    if root.meta.get("checkpoint") is not region or "traced_float" in root.meta:
        return False
    made = root.all_input_nodes[0] if root.target is operator.getitem else root
    return bool(made.all_input_nodes) and not runs_once(made)


def _entered(node: Node) -> Node:
    """Mark a value that enters a checkpointed region: the partition saves it for the second run."""
    alias_root(node).meta["entered"] = True
    return node


def _layout(sym: Sym) -> Hashable:
    """Return a key for the memory a view shows and the order of its elements."""
    return _layout_key(alias_root(sym.node), sym.shape, sym.strides, sym.meta)


def _layout_key(
    root: Node, shape: Sequence[object], stride: Sequence[object], meta: torch.Tensor
) -> Hashable:
    numbers = (*shape, *stride, as_dimension(meta.storage_offset()))
    keys = tuple([n.expr if isinstance(n, Size) else n for n in numbers])  # as _described
    return "layout", root, len(shape), keys, meta.dtype


def _described(value: object) -> Hashable:
    """Return the key of a tensor or symbolic number, None for other values."""
    if isinstance(value, Sym):
        return value.node
    if isinstance(number := as_dimension(value), Size):
        return expr_of(number)  # compared by identity, which adds no guard
    return None if number is value else number  # type: ignore[no-any-return]


class Recorder:
    """The graph under construction. New nodes are attributed to `lines`."""

    def __init__(self, table: Mapping[OpOverload, Decomposition], is_sized: bool = False) -> None:
        self.graph = Graph()
        self.is_sized = is_sized  # whether sizes may be symbolic (Size)
        self.table = table
        self.lines: tuple[UserLine, ...] = ()
        self.tangents: tuple[int, ...] = ()  # of new nodes, if data flow hides them (custom.py)
        self.region: Recomputed | None = None  # the checkpointed region of new nodes
        self.constants: dict[str, torch.Tensor] = {}
        self._known: dict[Hashable, Any] = {}
        self._metas: Metas = {}
        self._last_placeholder: Node | None = None
        # For each region: its nodes and the values that enter it -> their recomputed counterparts.
        self._recomputed: dict[object, dict[Node, Node]] = {}

    def placeholder(self, name: str, spec: TensorSpec) -> Sym:
        """Add a graph input after the existing ones."""
        first = self._last_placeholder or self.graph._root
        with self.graph.inserting_after(first):
            node = self.graph.placeholder(name)
        self._last_placeholder = node
        node.meta["spec"] = spec
        node.meta["lines"] = ()
        return self._sym_of(node)

    def constant(self, tensor: torch.Tensor) -> Sym:
        """Store a real tensor met while tracing as an attribute of the module."""
        name = f"_constant{len(self.constants)}"
        self.constants[name] = tensor.detach()
        node = self.graph.create_node("get_attr", name)
        meta = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=META)
        self._label(node, meta, tensor.device)
        return Sym(self, node, meta, tensor.device)

    def emit(self, op: OpOverload, *args: object, **kwargs: object) -> Any:
        """Record `op`, decomposed if the table has a rule for it."""
        rule = self.table.get(op)
        if rule is not None:
            results = rule(self, *args, **kwargs)
            if results is not None:
                return (
                    results
                    if _all_row_major(args)
                    else self._with_op_strides(op, args, kwargs, results)
                )
        return self.call(op, *args, **kwargs)

    def emit_one(self, op: OpOverload, *args: object, **kwargs: object) -> Sym:
        """Do `emit` for an operation with a single tensor result."""
        result: Sym = self.emit(op, *args, **kwargs)
        return result

    def call(self, op: OpOverload, *args: object, **kwargs: object) -> Any:
        """Record `op` without decomposing it. Returns a Sym or a list of Syms; None stands for a
        missing tensor, and numbers remain numbers.
        """
        check()
        # Random numbers, new memory and effects differ for each call and are never shared.
        own = has_side_effects(op) or op._opname.startswith(_EMPTY)
        # Calls of other tangents or regions are not shared: a partial backward may drop one of
        # them, and a checkpointed region recomputes its own.
        key: Hashable = None
        if not own:
            key = (op, self.tangents, self.region, frozen((args, dict(kwargs)), _described))
        if key is not None:
            try:
                known = self._known.get(key)
            except TypeError:  # an unhashable argument: no sharing
                key = known = None
            if known is not None:
                return known
        device = _device_of(op, args, kwargs)
        outcome = self._outcome(op, args, kwargs, device)
        results = self._known_view(op, args, outcome) or self._record(
            op, args, kwargs, outcome, device
        )
        if key is not None:
            self._known[key] = results
        return results

    def copied(self, sym: Sym) -> Sym:
        """Record a new copy on each call. A view of a computed value becomes the same view of a
        copy of its base, so that its strides are eager's.
        """
        node = alias_root(sym.node)
        root = sym if node.op in ("placeholder", "get_attr") else self._sym_of(node)
        views, view = [], sym.node
        while view is not root.node:
            views.append(view)
            view = view.args[0]  # type: ignore[assignment]
        op = aten.clone.default
        outcome = self._outcome(op, (root,), {}, root.device)
        copy: Sym = self._record(op, (root,), {}, outcome, root.device)
        for view in reversed(views):
            assert isinstance(view.target, OpOverload)
            copy = self.call(view.target, copy, *view.args[1:], **view.kwargs)
        return copy

    def recomputed(self, sym: Sym, region: object) -> Sym:
        """Return the value as the backward recomputes it in a second run of a checkpointed region.

        The second run starts from the values that enter the region and the random numbers drawn in
        it. A value that the region does not compute is returned unchanged.
        """
        known = self._recomputed.setdefault(region, {})
        stack = [sym.node]
        while stack:
            node = stack[-1]
            is_repeated = _is_repeated(node, region)
            inputs = node.all_input_nodes if is_repeated else []
            if missing := [part for part in inputs if part not in known]:
                stack += missing
                continue
            stack.pop()
            if node not in known:
                known[node] = self._repeated(node, known) if is_repeated else _entered(node)
        second = known[sym.node]
        return sym if second is sym.node else self._sym_of(second)

    @property
    def last(self) -> Node:
        """Return the last node of the graph, or its root."""
        return self.graph._root.prev

    def save_after(self, node: Node) -> None:
        """Let the nodes after this one be saved, and not be computed again by their region."""
        while (node := node.next) is not self.graph._root:
            node.meta.pop("checkpoint", None)

    def _repeated(self, node: Node, known: Mapping[Node, Node]) -> Node:
        made = copy_node(self.graph, node, known.__getitem__)
        made.meta = {**node.meta, "recomputed": True}
        made.meta.pop("checkpoint", None)
        return made

    def _sym_of(self, node: Node) -> Sym:
        spec: TensorSpec = node.meta["spec"]
        with sharing(self._metas):
            meta = fresh_meta(to_meta(spec.shape), spec.dtype, to_meta(spec.stride))
        return Sym(self, node, meta, spec.device)

    def _outcome(self, op: OpOverload, args: Values, kwargs: Kwargs, device: torch.device) -> Any:
        """Return the results of the operation on `device` as meta tensors."""
        metas = to_meta(args)
        meta_kwargs = {name: to_meta(value) for name, value in kwargs.items()}
        if "device" in kwargs or takes_device(op):
            meta_kwargs["device"] = META
        # A symbolic meta tensor takes torch 110 to 200 us to make, one of ints 1 to 4 us.
        with kernels_on(device):
            with sharing(self._metas):  # equal layouts share one meta: nodes identify memory
                outcome = infer(op, metas, meta_kwargs)
            if outcome is None:
                outcome = infer_without_rule(op, metas, meta_kwargs, infer, device)
        return laid_out_on(device, op, metas, outcome)

    def _known_view(self, op: OpOverload, args: Values, outcome: object) -> Sym | None:
        """Return a recorded view of the same memory in the same order, e.g. for t(t(x))."""
        if not is_view_op(op) or not isinstance(outcome, torch.Tensor):
            return None
        source = args[0]
        assert isinstance(source, Sym)
        self._known.setdefault(_layout(source), source)
        shape, stride = as_dimensions(outcome.shape), as_dimensions(outcome.stride())
        key = _layout_key(alias_root(source.node), shape, stride, outcome)
        known: Sym | None = self._known.get(key)
        return known

    def _record(
        self, op: OpOverload, args: Values, kwargs: Kwargs, outcome: object, device: torch.device
    ) -> Any:
        positional, named = map_leaves(args, _to_node), map_leaves(dict(kwargs), _to_node)
        node = add_node(self.graph, "call_function", op, positional, named, op._opname)
        if isinstance(outcome, torch.Tensor):
            self._label(node, outcome, device)
            result = Sym(self, node, outcome, device)
            if is_view_op(op):
                self._known[_layout(result)] = result
            return result
        if outcome is None and not op._schema.returns:  # it runs for the errors it may raise
            self._note(node)
            return None
        if not isinstance(outcome, (tuple, list)):
            raise CompileFailed(f"{op} gives a {type(outcome).__name__}, which a graph cannot hold")
        self._note(node)
        return [self._item(node, i, part, device) for i, part in enumerate(outcome)]

    def _item(self, node: Node, index: int, meta: object, device: torch.device) -> object:
        # Sizes and flags among the results (max_q of attention) depend on the arguments' shapes
        # alone, which are fixed in a graph: the meta kernel's values hold.
        if meta is None or isinstance(meta, (bool, int, torch.SymInt)):
            return meta
        if not isinstance(meta, torch.Tensor):
            raise CompileFailed(f"{node.target} gives a {type(meta).__name__} among its results")
        item = add_node(self.graph, "call_function", operator.getitem, (node, index), {})
        # Philox seeds and offsets of attention kernels are CPU tensors on every device.
        self._label(item, meta, device)
        return Sym(self, item, meta, device)

    def _label(self, node: Node, meta: torch.Tensor, device: torch.device) -> None:
        # Generated kernels read memory, where a lazy conjugation or negation does not show.
        if meta.is_conj() or meta.is_neg():
            raise CompileFailed(f"{node.target} makes a lazily conjugated or negated tensor")
        if meta.layout is not torch.strided:
            raise CompileFailed(f"{node.target} makes a {meta.layout} tensor")
        node.meta["spec"] = spec_from_meta(meta, device)
        self._note(node)

    def _note(self, node: Node) -> None:
        facts = {"tangents": self.tangents or None, "checkpoint": self.region}
        node.meta.update({k: v for k, v in facts.items() if v is not None}, lines=self.lines)

    def full(
        self, shape: tuple[int, ...], value: complex, dtype: torch.dtype, device: torch.device
    ) -> Sym:
        result: Sym = self.call(
            aten.full.default, list(shape), value, dtype=dtype, device=device, pin_memory=False
        )
        return result

    def arange(
        self,
        end: float,
        dtype: torch.dtype,
        device: torch.device,
        *,
        start: float = 0,
        step: float = 1,
    ) -> Sym:
        result: Sym = self.call(
            aten.arange.start_step,
            start,
            end,
            step,
            dtype=dtype,
            device=device,
            pin_memory=False,
        )
        return result

    def where(self, condition: Sym, then: Sym | float, other: Sym | float) -> Sym:
        """Record aten.where; scalars take the dtype of the tensor branch."""
        like = then if isinstance(then, Sym) else other
        if not isinstance(like, Sym):
            raise TypeError("one branch of where must be a tensor")
        branches = [
            part if isinstance(part, Sym) else self.full((), part, like.dtype, like.device)
            for part in (then, other)
        ]
        return condition.one(aten.where.self, *branches)

    def restride(self, sym: Sym, strides: tuple[int, ...]) -> Sym:
        """Return the same values laid out with the given strides (dense, no overlap)."""
        strides = as_dimensions(strides)
        if sym.numel and not _has_strides(sym, strides):
            order, inverse = memory_order(strides)
            rows = sym if order == sorted(order) else sym.permute(*order)
            dense = rows.one(aten.clone.default, memory_format=torch.contiguous_format)
            sym = dense if rows is sym else dense.permute(*inverse)
        if sym.strides == strides or self.is_sized or not has_loose_strides(sym.shape):
            return sym  # at other sizes a copy is laid out anew
        meta = fresh_meta(to_meta(sym.shape), sym.dtype, to_meta(strides))
        made: Sym = self._record(aten.clone.default, (sym,), {}, meta, sym.device)
        return made

    def fitted(self, op: OpOverload, args: Values, kwargs: Kwargs, results: Any) -> Any:
        """Return results of a user's function with the strides of the operation. Raises ValueError
        if they have other shapes or dtypes.
        """
        wanted = self._outcome(op, args, kwargs, _device_of(op, args, kwargs))
        many = isinstance(wanted, tuple | list)
        pairs = [*zip_longest(results, wanted)] if many else [(results, wanted)]
        for sym, meta in pairs:
            found = (sym.shape, sym.dtype) if isinstance(sym, Sym) else sym
            expected = None if meta is None else (as_dimensions(meta.shape), meta.dtype)
            if found != expected:
                raise ValueError(f"its result is {found}, the operator's {expected}")
        return self._restrided(results, wanted)

    def _with_op_strides(
        self, op: OpOverload, args: Values, kwargs: Kwargs, results: Sym | Sequence[Sym | None]
    ) -> Sym | list[Sym | None]:
        """Give decomposed results the strides that the operation itself returns."""
        wanted = self._outcome(op, args, kwargs, _device_of(op, args, kwargs))
        return self._restrided(results, wanted)

    def _restrided(
        self, results: Sym | Sequence[Sym | None], wanted: Any
    ) -> Sym | list[Sym | None]:
        if isinstance(results, Sym):
            return self._restrided_like(results, wanted)
        return [
            self._restrided_like(part, meta) if isinstance(part, Sym) else part
            for part, meta in zip(results, wanted, strict=False)
        ] + list(results[len(wanted) :])

    def _restrided_like(self, sym: Sym, wanted: torch.Tensor) -> Sym:
        if sym.shape != as_dimensions(wanted.shape):
            return sym
        return self.restride(sym, wanted.stride())


def _all_row_major(args: Iterable[object]) -> bool:
    return all(
        _all_row_major(a)
        if isinstance(a, (list, tuple))
        else not isinstance(a, Sym)
        or (a.meta.is_contiguous() and not has_insignificant_strides(a.meta))
        for a in args
    )


def _has_strides(sym: Sym, strides: tuple[int, ...]) -> bool:
    """Compare strides, ignoring dimensions of size 1."""
    sides = zip(sym.shape, sym.strides, strides, strict=True)
    return all((type(n) is int and n == 1) or a == b for n, a, b in sides)


def _to_node(value: object) -> Any:
    return value.node if isinstance(value, Sym) else as_dimension(value)


def memory_order(strides: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the dimensions from the widest stride to the narrowest, and the inverse
    permutation.
    """
    # Equal strides keep the order of the dimensions: dimensions of size 1 often share a stride.
    order = sorted(range(len(strides)), key=lambda d: (-strides[d], d))
    return order, [order.index(d) for d in range(len(order))]


def _device_of(op: OpOverload, args: Values, kwargs: Kwargs) -> torch.device:
    """Return the result's device; refuses the mixtures that eager refuses (0-dim CPU may join)."""
    named = kwargs.get("device")
    if isinstance(named, torch.device | str | int):
        asked = torch.device(named)
        return row_of(asked).indexed(asked)
    device: torch.device | None = None
    for sym in _syms(args, kwargs.values()):
        if sym.device == CPU and not sym.shape:
            continue
        if device is None:
            device = sym.device
        elif device != sym.device and op not in CROSS_DEVICE:
            raise CompileFailed(f"{op} mixes tensors on {device} and {sym.device}")
    return CPU if device is None else device


def _syms(*groups: Iterable[object]) -> Iterator[Sym]:
    for group in groups:
        for value in group:
            if isinstance(value, Sym):
                yield value
            elif isinstance(value, (list, tuple)):
                yield from _syms(value)
