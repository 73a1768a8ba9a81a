"""Traces a torch-level graph into one functional ATen graph of forward and backward.

In: a torch.fx.GraphModule over torch functions and tensor methods (placeholders = all tensors it
reads) and the TensorSpecs of its inputs. Out: a `Joint`. The graph runs once on data-less tensors
under real C++ autograd, and a dispatch mode below autograd records the ATen calls, decomposed and
functional. Then the autograd engine differentiates the results, and the same mode records the
backward. Placeholders of the joint graph are the inputs, then one tangent for each result that
requires grad. The output is (*results, *gradients); writes to inputs are trailing aten.copy_ nodes.
Raises CompileFailed for a program that this form cannot express.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.fx import GraphModule, Node

from ..compat.autograd import current_node, run_backward
from ..compat.modes import AutocastOff
from ..errors import CompileFailed, OperationFailed, SizesDiffer, UserLine
from ..graph.autocast_mode import OFF, preserving_autocast, read_autocast
from ..graph.dispatch_mode import by_python_dispatcher
from ..graph.gradients import gradients
from ..graph.node_meta import tensors_in
from ..graph.propagate import running_wrappers
from ..graph.symbolic.number_ranges import number_in
from ..graph.symbolic.sym_node import as_dimensions, as_torch
from ..graph.symbolic.symbolic_index import INDEXING, select_by_sizes
from ..graph.target_names import target_name
from ..graph.targets.regions import FunctionCall, HookCall
from ..graph.targets.transforms import is_transform
from ..graph.wrappers.wrapping import gradients_of_any_size, is_wrapper
from ..lazy_dataclass import dataclass, field, replace
from ..spec import TensorSpec, contiguous_strides
from ..torch_types import OpOverload
from .decompose import TABLE
from .functions_of_calls import trace_functions
from .nodes import alias_root, erase_dead, module_of, placeholders
from .numbers_read_at_run_time import Numbers, for_all_numbers
from .outputs import Outputs, without_history, without_shared_memory
from .recording.custom import check_gradients, check_unwritten, custom_nodes
from .recording.functionalize import Functionalizer
from .recording.origins import edges_of, mark_origin, origin_of, reach_of
from .recording.recorded_call import recorded_call
from .recording.recorder import Decomposition, Recorder, Sym
from .recording.traced import AliasCall, Traced, VersionCounter
from .recording.transformed import transformed
from .recording.views import may_overlap
from .result import EagerSaved, Joint
from .saved_tensor_hooks import SavedTensorHooks

__all__ = ["BACKWARD", "trace_joint"]

aten = torch.ops.aten
Env = dict[Node, Any]  # the value of each node of the torch-level graph
BACKWARD = object()  # in `by_python`: stands for autograd's backward formulas


def trace_joint(
    gm: GraphModule,
    inputs: Sequence[TensorSpec],
    *,
    grad_enabled: bool | None = None,
    is_sized: bool = False,
    by_python: Collection[object] = (),
    table: Mapping[OpOverload, Decomposition] = TABLE,
) -> Joint:
    """Trace `gm` over inputs like `inputs`; `grad_enabled` defaults to the caller's mode. With
    `is_sized` some sizes are Sizes; `by_python`: targets run under torch's Python dispatcher.
    """
    if grad_enabled is None:
        grad_enabled = torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
    recorder = partial(Recorder, table, is_sized)
    return for_all_numbers(gm, partial(_trace, gm, inputs, grad_enabled, recorder, by_python))


def _trace(
    gm: GraphModule,
    inputs: Sequence[TensorSpec],
    grad_enabled: bool,
    make_recorder: Callable[[], Recorder],
    by_python: Collection[object],
    numbers: Numbers | None,
) -> Joint:
    recorder = make_recorder()
    mode = Functionalizer(recorder)
    names = [node.name for node in placeholders(gm)]
    if len(names) != len(inputs):
        raise CompileFailed(f"the graph has {len(names)} inputs, {len(inputs)} specs were given")
    with _modes_of_call(grad_enabled):
        # Inside the block: without it, tensors made under inference mode could not be written to.
        traced = [
            mode.input(i, name, spec)
            for i, (name, spec) in enumerate(zip(names, inputs, strict=True))
        ]
        saved = SavedTensorHooks(mode, _written_since)
        with saved_tensors_hooks(saved.pack, saved.unpack):
            outputs = _run(gm, mode, traced, saved, by_python, numbers)
        _check_inputs(traced, inputs)
        with mode:  # autograd regenerates the history of a view of a written base on access
            finished = Outputs.of(traced, outputs)
        _check_leaves(gm, traced, outputs, finished.results)
        with by_python_dispatcher(BACKWARD in by_python):
            gradients = _differentiate(mode, traced, finished.results, saved)
    return _finish(recorder, traced, inputs, finished, gradients)


@contextmanager
def _modes_of_call(grad_enabled: bool) -> Iterator[None]:
    """Enter the modes of the real call; the caller's are restored whatever the graph does."""
    with ExitStack() as stack:
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.set_grad_enabled(grad_enabled))
        # One thread: the dispatch mode is thread-local, a CUDA backward would have its own thread.
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        stack.enter_context(preserving_autocast())
        stack.enter_context(running_wrappers())
        yield


