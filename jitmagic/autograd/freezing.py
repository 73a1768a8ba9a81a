"""Splits an inference graph into the part that depends on frozen weights alone and the rest.

In: an ATen forward graph and the positions of the inputs that are module weights. Out: `Frozen`,
two graphs: `folded` computes values from the weights; `rest` takes the inputs, then those values. A
scale and shift per channel after a convolution (a batch norm in eval mode) is first folded into the
convolution's weight and bias, as torch.nn.utils.fusion does. Results then differ from eager's by
rounding. Weights that the graph writes to are not frozen. Weights of 8-bit numbers stay as they
are: the products that dequantise them read less memory (schedule/dequantised_products.py).
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from math import prod

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import Argument

from ..graph.lazy_module import copy_node
from ..graph.node_meta import is_effectful
from ..graph.operators.raising import may_raise_on_data
from ..graph.reach import ancestors
from ..lazy_dataclass import dataclass, replace
from ..spec import TensorSpec
from ..torch_types import OpOverload
from .nodes import alias_root, copy_graph, is_view, module_of

__all__ = ["Frozen", "frozen_parts"]

aten = torch.ops.aten
_WEIGHT, _BIAS, _TRANSPOSED = 1, 2, 6  # arguments of aten.convolution


@dataclass(frozen=True, slots=True)
class Frozen:
    """The two graphs. `weights` are the positions of the inputs that `folded` takes, `inputs` those
    that `rest` takes before the folded values.
    """

    folded: GraphModule
    rest: GraphModule
    weights: tuple[int, ...]
    inputs: tuple[int, ...]


def frozen_parts(
    forward: GraphModule, places: Container[int], dequantise: bool = False
) -> Frozen | None:
    """Return the two graphs, or None if only views depend on weights alone. `dequantise`: quantised
    weights too are computed once, as floats.
    """
    known: dict[Node, Node] = {}
    graph = copy_graph(forward.graph, known)
    for old, new in known.items():
        new.meta = dict(old.meta)
    holders = list(graph.find_nodes(op="placeholder"))
    written = {node.args[0] for node in graph.nodes if node.target is aten.copy_.default}
    weights = [n for n, node in enumerate(holders) if n in places and node not in written]
    # A result that is computed from weights alone must be new memory at each call.
    frozen = _frozen_nodes(graph, {holders[n] for n in weights}, dequantise) - _results(graph)
    for node in list(graph.nodes):
        _fold_scale(graph, node, frozen)
    # Folding a scale leaves its addcmul without users; calls that may raise stay, as eager runs
    # them.
    graph.eliminate_dead_code(lambda node: is_effectful(node) or may_raise_on_data(node))
    kept = [node for node in graph.nodes if node in frozen and _is_read_by_rest(node, frozen)]
    if not kept:
        return None
    constants = dict(forward.named_buffers())
    # Weights that only scales read have lost their readers to the folded convolution.
    taken = [n for n in weights if holders[n].users]
    folded = _copied(graph, [holders[n] for n in taken], kept, {})
    rest = _copied(graph, [*holders, *kept], None, dict.fromkeys(kept))
    left = []
    for n, holder in enumerate(list(rest.find_nodes(op="placeholder"))):
        if n in weights and not holder.users:
            rest.erase_node(holder)
        elif n < len(holders):
            left.append(n)
    first, second = module_of(folded, constants, "Folded"), module_of(rest, constants, "Rest")
    return Frozen(first, second, weights=tuple(taken), inputs=tuple(left))


def _frozen_nodes(graph: Graph, weights: set[Node], dequantise: bool) -> set[Node]:
    """Return the weights and the pure calls of weights and constants, equal in every call."""
    frozen, constant = set(weights), set[Node]()
    for node in graph.nodes:
        if node.op == "get_attr" or (node.op == "call_function" and not node.all_input_nodes):
            if not (is_effectful(node) or torch.Tag.nondeterministic_seeded in _tags(node)):
                constant.add(node)
        elif node.op == "call_function" and not (is_effectful(node) or may_raise_on_data(node)):
            if torch.Tag.nondeterministic_seeded in _tags(node):
                continue
            inputs = set(node.all_input_nodes)
            if inputs <= constant:
                constant.add(node)
            elif inputs <= frozen | constant and (dequantise or not _dequantises(node)):
                frozen.add(node)
    return frozen


def _dequantises(node: Node) -> bool:
    """Return whether the call makes wider numbers of as many 8-bit numbers, or more."""
    spec = node.meta.get("spec")
    if not isinstance(spec, TensorSpec) or spec.dtype.itemsize == 1:
        return False
    read = [part.meta.get("spec") for part in node.all_input_nodes]
    return any(
        isinstance(part, TensorSpec)
        and part.dtype.itemsize == 1
        and part.dtype is not torch.bool
        and prod(part.shape) <= prod(spec.shape)
        for part in read
    )


def _results(graph: Graph) -> set[Node]:
    """Return the nodes whose memory the caller receives, and may write to."""
    found, waiting = set[Node](), list(graph.output_node().all_input_nodes)
    while waiting:
        node = waiting.pop()
        found.add(node)
        if is_view(node):
            waiting += node.all_input_nodes
    return found


def _tags(node: Node) -> Sequence[torch.Tag]:
    tags: Sequence[torch.Tag] = getattr(node.target, "tags", ())
    return tags


def _is_read_by_rest(node: Node, frozen: set[Node]) -> bool:
    """Return whether the node is a value that another call reads. Views stay with their readers."""
    if node.op == "placeholder" or _is_view_of_weight(node):
        return False
    return any(user not in frozen or _is_view_of_weight(user) for user in node.users)


def _is_view_of_weight(node: Node) -> bool:
    return alias_root(node).op == "placeholder"


# -- scales after convolutions --------------------------------------------------------------------


def _fold_scale(graph: Graph, node: Node, frozen: set[Node]) -> None:
    """Replace shift + convolution * scale by a convolution of the scaled weight."""
    if node.target is not aten.addcmul.default or node.kwargs.get("value", 1) != 1:
        return
    operands = [part for part in node.args if isinstance(part, Node)]
    if len(operands) != len(node.args):
        return
    shift, *factors = operands
    conv = next((f for f in factors if _is_foldable(f, frozen)), None)
    scale = next((f for f in factors if f is not conv), None)
    # A scale that varies over positions cannot move into the weight.
    if conv is None or scale is None:
        return
    if not all(_is_per_channel(part, conv, frozen) for part in (shift, scale)):
        return
    weight, bias = conv.args[_WEIGHT], conv.args[_BIAS]
    assert isinstance(weight, Node)
    channels = conv.meta["spec"].shape[1]
    # The scale multiplies whole rows of the weight, whose first dimension is the output channel.
    row = replace(shift.meta["spec"], shape=(channels,), stride=(1,), storage_offset=0)
    column = (channels, *(1,) * (len(weight.meta["spec"].shape) - 1))

    def call(op: OpOverload, args: tuple[Argument, ...], spec: TensorSpec) -> Node:
        made = graph.call_function(op, args)
        made.meta = {**conv.meta, "spec": replace(spec, requires_grad=False, storage_offset=0)}
        frozen.add(made)
        return made

    spread = replace(row, shape=column, stride=(1,) * len(column))
    with graph.inserting_before(node):
        scaled = call(aten.mul.Tensor, (weight, call(aten.view.default, (scale, column), spread)),
                      weight.meta["spec"])  # fmt: skip
        # (conv(x, w) + b) * s + t is conv(x, w * s) + (b * s + t).
        flat = call(aten.view.default, (shift, (channels,)), row)
        if bias is not None:
            per_channel = call(aten.view.default, (scale, (channels,)), row)
            flat = call(aten.addcmul.default, (flat, bias, per_channel), row)
        args = (conv.args[0], scaled, flat, *conv.args[_BIAS + 1 :])
        made = graph.call_function(aten.convolution.default, args)
        made.meta = dict(conv.meta)
    node.replace_all_uses_with(made)


def _is_foldable(node: object, frozen: set[Node]) -> bool:
    """Return whether `node` is a convolution of a frozen weight with a single reader. A transposed
    one is refused: its channels are in another dimension of the weight.
    """
    if not isinstance(node, Node) or node.target is not aten.convolution.default:
        return False
    weights = [part for part in node.args[_WEIGHT : _BIAS + 1] if part is not None]
    frozen_weights = all(part in frozen for part in weights)
    # With another reader the unscaled result is needed too: folding would run two convolutions.
    return len(node.users) == 1 and frozen_weights and not node.args[_TRANSPOSED]


def _is_per_channel(part: Node, conv: Node, frozen: set[Node]) -> bool:
    if part not in frozen:
        return False
    spec, whole = part.meta["spec"], conv.meta["spec"]
    wanted = (1, whole.shape[1], *(1,) * (len(whole.shape) - 2))
    # Equal dtypes: under autocast a float32 scale of a bfloat16 result promotes it.
    return spec.dtype is whole.dtype and tuple(spec.shape) == wanted


# -- graphs ---------------------------------------------------------------------------------------


def _copied(
    graph: Graph, inputs: Sequence[Node], outputs: Sequence[Node] | None, given: Mapping[Node, None]
) -> Graph:
    """Copy the part that computes `outputs` (None: all outputs) from `inputs` into a new graph."""
    made, known = Graph(), dict[Node, Node]()
    for node in inputs:
        known[node] = made.placeholder(node.name)
        known[node].meta = dict(node.meta)
    wanted = ancestors(outputs) if outputs is not None else None
    for node in graph.nodes:
        if node in known or node in given or node.op in ("placeholder", "output"):
            continue
        if wanted is None or node in wanted:
            known[node] = copy_node(made, node, known.__getitem__)
    results = tuple(outputs) if outputs is not None else graph.output_node().args[0]
    made.output(torch.fx.map_arg(results, known.__getitem__))
    if outputs is None:
        made.eliminate_dead_code(lambda node: is_effectful(node) or may_raise_on_data(node))
    return made