# -- running the torch-level graph -----------------------------------------------------------------


def _run(
    gm: GraphModule,
    mode: Functionalizer,
    inputs: Sequence[Traced],
    saved: SavedTensorHooks,
    by_python: Collection[object],
    numbers: Numbers | None,
) -> list[Traced]:
    """Execute gm on traced tensors and return the flat list of its outputs."""
    env: Env = {
        node: mode.constant(_attribute(gm, node.target))
        for node in gm.graph.nodes
        if node.op == "get_attr"
    }
    supply = iter(inputs)
    with mode:
        for node in gm.graph.nodes:
            mode.recorder.lines = node.meta.get("lines", ())
            mode.recorder.region = node.meta.get("checkpoint")
            if node.op == "placeholder":
                env[node] = next(supply)
            elif node.op == "output":
                return [_output_value(part, env[part]) for part in node.args[0]]
            elif node.target is number_in and numbers is not None:
                env[node] = numbers.read(node, mode.read(env[node.args[0]]))  # type: ignore[index]
            elif node.op != "get_attr":
                with by_python_dispatcher(node.target in by_python):
                    env[node] = _call(node, env, mode, saved)
    raise CompileFailed("the graph has no output")


def _output_value(node: Node, value: object) -> Traced:
    """Return the value of an output, without history if backward freed it (runtime/native.py)."""
    if not isinstance(value, Traced):
        raise CompileFailed(f"the graph returns a {type(value).__name__}, not a traced tensor")
    # A copy would lose the alias: the constant's memory belongs to the program.
    if value.cell.frozen:
        raise CompileFailed("the graph returns a tensor constant or a view of one")
    return without_history(value) if node.meta.get("freed") else value


def _written_since() -> Exception:
    error = CompileFailed("a tensor needed for gradient computation was modified in place")
    return _backward_error(origin_of(current_node()), error)


def _attribute(gm: GraphModule, path: str) -> torch.Tensor:
    value = operator.attrgetter(path)(gm)
    if not isinstance(value, torch.Tensor):
        raise CompileFailed(f"graph attribute {path} is a {type(value).__name__}")
    return value


def _check_cast(node: Node, value: object) -> None:
    """Check that autocast chose the dtype that the trace found on other tensors."""
    match value, node.meta.get("spec"):
        case torch.Tensor(dtype=found), TensorSpec(dtype=wanted) if found is not wanted:
            wrong = TypeError(f"its result is {found}, the trace has {wanted}")
            raise _failed(node, wrong)


def _check_spec(node: Node, spec: object, value: object) -> None:
    """Check that a result has the dtype and shape of the trace. For varying sizes those may be a
    guess (graph/operators/symbolic_shapes.py); comparing sizes here proves or guards them.
    """
    if isinstance(spec, tuple) and isinstance(value, tuple | list):
        for part, item in zip(spec, value, strict=False):
            _check_spec(node, part, item)
    if not isinstance(spec, TensorSpec) or not isinstance(value, Traced):
        return
    if value.dtype is not spec.dtype or as_dimensions(value.shape) != spec.shape:
        differs = SizesDiffer(f"its result is not a {spec} at these sizes")
        raise _failed(node, differs) from differs


def _call(node: Node, env: Env, mode: Functionalizer, saved: SavedTensorHooks) -> object:
    args, kwargs = _resolved(node.args, env), _resolved(node.kwargs, env)
    if isinstance(node.target, FunctionCall):
        for tensor in args[3]:  # eager saves captured tensors without a version check
            saved.record(tensor)
    try:
        if node.target is gradients:
            value = _gradients(node, args, mode)
        elif isinstance(node.target, HookCall):
            handles = mode.hooked.setdefault(args[0][0].grad_fn, [])
            handles.append(node.target.register(args[0], *args[3:]))
            value = ()
        elif is_transform(node.target):
            value = transformed(node.target, args, saved)  # type: ignore[arg-type]
        elif node.target in INDEXING and (found := select_by_sizes(args)) is not None:
            value = found[0]
        elif callable(node.target) or node.op == "call_method":
            function = node.target
            if isinstance(function, str):
                function = getattr(type(args[0]), function)
            value = recorded_call(function, args, kwargs, mode.recorder.is_sized)
        else:
            raise CompileFailed(f"{node.op} cannot be part of a traced graph")
    except Exception as error:  # whatever torch raises, eager will raise it for the user
        raise _failed(node, error) from error
    if read_autocast() != OFF:
        _check_cast(node, value)
    if isinstance(value, tuple):
        value = _rounded(node, value)
    _check_spec(node, node.meta.get("spec"), value)
    if node.target is getattr and args[1] == "data" and isinstance(value, Traced):
        # Not through detach, which shares the version counter: writes to .data are not counted.
        value.origin, value.counter = (AliasCall(None, args[0]), 0), VersionCounter()
    elif isinstance(value, Traced) and not (
        node.target is operator.getitem and isinstance(args[0], (tuple, list))
    ):
        _take_ownership(value, tensors_in((args, kwargs)))
    # Results of these get history that no view operation accounts for.
    is_custom = isinstance(node.target, FunctionCall) or node.target == "requires_grad_"
    for tensor in value if isinstance(value, (tuple, list)) else (value,):
        if isinstance(tensor, Traced):
            tensor.custom = node if is_custom else tensor.custom
            if tensor.requires_grad and torch.is_grad_enabled():
                mark_origin(tensor, node)
    return value


def _rounded(node: Node, results: tuple[object, ...]) -> tuple[object, ...]:
    """Cast results to the dtypes that the kernel returns. Formulas keep statistics of 16-bit
    numbers in float32; the program must see them rounded.
    """
    specs = node.meta.get("spec")
    if not isinstance(specs, tuple) or type(results) is not tuple or len(specs) != len(results):
        return results
    return tuple(map(_as_specified, results, specs))


def _as_specified(value: object, spec: object) -> object:
    if not isinstance(value, Traced) or not isinstance(spec, TensorSpec):
        return value
    if value.device.type != "cpu" or not value.is_floating_point():
        return value
    return value if value.dtype is spec.dtype else value.to(spec.dtype)


def _gradients(node: Node, args: tuple[Any, ...], mode: Functionalizer) -> object:
    """Record a backward inside the program; like the final one, it runs outside of autocast."""
    mode.in_backward = True
    try:
        with AutocastOff():
            computed = gradients(*args)
    finally:
        mode.in_backward = False
    for gradient, known in zip(computed, node.meta["val"], strict=True):
        if getattr(gradient, "requires_grad", None) != getattr(known, "requires_grad", None):
            raise CompileFailed("the gradients differ from those found while tracing")
    return computed


def _take_ownership(value: Traced, arguments: Iterable[torch.Tensor]) -> None:
    """Make a fresh result the owner of its memory. For the dispatch mode the result of torch.zeros
    and the like is detached from the kernel's result; for the program it owns the memory.
    """
    known = {id(tensor.cell) for tensor in arguments if isinstance(tensor, Traced)}
    cell = value.cell
    if not (cell.input is not None or cell.frozen or value.path or id(cell) in known):
        cell.base, value.origin = value, None


def _failed(node: Node, error: Exception) -> OperationFailed:
    lines: tuple[UserLine, ...] = node.meta.get("lines", ())
    return OperationFailed(target_name(node.target), str(error), node, lines[-1] if lines else None)


def _resolved(value: object, env: Env) -> Any:
    if isinstance(value, Node):
        return env[value]
    if isinstance(value, tuple):
        items = [_resolved(item, env) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, list):
        return [_resolved(item, env) for item in value]
    if isinstance(value, dict):
        return {key: _resolved(item, env) for key, item in value.items()}
    if isinstance(value, slice):
        return slice(*(_resolved(part, env) for part in (value.start, value.stop, value.step)))
    return as_torch(value)


def _check_inputs(traced: Sequence[Traced], specs: Sequence[TensorSpec]) -> None:
    for tensor, spec in zip(traced, specs, strict=True):
        if tensor.requires_grad != spec.requires_grad:
            raise CompileFailed(
                "an input that does not require grad was written to with a value that does"
                if tensor.requires_grad
                else "requires_grad of an input was changed"
            )


def _check_leaves(
    gm: GraphModule,
    inputs: Sequence[Traced],
    outputs: Sequence[Traced],
    results: Sequence[Traced],
) -> None:
    """Refuse leaves made by the program that get no gradient. An autograd node needs an input that
    requires grad, and a leaf that is returned would get no gradient.
    """
    nodes = [node for node in gm.graph.nodes if node.target == "requires_grad_"]
    recorded = [tensor for tensor in results if tensor.requires_grad]
    if not nodes or not recorded:
        return
    if not any(tensor.requires_grad for tensor in inputs):
        raise _failed(nodes[0], CompileFailed("no input of the graph requires grad"))
    leaves = [tensor for tensor in outputs if tensor.custom in nodes and tensor.is_leaf]
    reach = reach_of([edges_of(result) for result in recorded], leaves)
    for leaf, reached in zip(leaves, reach, strict=True):
        if reached and leaf.custom is not None:
            raise _failed(leaf.custom, CompileFailed("a result of the same graph depends on it"))


# -- backward --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Gradients:
    tangents: tuple[int, ...] = ()
    inputs: tuple[int, ...] = ()
    values: tuple[Sym, ...] = ()
    reach: tuple[tuple[int, ...], ...] = ()
    freed: tuple[int, ...] = ()
    saved: Mapping[Node, EagerSaved] = field(default_factory=dict)


def _differentiate(
    mode: Functionalizer,
    inputs: Sequence[Traced],
    results: Sequence[Traced],
    saved: SavedTensorHooks,
) -> _Gradients:
    """Record the backward of `results` with respect to the inputs that require grad."""
    tangents = tuple(i for i, tensor in enumerate(results) if tensor.requires_grad)
    wanted = [i for i, tensor in enumerate(inputs) if tensor.requires_grad]
    if not tangents or not wanted:
        return _Gradients()
    recorder = mode.recorder
    recorder.lines, recorder.region = (), None
    histories = [edges_of(results[i]) for i in tangents]
    leaves = [inputs[i] for i in wanted]
    reach = reach_of(histories, leaves)
    saved.differentiate(histories)
    given = [recorder.placeholder(f"tangent_{i}", _tangent_spec(results[i])) for i in tangents]
    seeds = [mode.fresh(sym) for sym in given]
    mode.results = [results[i] for i in tangents]
    mode.custom = custom_nodes(mode.results, mode.hooked)
    check_gradients(mode.custom, {sym.node for sym in given})
    try:
        # Eager runs the backward outside of autocast regions, so nothing in it is cast.
        with mode, AutocastOff():
            mode.in_backward = True
            computed = gradients_of_any_size(run_backward, mode.results, seeds, leaves)
        check_unwritten(given, [mode.read(seed) for seed in seeds])
    except OperationFailed:
        raise
    except Exception as error:  # whatever a formula raises, eager will raise it too
        raise _backward_error(mode.origin, error) from error
    finally:
        mode.in_backward, mode.origin, recorder.tangents = False, None, ()
        mode.custom.clear()  # hooks of its nodes refer to it
        # A hook that captures its tensor would keep the tensors of the trace alive.
        for handle in chain.from_iterable(mode.hooked.values()):
            handle.remove()
    apart = _with_eager_aliasing(mode, computed, seeds)
    gradients_of = [
        (i, sym, reached_by)
        for i, sym, reached_by in zip(wanted, apart, reach, strict=True)
        if sym is not None
    ]
    if not gradients_of:
        # No formula returns a gradient. The results still need an autograd node, as in eager.
        gradients_of = [_zero_gradient(mode, inputs, wanted, reach)]
    places, values, reached_by = zip(*gradients_of, strict=True)
    return _Gradients(tangents, places, values, reached_by, saved.freed(), saved.values())


def _zero_gradient(
    mode: Functionalizer,
    inputs: Sequence[Traced],
    wanted: Sequence[int],
    reach: Sequence[tuple[int, ...]],
) -> tuple[int, Sym, tuple[int, ...]]:
    """Return a zero gradient for an input in the results' history that no tangent reaches."""
    index = next((i for i, reached_by in zip(wanted, reach, strict=True) if reached_by), wanted[0])
    tensor = inputs[index]
    with mode:
        zeros = torch.zeros_like(tensor, memory_format=torch.contiguous_format)
    return index, mode.read(zeros), ()


def _backward_error(operation: Node | None, error: Exception) -> CompileFailed:
    """Return the error of the operation whose formula raised, or of the whole graph."""
    text = f"the backward cannot be recorded: {error}"
    if operation is not None and "step" in operation.meta:
        return _failed(operation, CompileFailed(text))
    return CompileFailed(f"autograd: {text}")


def _with_eager_aliasing(
    mode: Functionalizer, gradients: Sequence[torch.Tensor | None], seeds: Sequence[Traced]
) -> list[Sym | None]:
    """Return the gradients' values, which share memory exactly where eager's do. The recorder
    computes equal values once, but clipping one in place must not clip another.
    """
    cells = {alias_root(mode.read(seed).node): seed.cell for seed in seeds}
    values: list[Sym | None] = []
    for gradient in gradients:
        if gradient is None:
            values.append(None)
            continue
        if is_wrapper(gradient):
            raise CompileFailed("the gradient of a plain tensor is a tensor subclass")
        sym, cell = mode.read(gradient), mode.traced(gradient).cell
        own = cells.setdefault(alias_root(sym.node), cell) is cell
        values.append(sym if own else sym.recorder.copied(sym))
    return values


def _tangent_spec(result: Traced) -> TensorSpec:
    """Return a tangent's spec, laid out as the result, or contiguous if elements overlap."""
    shape, stride = as_dimensions(result.shape), as_dimensions(result.stride())
    if may_overlap(shape, stride):
        stride = contiguous_strides(shape)
    return TensorSpec(shape, stride, result.dtype, result.device)


# -- putting it together ---------------------------------------------------------------------------


def _finish(
    recorder: Recorder,
    inputs: Sequence[Traced],
    specs: Sequence[TensorSpec],
    outputs: Outputs,
    gradients: _Gradients,
) -> Joint:
    recorder.lines = ()
    values = without_shared_memory([tensor.sym for tensor in outputs.results])
    mutated = []
    for i, tensor in enumerate(inputs):
        if tensor.cell.value.node.op != "placeholder":  # the program wrote to the input
            mutated.append(i)
            for target, value in tensor.written_parts() or [(tensor.cell.first, tensor.cell.value)]:
                write = recorder.graph.call_function(aten.copy_.default, (target.node, value.node))
                write.meta.update(spec=target.spec, lines=value.node.meta.get("lines", ()))
    flat = tuple(sym.node for sym in (*values, *gradients.values))
    recorder.graph.output(flat)
    erase_dead(recorder.graph)
    trace_functions(recorder.graph, trace_joint)
    return Joint(
        module_of(recorder.graph, recorder.constants, "Joint"),
        tuple(specs),
        outputs.kinds,
        tuple(
            replace(sym.spec, requires_grad=tensor.requires_grad, is_leaf=not tensor.requires_grad)
            for sym, tensor in zip(values, outputs.results, strict=True)
        ),
        tuple(mutated),
        gradients.tangents,
        gradients.inputs,
        gradients.reach,
        outputs.aliasing,
        gradients.freed,
        {node: gradients.saved[node] for node in recorder.graph.nodes if node in gradients.saved},
    )
